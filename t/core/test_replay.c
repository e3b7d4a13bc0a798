
/*
 * The replay tool held against a slow engine of its own: each run's routed
 * requests are computed again, with arrays and linear searches, and every
 * time must be the same to a microsecond.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "replay_random.c"
#include "replay_memory.c"
#define replay_by_time  replay_trace_by_time
#include "replay_trace.c"
#undef replay_by_time
#include "replay_scenario.c"
#define replay_zeroed  replay_books_zeroed
#include "replay_books.c"
#undef replay_zeroed
#include "replay_rivals.c"
#include "replay_run.c"
#include "replay_report.c"


#define MICROSECOND  1e-6
#define SLOW_CACHE   16384
#define SLOW_SEQS    256


typedef struct {
    uint32_t   request;
    uint32_t   computed;
    uint32_t   generated;
    uint32_t   chunk;           /* of this step; 0 decodes or rests */
    int        planned;
} slow_seq_t;


typedef struct {
    uint64_t    cache[SLOW_CACHE];      /* the newest last */
    size_t      cached;
    slow_seq_t  running[SLOW_SEQS];
    size_t      nrunning;
    double      end;
    int         busy;
    size_t      next;                   /* request to look for arrivals */
    uint32_t    waiting[8192];
    size_t      nwaiting;
} slow_engine_t;


static slow_engine_t  slow;


static int
slow_has(uint64_t block)
{
    size_t  i;

    for (i = 0; i < slow.cached; i++) {
        if (slow.cache[i] == block) {
            return 1;
        }
    }

    return 0;
}


static void
slow_touch(const engine_params_t *p, uint64_t block)
{
    size_t  i;

    for (i = 0; i < slow.cached && slow.cache[i] != block; i++) {
        /* void */
    }

    if (i == slow.cached) {
        assert_true(slow.cached < SLOW_CACHE);
        slow.cached++;
    }

    memmove(&slow.cache[i], &slow.cache[i + 1],
            (slow.cached - i - 1) * sizeof(uint64_t));
    slow.cache[slow.cached - 1] = block;

    if (slow.cached > p->kv_blocks) {
        memmove(slow.cache, slow.cache + 1,
                --slow.cached * sizeof(uint64_t));
    }
}


static uint32_t
slow_chunk(const engine_params_t *p, uint32_t prompt, uint32_t from,
    uint32_t budget)
{
    uint32_t  to, full;

    to = (prompt - from < budget) ? prompt : from + budget;

    if (p->align_chunks) {
        full = prompt / p->cache_block * p->cache_block;

        if (to < prompt) {
            to = to / p->cache_block * p->cache_block;

        } else if (from < full && full < to) {
            to = full;
        }
    }

    return (to > from) ? to - from : 0;
}


static void
slow_admit(const engine_params_t *p, const replay_workload_t *w,
    replay_answer_t *out, uint32_t *budget)
{
    uint32_t                 i, hit, chunk;
    slow_seq_t              *s;
    const replay_request_t  *q;

    while (slow.nwaiting != 0 && slow.nrunning < p->max_num_seqs
           && *budget != 0)
    {
        i = slow.waiting[0];
        q = &w->requests[i];

        for (hit = 0; hit < q->nblocks
                      && hit < (q->prompt - 1) / p->cache_block
                      && slow_has(q->blocks[hit]); hit++)
        {
            slow_touch(p, q->blocks[hit]);
        }

        hit *= p->cache_block;
        chunk = slow_chunk(p, q->prompt, hit, *budget);

        if (chunk == 0) {
            return;
        }

        memmove(slow.waiting, slow.waiting + 1,
                --slow.nwaiting * sizeof(uint32_t));

        s = &slow.running[slow.nrunning++];
        s->request = i;
        s->computed = hit;
        s->generated = 0;
        s->chunk = chunk;
        s->planned = 1;

        out[i].cached = hit;
        *budget -= chunk;
    }
}


static void
slow_start(const engine_params_t *p, const replay_workload_t *w,
    replay_answer_t *out, double now)
{
    double       tokens, decoding;
    size_t       i;
    uint32_t     budget, prompt;
    slow_seq_t  *s;

    budget = p->max_num_batched_tokens;

    for (i = 0; i < slow.nrunning; i++) {
        s = &slow.running[i];
        s->planned = 0;
        s->chunk = 0;
        prompt = w->requests[s->request].prompt;

        if (budget == 0) {
            continue;
        }

        if (s->computed == prompt) {
            s->planned = 1;
            budget--;
            continue;
        }

        s->chunk = slow_chunk(p, prompt, s->computed, budget);
        s->planned = (s->chunk != 0);
        budget -= s->chunk;
    }

    slow_admit(p, w, out, &budget);

    tokens = 0;
    decoding = 0;
    slow.busy = 0;

    for (i = 0; i < slow.nrunning; i++) {
        s = &slow.running[i];
        slow.busy |= s->planned;
        tokens += s->chunk;
        decoding += (s->planned && s->chunk == 0);
    }

    slow.end = now + p->step_base + p->decode_seq * decoding
               + p->prefill_token * tokens;
}


static void
slow_finish(const engine_params_t *p, const replay_workload_t *w,
    replay_answer_t *out)
{
    size_t                   i, n;
    uint32_t                 b;
    slow_seq_t               s;
    const replay_request_t  *q;

    n = 0;

    for (i = 0; i < slow.nrunning; i++) {
        s = slow.running[i];
        q = &w->requests[s.request];

        if (s.planned) {
            s.computed += s.chunk;

            for (b = 0; s.chunk != 0 && b < q->nblocks
                        && b < s.computed / p->cache_block; b++)
            {
                slow_touch(p, q->blocks[b]);
            }

            if (s.computed == q->prompt) {
                s.generated++;
                out[s.request].done = slow.end + p->overhead;
            }

            if (s.computed == q->prompt && s.generated == 1) {
                out[s.request].first = slow.end + p->overhead;
            }
        }

        if (s.generated < q->output) {
            slow.running[n++] = s;
        }
    }

    slow.nrunning = n;
}


/* One replica, all of its requests, from the beginning to the end. */

static void
slow_replica(const replay_config_t *cf, const replay_workload_t *w,
    const replay_answer_t *routed, uint32_t replica, replay_answer_t *out)
{
    size_t           i;
    uint32_t         b;
    engine_params_t  p;

    p = cf->engine;
    p.step_base /= cf->speed[replica];
    p.decode_seq /= cf->speed[replica];
    p.prefill_token /= cf->speed[replica];
    p.overhead /= cf->speed[replica];

    memset(&slow, 0, sizeof(slow));

    for (i = 0; i < w->nwarm; i++) {
        for (b = 0; w->warm[i].cached && w->warm[i].replica == replica
                    && b < w->warm[i].nblocks; b++)
        {
            slow_touch(&p, w->warm[i].blocks[b]);
        }
    }

    for (i = 0; i < w->n; i++) {

        if (routed[i].replica != replica) {
            continue;
        }

        while (slow.busy && slow.end < w->requests[i].t) {
            slow_finish(&p, w, out);
            slow_start(&p, w, out, slow.end);
        }

        slow.waiting[slow.nwaiting++] = (uint32_t) i;

        if (!slow.busy) {
            slow_start(&p, w, out, w->requests[i].t);
        }
    }

    while (slow.busy) {
        slow_finish(&p, w, out);
        slow_start(&p, w, out, slow.end);
    }

    assert_int_equal(slow.nwaiting, 0);
    assert_int_equal(slow.nrunning, 0);
}


static void
config(replay_config_t *cf, const char *scenario, uint32_t replicas)
{
    size_t  i;

    memset(cf, 0, sizeof(*cf));

    engine_params_init(&cf->engine);
    cf->scenario = scenario;
    cf->replicas = replicas;
    cf->routers = 1;
    cf->trace_speed = 1;
    cf->load = 1;
    cf->work = aibrix_work_default;

    for (i = 0; i < REPLAY_MAX_REPLICAS; i++) {
        cf->speed[i] = 1;
    }
}


static const replay_strategy_t *
strategy(const char *name)
{
    const replay_strategy_t  *s;

    s = replay_strategy(name, strlen(name));
    assert_non_null(s);

    return s;
}


static void
compare(const replay_config_t *cf, const char *name, uint64_t seed)
{
    size_t              i;
    uint32_t            r;
    replay_answer_t    *fast, *again;
    replay_totals_t     totals;
    replay_workload_t   w;

    assert_null(replay_scenario(cf, seed, &w));

    fast = replay_alloc(w.memory, w.n * sizeof(replay_answer_t));
    again = replay_alloc(w.memory, w.n * sizeof(replay_answer_t));

    replay_run(cf, &w, strategy(name), seed, fast, &totals);

    for (r = 0; r < cf->replicas; r++) {
        slow_replica(cf, &w, fast, r, again);
    }

    for (i = 0; i < w.n; i++) {
        assert_true(fast[i].first > w.requests[i].t);
        assert_true(fabs(fast[i].first - again[i].first) < MICROSECOND);
        assert_true(fabs(fast[i].done - again[i].done) < MICROSECOND);
        assert_int_equal(fast[i].cached, again[i].cached);
    }

    replay_workload_free(&w);
}


static void
test_all_scenarios(void **state)
{
    uint32_t            n;
    const char *const  *s;
    replay_config_t     cf;

    (void) state;

    for (s = replay_scenarios; *s != NULL; s++) {
        for (n = 1; n <= 5; n += 2) {
            config(&cf, *s, n);
            compare(&cf, "least-work", n);

            cf.arrivals = REPLAY_POISSON;
            compare(&cf, "prefix-cache", n + 10);

            cf.arrivals = REPLAY_BURSTS;
            cf.output_sigma = 0.8;
            compare(&cf, "random", n + 20);
        }
    }
}


static void
test_other_engines(void **state)
{
    replay_config_t  cf;

    (void) state;

    config(&cf, "cold", 2);
    cf.engine.kv_blocks = 12;
    compare(&cf, "least-request", 1);

    config(&cf, "hot-50", 3);
    cf.speed[1] = 0.5;
    compare(&cf, "least-work", 2);

    config(&cf, "hot-90", 2);
    cf.engine.max_num_seqs = 32;
    cf.routers = 2;
    compare(&cf, "least-work", 3);

    config(&cf, "multi-turn", 2);
    assert_int_equal(engine_params_set(&cf.engine, "profile=h100-8b"),
                     ENGINE_OK);
    cf.load = 10;
    compare(&cf, "load-aware", 4);
}


/* Every strategy and rival answers every request; twice the same. */

static void
test_deterministic(void **state)
{
    size_t              i, k;
    replay_answer_t    *a, *b;
    replay_config_t     cf;
    replay_totals_t     totals;
    replay_workload_t   w;

    (void) state;

    config(&cf, "hot-50", 4);
    cf.arrivals = REPLAY_POISSON;
    assert_null(replay_scenario(&cf, 5, &w));

    a = replay_alloc(w.memory, w.n * sizeof(replay_answer_t));
    b = replay_alloc(w.memory, w.n * sizeof(replay_answer_t));

    for (i = 0; i < REPLAY_STRATEGIES; i++) {
        replay_run(&cf, &w, &replay_table[i], 5, a, &totals);
        replay_run(&cf, &w, &replay_table[i], 5, b, &totals);

        for (k = 0; k < w.n; k++) {
            assert_true(a[k].done > w.requests[k].t);
            assert_true(a[k].done == b[k].done);
            assert_int_equal(a[k].replica, b[k].replica);
        }
    }

    replay_workload_free(&w);
}


static void
test_scenario_shapes(void **state)
{
    size_t             i, hot;
    replay_config_t    cf;
    replay_workload_t  w;

    (void) state;

    config(&cf, "hot-90", 2);
    assert_null(replay_scenario(&cf, 1, &w));
    assert_int_equal(w.n, 96);

    for (hot = 0, i = 0; i < w.n; i++) {
        hot += (w.requests[i].blocks == w.warm[0].blocks);
        assert_in_range(w.requests[i].prompt, 5040, 5056);
        assert_int_equal(w.requests[i].nblocks, 3);
        assert_true(fabs(w.requests[i].t - (double) i / 1.6) < 1e-9);
    }

    assert_int_equal(hot, 86);
    assert_int_equal(w.nwarm, 8);
    replay_workload_free(&w);

    /* six groups are credited to the first replica, two to the second */
    config(&cf, "warm-skewed", 2);
    assert_null(replay_scenario(&cf, 1, &w));
    assert_int_equal(w.nwarm, 16);

    for (hot = 0, i = 0; i < w.nwarm; i++) {
        assert_true(w.warm[i].cached);
        hot += (w.warm[i].indexed && w.warm[i].replica == 0);
    }

    assert_int_equal(hot, 6);
    replay_workload_free(&w);
}


static const char *
trace(const char *text, replay_config_t *cf, replay_workload_t *w)
{
    int          fd;
    char         name[] = "/tmp/test_replay.XXXXXX";
    FILE        *f;
    const char  *error;

    fd = mkstemp(name);
    assert_true(fd != -1);
    f = fdopen(fd, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);

    config(cf, "trace", 2);
    cf->trace = name;
    cf->trace_speed = 2;
    (void) engine_params_set(&cf->engine, "profile=h100-8b");

    error = replay_scenario(cf, 1, w);
    remove(name);

    return error;
}


static void
test_trace(void **state)
{
    uint32_t           i;
    replay_config_t    cf;
    replay_workload_t  w;

    (void) state;

    assert_null(trace(
        "{\"timestamp\": 3000, \"input_length\": 1000, \"output_length\": 7,"
        " \"hash_ids\": [1, 3]}\n\n"
        "{\"hash_ids\":[1,2],\"output_length\":5,\"input_length\":1024,"
        "\"timestamp\":1000}\n", &cf, &w));

    assert_int_equal(w.n, 2);
    assert_true(w.requests[0].t == 0.5 && w.requests[1].t == 1.5);
    assert_int_equal(w.requests[0].nhashes, 32);
    assert_int_equal(w.requests[0].nblocks, 64);
    assert_int_equal(w.requests[1].nblocks, 62);

    /* the first 512 tokens are 16 blocks of the router, 32 of the engine */
    for (i = 0; i < 31; i++) {
        assert_int_equal(w.requests[0].hashes[i] == w.requests[1].hashes[i],
                         i < 16);
    }

    for (i = 0; i < 62; i++) {
        assert_int_equal(w.requests[0].blocks[i] == w.requests[1].blocks[i],
                         i < 32);
    }

    replay_workload_free(&w);

    assert_non_null(trace("", &cf, &w));
    replay_workload_free(&w);
    assert_non_null(trace("{\"timestamp\":1}\n", &cf, &w));
    replay_workload_free(&w);
    assert_non_null(trace("{\"timestamp\":1,\"input_length\":9,"
                          "\"output_length\":1,\"hash_ids\":[x]}\n", &cf,
                          &w));
    replay_workload_free(&w);
}


static void
test_quantiles(void **state)
{
    double  v[5] = { 5, 1, 4, 2, 3 };

    (void) state;

    assert_float_equal(replay_quantile(v, 5, 0.5), 3, 1e-12);
    assert_float_equal(replay_quantile(v, 5, 0.95), 4.8, 1e-12);
    assert_float_equal(replay_quantile(v, 1, 0.95), 1, 1e-12);
    assert_float_equal(replay_quantile(v, 5, 1), 5, 1e-12);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_all_scenarios),
        cmocka_unit_test(test_other_engines),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_scenario_shapes),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_quantiles)
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
