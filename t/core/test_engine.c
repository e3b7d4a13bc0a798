
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "engine.h"


#define MAX_TOKENS   256
#define MAX_BLOCKS   64
#define MAX_REQS     400


/* a request and what the engine told about it */

typedef struct {
    engine_request_t   request;
    uint64_t           blocks[MAX_BLOCKS];
    double             at[MAX_TOKENS];
    uint32_t           tokens;
    unsigned           first;
    unsigned           last;
    engine_t          *abort_from;
    engine_request_t  *abort_request;
} client_t;


static void
assert_near(double a, double b)
{
    if (!(fabs(a - b) < 1e-9)) {
        fail_msg("%.12f is not %.12f", a, b);
    }
}


static void
on_token(void *data, engine_request_t *r, unsigned what, double at)
{
    double    *latest;
    client_t  *c;

    c = r->data;
    latest = data;

    assert_true(at >= *latest);
    *latest = at;

    assert_true(c->tokens < MAX_TOKENS);
    assert_false(c->last);

    c->at[c->tokens++] = at;

    if (what & ENGINE_FIRST) {
        assert_int_equal(c->tokens, 1);
        c->first = 1;
    }

    if (what & ENGINE_LAST) {
        c->last = 1;
    }

    if (c->abort_from != NULL) {
        engine_abort(c->abort_from, c->abort_request);
    }
}


static engine_t *
engine_of(const char *settings[])
{
    engine_t         *e;
    static double     latest;
    engine_params_t   p;

    engine_params_init(&p);

    while (*settings != NULL) {
        assert_int_equal(engine_params_set(&p, *settings++), ENGINE_OK);
    }

    assert_null(engine_params_check(&p));

    latest = 0;
    e = engine_create(&p, on_token, &latest);
    assert_non_null(e);

    return e;
}


#define ENGINE(...)  engine_of((const char *[]) { __VA_ARGS__ NULL })

/* ten tokens a block, ten seconds a step, one a decoding sequence */
#define SMALL  "max_num_seqs=3", "max_num_batched_tokens=40",                 \
               "cache_block=10", "align_chunks=yes", "step_base=10",          \
               "decode_seq=1", "prefill_token=0.1", "overhead=0"


static void
client_init(client_t *c, uint32_t prompt, uint32_t output, uint64_t group,
    uint32_t nblocks)
{
    uint32_t  i;

    memset(c, 0, sizeof(*c));

    for (i = 0; i < nblocks; i++) {
        c->blocks[i] = group * 1000 + i;
    }

    c->request.prompt = prompt;
    c->request.output = output;
    c->request.blocks = c->blocks;
    c->request.nblocks = nblocks;
    c->request.data = c;
}


static void
submit(engine_t *e, client_t *c, double now, uint32_t prompt,
    uint32_t output, uint64_t group, uint32_t nblocks)
{
    client_init(c, prompt, output, group, nblocks);
    engine_submit(e, &c->request, now);
}


static void
test_cold_prompt_takes_four_steps(void **state)
{
    client_t   c;
    engine_t  *e;

    (void) state;

    e = ENGINE("profile=l20-27b",);

    submit(e, &c, 0, 5048, 2, 1, 3);

    assert_near(engine_next(e), 0.046 + 1568 * 0.0003);
    engine_advance(e, engine_next(e));
    assert_near(engine_next(e), 2 * 0.5164);
    engine_advance(e, engine_next(e));
    assert_near(engine_next(e), 3 * 0.5164);
    engine_advance(e, engine_next(e));
    assert_int_equal(c.tokens, 0);

    /* the rest of 344 tokens, and the first token after the overhead */
    assert_near(engine_next(e), 1.5492 + 0.1492);
    engine_advance(e, engine_next(e));
    assert_int_equal(c.tokens, 1);
    assert_true(c.first);
    assert_false(c.last);
    assert_near(c.at[0], 1.6984 + 0.030);

    engine_advance(e, 100);
    assert_int_equal(c.tokens, 2);
    assert_true(c.last);
    assert_near(c.at[1], 1.6984 + 0.047 + 0.030);
    assert_int_equal(engine_stats(e)->steps, 5);
    assert_int_equal(engine_stats(e)->prefilled, 5048);

    engine_destroy(e);
}


static void
test_cached_prompt_takes_one_step(void **state)
{
    client_t   a, b;
    engine_t  *e;

    (void) state;

    e = ENGINE("profile=l20-27b",);

    submit(e, &a, 0, 5048, 1, 1, 3);
    engine_advance(e, 100);
    submit(e, &b, 100, 5050, 1, 1, 3);
    engine_advance(e, 200);

    assert_int_equal(a.request.cached, 0);
    assert_int_equal(b.request.cached, 3 * 1568);
    assert_near(b.at[0], 100 + 0.046 + 346 * 0.0003 + 0.030);
    assert_int_equal(engine_stats(e)->queries, 5048 + 5050);
    assert_int_equal(engine_stats(e)->hits, 3 * 1568);
    assert_int_equal(engine_stats(e)->prompts, 5048 + 5050);
    assert_int_equal(engine_stats(e)->generated, 2);

    engine_destroy(e);
}


/* of two full blocks in the cache the second has the prompt's last token */

static void
test_last_token_is_always_computed(void **state)
{
    client_t   a, b;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL,);

    submit(e, &a, 0, 20, 1, 1, 2);
    engine_advance(e, 100);
    assert_int_equal(engine_cached_blocks(e), 2);

    submit(e, &b, 100, 20, 1, 1, 2);
    assert_int_equal(b.request.cached, 10);
    assert_near(engine_next(e), 100 + 10 + 1);

    engine_destroy(e);
}


static void
test_match_ends_at_the_first_gap(void **state)
{
    client_t   a;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL,);

    engine_warm(e, (uint64_t[]) { 1000, 1002, 1003 }, 3);
    submit(e, &a, 0, 45, 1, 1, 4);
    assert_int_equal(a.request.cached, 10);

    engine_destroy(e);
}


static void
test_chunk_stops_at_last_full_block(void **state)
{
    client_t   c;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL,);

    /* 25 would fit into the budget of 40, but stops at 20 */
    submit(e, &c, 0, 25, 1, 1, 2);
    assert_near(engine_next(e), 12);
    engine_advance(e, 12);
    assert_int_equal(c.tokens, 0);
    assert_near(engine_next(e), 22.5);
    engine_advance(e, 22.5);
    assert_near(c.at[0], 22.5);

    engine_destroy(e);
}


static void
test_chunks_without_alignment(void **state)
{
    client_t   a, b, c;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL, "align_chunks=no",);

    submit(e, &a, 0, 25, 1, 1, 2);
    assert_near(engine_next(e), 12.5);

    /* 33 and 7 of the next one fill the budget of 40, 13 are left */
    submit(e, &b, 1, 33, 1, 2, 3);
    submit(e, &c, 2, 20, 1, 3, 2);
    engine_advance(e, 12.5);
    assert_near(a.at[0], 12.5);
    assert_near(engine_next(e), 12.5 + 10 + 4);
    engine_advance(e, engine_next(e));
    assert_near(b.at[0], 26.5);
    assert_near(engine_next(e), 26.5 + 10 + 1.3);

    engine_destroy(e);
}


/* a decoding sequence takes one of the budget, and its time */

static void
test_decoding_takes_budget_and_time(void **state)
{
    client_t   a, b, c;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL, "align_chunks=no",);

    submit(e, &a, 0, 4, 10, 1, 0);
    engine_advance(e, 10.4);
    assert_near(engine_next(e), 10.4 + 11);
    submit(e, &b, 11, 4, 10, 2, 0);
    engine_advance(e, 21.4);
    assert_near(engine_next(e), 21.4 + 10 + 1 + 0.4);
    submit(e, &c, 22, 100, 1, 3, 0);
    engine_advance(e, 32.8);

    /* two decode, 38 of the 100 tokens are what is left of the budget */
    assert_near(engine_next(e), 32.8 + 10 + 2 + 3.8);
    engine_advance(e, engine_next(e));
    assert_int_equal(c.request.computed, 38);
    assert_int_equal(a.tokens, 4);
    assert_int_equal(b.tokens, 2);

    engine_destroy(e);
}


static void
test_slots_are_limited_and_queue_is_fair(void **state)
{
    int        i;
    client_t   c[5];
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL, "align_chunks=no",);

    submit(e, &c[0], 0, 5, 2, 1, 0);

    for (i = 1; i < 5; i++) {
        submit(e, &c[i], 1, 5, 2, 1, 0);
    }

    engine_advance(e, 10.5);
    assert_int_equal(engine_stats(e)->running, 3);
    assert_int_equal(engine_stats(e)->waiting, 2);
    assert_int_equal(c[2].request.state, ENGINE_RUNNING);
    assert_int_equal(c[3].request.state, ENGINE_WAITING);

    engine_advance(e, 1000);

    for (i = 0; i < 5; i++) {
        assert_int_equal(c[i].tokens, 2);
        assert_true(c[i].last);
        assert_int_equal(c[i].request.state, ENGINE_OUT);
        assert_true(i == 0 || c[i].at[0] >= c[i - 1].at[0]);
    }

    assert_int_equal(engine_stats(e)->finished, 5);

    engine_destroy(e);
}


/* the head of the queue finds no block's room: nobody overtakes it */

static void
test_admission_stops_at_the_head(void **state)
{
    client_t   a, b, c, z;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL,);

    submit(e, &z, 0, 3, 1, 1, 0);
    submit(e, &a, 0, 31, 1, 1, 3);
    submit(e, &b, 1, 50, 1, 2, 5);
    submit(e, &c, 2, 2, 1, 3, 0);

    /* at 10.3 a takes 30 of 40 and b the last 10, c nothing */
    engine_advance(e, 10.3);
    assert_near(engine_next(e), 10.3 + 10 + 4);
    assert_int_equal(b.request.state, ENGINE_RUNNING);
    assert_int_equal(c.request.state, ENGINE_WAITING);

    engine_destroy(e);

    e = ENGINE(SMALL, "max_num_batched_tokens=35",);

    submit(e, &z, 0, 3, 1, 1, 0);
    submit(e, &a, 0, 31, 1, 1, 3);
    submit(e, &b, 1, 50, 1, 2, 5);
    submit(e, &c, 2, 2, 1, 3, 0);

    /* now b would get 5, which is no block, and c waits behind it */
    engine_advance(e, 10.3);
    assert_near(engine_next(e), 10.3 + 10 + 3);
    assert_int_equal(b.request.state, ENGINE_WAITING);
    assert_int_equal(c.request.state, ENGINE_WAITING);

    engine_destroy(e);
}


static void
test_blocks_are_usable_from_the_next_step(void **state)
{
    client_t   a, b, c, d;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL, "max_num_batched_tokens=100",);

    submit(e, &a, 0, 5, 1, 9, 0);
    submit(e, &b, 1, 25, 1, 1, 2);
    submit(e, &c, 2, 25, 1, 1, 2);
    engine_advance(e, 10.5);
    submit(e, &d, 11, 25, 1, 1, 2);
    engine_advance(e, 1000);

    assert_int_equal(b.request.cached, 0);
    assert_int_equal(c.request.cached, 0);
    assert_int_equal(d.request.cached, 20);

    engine_destroy(e);
}


/* an arrival at the instant of a step's end is in time for the next step */

static void
test_arrival_at_the_end_of_a_step(void **state)
{
    client_t   a, b;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL,);

    submit(e, &a, 0, 5, 2, 1, 0);
    submit(e, &b, 10.5, 5, 1, 2, 0);
    assert_int_equal(a.tokens, 0);
    engine_advance(e, 10.5);
    assert_int_equal(a.tokens, 1);
    assert_int_equal(b.request.state, ENGINE_RUNNING);
    assert_near(engine_next(e), 10.5 + 10 + 1 + 0.5);

    engine_destroy(e);
}


/* a late caller changes nothing: submit does the steps before it first */

static void
test_late_caller(void **state)
{
    client_t   a, b;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL,);

    submit(e, &a, 0, 5, 5, 1, 0);
    submit(e, &b, 40, 5, 1, 2, 0);
    assert_int_equal(a.tokens, 3);
    assert_near(a.at[0], 10.5);
    assert_near(a.at[2], 32.5);
    assert_near(engine_next(e), 43.5);
    engine_advance(e, 500);
    assert_near(b.at[0], 43.5 + 11.5);
    assert_near(a.at[4], 43.5 + 11.5);

    engine_destroy(e);
}


static void
test_idle_engine_takes_no_steps(void **state)
{
    client_t   a;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL,);

    assert_true(engine_next(e) == INFINITY);
    engine_advance(e, 1000);
    assert_int_equal(engine_stats(e)->steps, 0);

    submit(e, &a, 1000, 5, 1, 1, 0);
    engine_advance(e, 1010.5);
    assert_true(engine_next(e) == INFINITY);
    engine_advance(e, 2000);
    assert_int_equal(engine_stats(e)->steps, 1);

    engine_destroy(e);
}


static void
test_overhead_and_speed(void **state)
{
    client_t   a;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL, "overhead=4", "speed=10",);

    submit(e, &a, 0, 5, 2, 1, 0);
    engine_advance(e, 100);
    assert_near(a.at[0], 1.05 + 0.4);
    assert_near(a.at[1], 2.15 + 0.4);

    engine_destroy(e);
}


static void
test_abort_in_the_queue(void **state)
{
    int        i;
    client_t   c[5];
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL, "max_num_seqs=1",);

    for (i = 0; i < 5; i++) {
        submit(e, &c[i], i, 5, 1, 1, 0);
    }

    engine_abort(e, &c[1].request);
    engine_abort(e, &c[3].request);
    engine_abort(e, &c[3].request);
    assert_int_equal(engine_stats(e)->waiting, 2);
    assert_int_equal(engine_stats(e)->aborted, 2);

    engine_advance(e, 1000);

    assert_near(c[0].at[0], 10.5);
    assert_int_equal(c[1].tokens, 0);
    assert_near(c[2].at[0], 21);
    assert_int_equal(c[3].tokens, 0);
    assert_near(c[4].at[0], 31.5);

    engine_destroy(e);
}


/* the slot is free at once, the step goes on, its blocks are lost */

static void
test_abort_in_the_batch(void **state)
{
    client_t   a, b, c;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL, "max_num_seqs=2",);

    submit(e, &a, 0, 45, 1, 1, 4);
    engine_advance(e, 5);
    submit(e, &b, 5, 15, 1, 2, 1);
    submit(e, &c, 6, 15, 1, 3, 1);

    engine_abort(e, &a.request);
    assert_int_equal(engine_stats(e)->running, 0);
    assert_near(engine_next(e), 14);

    engine_advance(e, 14);
    assert_int_equal(engine_cached_blocks(e), 0);
    assert_int_equal(engine_stats(e)->prefilled, 0);
    assert_int_equal(b.request.state, ENGINE_RUNNING);
    assert_int_equal(c.request.state, ENGINE_RUNNING);

    engine_advance(e, 1000);
    assert_int_equal(a.tokens, 0);
    assert_int_equal(b.tokens, 1);
    assert_int_equal(c.tokens, 1);

    engine_destroy(e);
}


static void
test_abort_of_the_last_one_leaves_an_idle_engine(void **state)
{
    client_t   a, b;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL,);

    submit(e, &a, 0, 5, 3, 1, 0);
    engine_abort(e, &a.request);

    /* the step under way is not cut: b begins when it ends */
    submit(e, &b, 2, 5, 1, 1, 0);
    engine_advance(e, 1000);
    assert_near(b.at[0], 21);
    assert_true(engine_next(e) == INFINITY);

    engine_destroy(e);
}


/* a token's receiver ends another request, or its own */

static void
test_abort_by_a_receiver(void **state)
{
    client_t   a, b;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL,);

    submit(e, &a, 0, 5, 9, 1, 0);
    submit(e, &b, 0, 5, 9, 2, 0);
    engine_advance(e, 22);
    assert_int_equal(a.tokens, 2);
    assert_int_equal(b.tokens, 1);

    a.abort_from = e;
    a.abort_request = &b.request;
    engine_advance(e, engine_next(e));
    assert_int_equal(a.tokens, 3);
    assert_int_equal(b.tokens, 1);
    assert_int_equal(b.request.state, ENGINE_OUT);

    a.abort_request = &a.request;
    engine_advance(e, 1000);
    assert_int_equal(a.tokens, 4);
    assert_int_equal(engine_stats(e)->running, 0);
    assert_int_equal(engine_stats(e)->aborted, 2);

    engine_destroy(e);
}


static void
test_reset_is_refused_while_requests_run(void **state)
{
    client_t   a;
    engine_t  *e;

    (void) state;

    e = ENGINE(SMALL,);

    submit(e, &a, 0, 25, 2, 1, 2);
    engine_advance(e, 13);
    assert_int_equal(engine_reset_cache(e), ENGINE_BUSY);
    assert_int_equal(engine_cached_blocks(e), 2);
    assert_int_equal(engine_held_blocks(e), 2);

    engine_advance(e, 1000);
    assert_int_equal(engine_reset_cache(e), ENGINE_OK);
    assert_int_equal(engine_cached_blocks(e), 0);
    assert_int_equal(engine_held_blocks(e), 0);

    submit(e, &a, 1000, 25, 2, 1, 2);
    assert_int_equal(a.request.cached, 0);
    engine_advance(e, 2000);
    assert_int_equal(engine_cached_blocks(e), 2);

    engine_destroy(e);
}


static void
test_cache_evicts_the_least_recently_used(void **state)
{
    uint64_t        i;
    engine_cache_t  c;

    (void) state;

    assert_int_equal(engine_cache_init(&c, 3), 0);

    engine_cache_insert(&c, 1);
    engine_cache_insert(&c, 2);
    engine_cache_insert(&c, 3);
    assert_true(engine_cache_refresh(&c, 1));
    engine_cache_insert(&c, 2);

    /* 3 is the oldest now, then 1, then 2 */
    engine_cache_insert(&c, 4);
    assert_false(engine_cache_refresh(&c, 3));
    engine_cache_insert(&c, 5);
    assert_false(engine_cache_refresh(&c, 1));
    assert_true(engine_cache_refresh(&c, 2));
    assert_int_equal(c.count, 3);
    assert_int_equal(c.evicted, 2);

    engine_cache_free(&c);

    assert_int_equal(engine_cache_init(&c, 0), 0);
    engine_cache_insert(&c, 1);
    assert_false(engine_cache_refresh(&c, 1));
    assert_int_equal(c.count, 0);
    engine_cache_free(&c);

    assert_int_equal(engine_cache_init(&c, ENGINE_UNLIMITED), 0);

    for (i = 0; i < 100000; i++) {
        engine_cache_insert(&c, i * i);
    }

    assert_int_equal(c.count, 100000);
    assert_int_equal(c.evicted, 0);

    for (i = 0; i < 100000; i++) {
        assert_true(engine_cache_refresh(&c, i * i));
        assert_false(engine_cache_refresh(&c, i * i + 100001ULL * 100001));
    }

    engine_cache_clear(&c);
    assert_false(engine_cache_refresh(&c, 4));
    engine_cache_insert(&c, 4);
    assert_true(engine_cache_refresh(&c, 4));
    engine_cache_free(&c);
}


static void
test_params(void **state)
{
    size_t           i;
    engine_params_t  p;

    static const char  *invalid[] = {
        "profile=h100", "max_num_seqs=", "max_num_seqs=0", "max_num_seqs=1.5",
        "max_num_seqs=-1", "max_num_seqs=unlimited", "max_num_seqs=65537",
        "cache_block=0", "align_chunks=maybe", "kv_blocks=x", "kv_blocks=-1",
        "kv_blocks=9999999999999999999999", "step_base=", "step_base=ms",
        "step_base=.", "step_base=-1", "step_base=1h", "step_base=1 ms",
        "step_base=1e3", "step_base=0x10", "step_base=nan", "step_base=inf",
        "step_base=3601", "speed=0", "speed=1x", "bytes_per_token=0"
    };

    (void) state;

    engine_params_init(&p);
    assert_int_equal(p.max_num_seqs, 8);
    assert_int_equal(p.cache_block, 1568);
    assert_true(p.kv_blocks == ENGINE_UNLIMITED);

    assert_int_equal(engine_params_set(&p, "profile=h100-8b"), ENGINE_OK);
    assert_int_equal(p.max_num_seqs, 256);
    assert_int_equal(p.align_chunks, 0);

    assert_int_equal(engine_params_set(&p, "prefill_token=0.3ms"), ENGINE_OK);
    assert_true(p.prefill_token == 0.0003);
    assert_int_equal(engine_params_set(&p, "prefill_token=60us"), ENGINE_OK);
    assert_true(p.prefill_token == 0.00006);
    assert_int_equal(engine_params_set(&p, "step_base=.046"), ENGINE_OK);
    assert_true(p.step_base == 0.046);
    assert_int_equal(engine_params_set(&p, "step_base=2s"), ENGINE_OK);
    assert_true(p.step_base == 2);
    assert_int_equal(engine_params_set(&p, "overhead=1.5m"), ENGINE_OK);
    assert_true(p.overhead == 90);
    assert_int_equal(engine_params_set(&p, "kv_blocks=500"), ENGINE_OK);
    assert_int_equal(p.kv_blocks, 500);
    assert_int_equal(engine_params_set(&p, "kv_blocks=unlimited"), ENGINE_OK);
    assert_true(p.kv_blocks == ENGINE_UNLIMITED);
    assert_int_equal(engine_params_set(&p, "bytes_per_token=5.72"),
                     ENGINE_OK);
    assert_true(p.bytes_per_token == 5.72);

    assert_int_equal(engine_params_set(&p, "step_bas=1"), ENGINE_UNKNOWN);
    assert_int_equal(engine_params_set(&p, "step_base2=1"), ENGINE_UNKNOWN);
    assert_int_equal(engine_params_set(&p, "step_base"), ENGINE_UNKNOWN);
    assert_int_equal(engine_params_set(&p, ""), ENGINE_UNKNOWN);

    engine_params_init(&p);

    for (i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++) {

        if (engine_params_set(&p, invalid[i]) != ENGINE_INVALID) {
            fail_msg("\"%s\" was taken", invalid[i]);
        }
    }

    assert_null(engine_params_check(&p));
    p.max_num_batched_tokens = 1567;
    assert_non_null(engine_params_check(&p));
    p.align_chunks = 0;
    assert_null(engine_params_check(&p));
    p.step_base = 0;
    assert_null(engine_params_check(&p));
    p.decode_seq = 0;
    assert_non_null(engine_params_check(&p));
}


/*
 * The slow check: the model once more, from its description, with arrays
 * and linear searches only.  It shares no line with the engine.
 */

typedef struct {
    double    arrival;
    double    abort;              /* INFINITY: never */
    int       prompt;
    int       output;
    int       nblocks;
    int       group;
    int       out;                /* aborted or finished */
    int       admitted;
    int       done;               /* prompt tokens */
    int       cached;
    int       tokens;
    double    at[MAX_TOKENS];
} slow_request_t;


typedef struct {
    uint64_t  id[4096];
    long      used[4096];
    int       n;
    long      clock;
} slow_cache_t;


static int
slow_find(slow_cache_t *c, uint64_t id)
{
    int  i;

    for (i = 0; i < c->n; i++) {
        if (c->id[i] == id) {
            return i;
        }
    }

    return -1;
}


static void
slow_touch(slow_cache_t *c, uint64_t id, uint64_t capacity)
{
    int  i, oldest;

    i = slow_find(c, id);

    if (i < 0) {
        i = c->n++;
        c->id[i] = id;
    }

    c->used[i] = ++c->clock;

    if ((uint64_t) c->n <= capacity) {
        return;
    }

    oldest = 0;

    for (i = 1; i < c->n; i++) {
        if (c->used[i] < c->used[oldest]) {
            oldest = i;
        }
    }

    c->n--;
    c->id[oldest] = c->id[c->n];
    c->used[oldest] = c->used[c->n];
}


static int
slow_chunk(const engine_params_t *p, int prompt, int from, int room)
{
    int  to, block;

    block = p->cache_block;
    to = prompt;

    if (to > from + room) {
        to = from + room;
    }

    if (p->align_chunks) {

        if (to < prompt) {
            while (to % block != 0) {
                to--;
            }

        } else if (from < prompt / block * block) {
            to = prompt / block * block;
        }
    }

    return to > from ? to - from : 0;
}


static void
slow_run(const engine_params_t *p, slow_request_t *rs, int n)
{
    int            i, j, k, hit, room, chunk, running, decoding, tokens;
    int            what[MAX_REQS], order[MAX_REQS], norder, known;
    double         now, end;
    slow_cache_t  *c;

    c = calloc(1, sizeof(*c));
    assert_non_null(c);

    now = -1;
    norder = 0;
    known = 0;

    for ( ;; ) {

        /* a step that starts now */

        for (i = 0; i < n; i++) {
            what[i] = -1;

            if (rs[i].abort < now && !rs[i].out) {
                rs[i].out = 1;
            }
        }

        room = p->max_num_batched_tokens;
        running = 0;

        for (k = 0; k < norder; k++) {
            i = order[k];

            if (rs[i].out) {
                continue;
            }

            running++;

            if (room == 0) {
                continue;
            }

            if (rs[i].done == rs[i].prompt) {
                what[i] = 0;
                room--;
                continue;
            }

            chunk = slow_chunk(p, rs[i].prompt, rs[i].done, room);

            if (chunk > 0) {
                what[i] = chunk;
                room -= chunk;
            }
        }

        for (i = 0; i < known; i++) {

            if (rs[i].out || rs[i].admitted) {
                continue;
            }

            if (room == 0 || running == (int) p->max_num_seqs) {
                break;
            }

            for (hit = 0; hit < rs[i].nblocks; hit++) {
                if ((hit + 1) * (int) p->cache_block >= rs[i].prompt
                    || slow_find(c, rs[i].group * 1000 + hit) < 0)
                {
                    break;
                }

                slow_touch(c, rs[i].group * 1000 + hit, p->kv_blocks);
            }

            chunk = slow_chunk(p, rs[i].prompt, hit * p->cache_block, room);

            if (chunk == 0) {
                break;
            }

            rs[i].admitted = 1;
            rs[i].cached = rs[i].done = hit * p->cache_block;
            order[norder++] = i;
            running++;
            what[i] = chunk;
            room -= chunk;
        }

        decoding = 0;
        tokens = 0;
        k = 0;

        for (i = 0; i < n; i++) {
            k += (what[i] >= 0);
            decoding += (what[i] == 0);
            tokens += (what[i] > 0) ? what[i] : 0;
        }

        if (k == 0) {

            /* an idle engine begins at once, with the first who comes */

            if (known == n) {
                break;
            }

            now = rs[known++].arrival;
            continue;
        }

        end = now + p->step_base / p->speed
              + p->decode_seq / p->speed * decoding
              + p->prefill_token / p->speed * tokens;

        for (k = 0; k < norder; k++) {
            i = order[k];

            if (what[i] < 0 || rs[i].abort < end) {
                continue;
            }

            if (what[i] > 0) {
                rs[i].done += what[i];

                for (j = 0; j < rs[i].nblocks; j++) {
                    if ((j + 1) * (int) p->cache_block <= rs[i].done) {
                        slow_touch(c, rs[i].group * 1000 + j, p->kv_blocks);
                    }
                }

                if (rs[i].done < rs[i].prompt) {
                    continue;
                }
            }

            rs[i].at[rs[i].tokens++] = end + p->overhead / p->speed;
            rs[i].out = (rs[i].tokens == rs[i].output);
        }

        now = end;

        while (known < n && rs[known].arrival <= now) {
            known++;
        }
    }

    free(c);
}


static uint32_t
rnd(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;

    return (uint32_t) (*seed >> 33);
}


#define pick(seed, ...)                                                       \
    ((const int[]) { __VA_ARGS__ })[rnd(seed)                                 \
        % (sizeof((const int[]) { __VA_ARGS__ }) / sizeof(int))]


static void
random_params(engine_params_t *p, uint64_t *seed)
{
    engine_params_init(p);

    if (rnd(seed) % 4 == 0) {
        return;
    }

    p->max_num_seqs = pick(seed, 1, 2, 5, 50);
    p->cache_block = pick(seed, 1, 3, 16, 100);
    p->align_chunks = rnd(seed) % 2;
    p->max_num_batched_tokens = p->cache_block + pick(seed, 0, 7, 64, 500);
    p->kv_blocks = (uint64_t) pick(seed, 0, 1, 7, 40, 10000);
    p->speed = pick(seed, 1, 1, 10);

    if (rnd(seed) % 4 == 0) {
        p->kv_blocks = ENGINE_UNLIMITED;
    }
}


/*
 * Abort times lie off the grid of everything else, so that an abort never
 * coincides with the end of a step, which the model does not define.
 */

static void
random_requests(const engine_params_t *p, slow_request_t *rs, int n,
    uint64_t *seed)
{
    int     i, max;
    double  t;

    t = 0;

    for (i = 0; i < n; i++) {
        memset(&rs[i], 0, sizeof(rs[i]));

        t += pick(seed, 0, 1, 1, 2, 5) * 0.0625 / p->speed;

        rs[i].arrival = t;
        rs[i].group = rnd(seed) % 4;
        rs[i].prompt = 1 + rnd(seed) % (8 * p->cache_block);
        max = rs[i].prompt / p->cache_block;
        rs[i].nblocks = rnd(seed) % (max + 1);
        rs[i].output = 1 + rnd(seed) % 20;
        rs[i].abort = INFINITY;

        if (rnd(seed) % 5 == 0) {
            rs[i].abort = t + (rnd(seed) % 3000 + M_PI) / 1000;
        }
    }
}


static void
check_state(engine_t *e, const engine_params_t *p, client_t *cs, int n)
{
    int       i;
    unsigned  waiting, running;

    waiting = 0;
    running = 0;

    for (i = 0; i < n; i++) {
        waiting += (cs[i].request.state == ENGINE_WAITING);
        running += (cs[i].request.state == ENGINE_RUNNING);

        /* first come, first served: nobody runs who came after a waiter */
        assert_false(waiting && cs[i].request.state == ENGINE_RUNNING);
    }

    assert_int_equal(engine_stats(e)->waiting, waiting);
    assert_int_equal(engine_stats(e)->running, running);
    assert_true(running <= p->max_num_seqs);
    assert_true(engine_cached_blocks(e) <= p->kv_blocks);
    assert_true(running + waiting == 0 || engine_next(e) < INFINITY);
}


/* arrivals, aborts and step ends in their order, one event at a time */

static void
play(engine_t *e, const engine_params_t *p, client_t *cs,
    const slow_request_t *rs, int n)
{
    int     i, next, who;
    double  at;

    next = 0;

    for ( ;; ) {
        at = engine_next(e);
        who = -1;

        for (i = 0; i < next; i++) {
            if (cs[i].request.state != ENGINE_OUT && rs[i].abort < at) {
                at = rs[i].abort;
                who = i;
            }
        }

        if (next < n && rs[next].arrival <= at) {
            engine_submit(e, &cs[next].request, rs[next].arrival);
            next++;

        } else if (who >= 0) {
            engine_abort(e, &cs[who].request);

        } else if (at < INFINITY) {
            engine_advance(e, at);

        } else {
            break;
        }

        check_state(e, p, cs, next);
    }
}


static void
check_against_slow(uint64_t seed, int n, double *worst)
{
    int                    i, j;
    double                 latest;
    uint64_t               tokens, prefilled, prompts;
    engine_t              *e;
    engine_params_t        p;
    static client_t        cs[MAX_REQS];
    static slow_request_t  rs[MAX_REQS];

    random_params(&p, &seed);
    random_requests(&p, rs, n, &seed);

    latest = 0;
    e = engine_create(&p, on_token, &latest);
    assert_non_null(e);

    for (i = 0; i < n; i++) {
        client_init(&cs[i], rs[i].prompt, rs[i].output, rs[i].group,
                    rs[i].nblocks);
    }

    play(e, &p, cs, rs, n);
    slow_run(&p, rs, n);

    tokens = 0;
    prefilled = 0;
    prompts = 0;

    for (i = 0; i < n; i++) {
        assert_int_equal(cs[i].tokens, rs[i].tokens);
        assert_int_equal(cs[i].request.cached, rs[i].cached);
        assert_int_equal(cs[i].last, rs[i].tokens == rs[i].output);

        if (rs[i].abort == INFINITY) {
            assert_int_equal(cs[i].tokens, rs[i].output);
        }

        for (j = 0; j < rs[i].tokens; j++) {
            *worst = fmax(*worst, fabs(cs[i].at[j] - rs[i].at[j]));
        }

        tokens += cs[i].tokens;
        prefilled += rs[i].admitted ? rs[i].done - rs[i].cached : 0;
        prompts += rs[i].tokens > 0 ? rs[i].prompt : 0;
    }

    assert_int_equal(engine_stats(e)->generated, tokens);
    assert_int_equal(engine_stats(e)->prefilled, prefilled);
    assert_int_equal(engine_stats(e)->prompts, prompts);
    assert_int_equal(engine_stats(e)->finished + engine_stats(e)->aborted, n);

    engine_destroy(e);
}


static void
test_random_scenarios_equal_the_slow_check(void **state)
{
    double    worst;
    uint64_t  seed;

    (void) state;

    worst = 0;

    for (seed = 1; seed <= 400; seed++) {
        check_against_slow(seed, 20 + (int) (seed % 5) * 60, &worst);
    }

    if (worst >= 1e-6) {
        fail_msg("times differ by %g s", worst);
    }
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_cold_prompt_takes_four_steps),
        cmocka_unit_test(test_cached_prompt_takes_one_step),
        cmocka_unit_test(test_last_token_is_always_computed),
        cmocka_unit_test(test_match_ends_at_the_first_gap),
        cmocka_unit_test(test_chunk_stops_at_last_full_block),
        cmocka_unit_test(test_chunks_without_alignment),
        cmocka_unit_test(test_decoding_takes_budget_and_time),
        cmocka_unit_test(test_slots_are_limited_and_queue_is_fair),
        cmocka_unit_test(test_admission_stops_at_the_head),
        cmocka_unit_test(test_blocks_are_usable_from_the_next_step),
        cmocka_unit_test(test_arrival_at_the_end_of_a_step),
        cmocka_unit_test(test_late_caller),
        cmocka_unit_test(test_idle_engine_takes_no_steps),
        cmocka_unit_test(test_overhead_and_speed),
        cmocka_unit_test(test_abort_in_the_queue),
        cmocka_unit_test(test_abort_in_the_batch),
        cmocka_unit_test(test_abort_of_the_last_one_leaves_an_idle_engine),
        cmocka_unit_test(test_abort_by_a_receiver),
        cmocka_unit_test(test_reset_is_refused_while_requests_run),
        cmocka_unit_test(test_cache_evicts_the_least_recently_used),
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_random_scenarios_equal_the_slow_check),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
