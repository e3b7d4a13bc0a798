
/* The counters: sums, bounds, recycling, races, and death at any place. */

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "stats.h"


#define PEERS    16
#define KINDS    (AIBRIX_MODELS + 1)
#define NOBODY   UINT32_MAX


static void *
shared(size_t size)
{
    void  *p;

    p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
             -1, 0);
    assert_true(p != MAP_FAILED);

    return p;
}


static aibrix_stats_t *
new_stats(uint32_t peers)
{
    return aibrix_stats_init(shared(aibrix_stats_size(peers)), peers);
}


static void
free_stats(aibrix_stats_t *st, uint32_t peers)
{
    assert_int_equal(munmap(st, aibrix_stats_size(peers)), 0);
}


static aibrix_span_t
span(const char *s)
{
    aibrix_span_t  r = { s, strlen(s) };

    return r;
}


static uint32_t
model(aibrix_stats_t *st, const char *name)
{
    aibrix_span_t  s;

    s = span(name);

    return aibrix_stats_model(st, &s);
}


static uint32_t
model_n(aibrix_stats_t *st, uint32_t n)
{
    char  name[32];

    (void) snprintf(name, sizeof(name), "model-%u", n);

    return model(st, name);
}


/* The numbers of model-0, model-1, and so on. */

static uint32_t  numbers[AIBRIX_MODELS];


static void
name_models(aibrix_stats_t *st, uint32_t n)
{
    while (n-- > 0) {
        numbers[n] = model_n(st, n);
    }
}


static void
assert_span(aibrix_span_t s, const char *want)
{
    assert_non_null(s.data);
    assert_int_equal(s.len, strlen(want));
    assert_memory_equal(s.data, want, s.len);
}


static void
done(aibrix_stats_t *st, uint32_t peer, uint32_t m, uint32_t strategy,
    uint32_t status)
{
    aibrix_done_t  d;

    memset(&d, 0, sizeof(d));

    d.peer = peer;
    d.model = m;
    d.strategy = strategy;
    d.status = status;
    d.outcome = (status < 400) ? AIBRIX_FINISHED : AIBRIX_ERROR_STATUS;
    d.duration_ms = 100;
    d.prompt_tokens = 7;
    d.completion_tokens = 5;
    d.cached_tokens = 3;

    aibrix_stats_done(st, &d);
}


static uint64_t
ended(const aibrix_series_t *s)
{
    uint32_t  i;
    uint64_t  n;

    n = 0;

    for (i = 0; i < AIBRIX_OUTCOMES; i++) {
        n += s->outcomes[i];
    }

    return n;
}


static uint64_t
bucket_sum(const aibrix_hist_t *h)
{
    uint32_t  i;
    uint64_t  n;

    n = 0;

    for (i = 0; i <= h->n; i++) {
        n += h->bucket[i];
    }

    return n;
}


/*
 * All series by peer (PEERS is nobody) and model; fails on one told twice,
 * but for peers below from, which are reset meanwhile.
 */

typedef struct {
    unsigned         n;
    uint8_t          seen[PEERS + 1][KINDS];
    aibrix_series_t  s[PEERS + 1][KINDS];
} table_t;


static table_t  table, before;


static void
read_table_from(const aibrix_stats_t *st, table_t *t, uint32_t from)
{
    uint32_t         at, peer;
    aibrix_series_t  s;

    memset(t, 0, sizeof(table_t));
    at = 0;

    while (aibrix_stats_series(st, &at, &s)) {
        peer = (s.peer == NOBODY) ? PEERS : s.peer;

        assert_in_range(peer, 0, PEERS);
        assert_in_range(s.model, 0, KINDS - 1);
        assert_false(peer >= from && t->seen[peer][s.model]);

        assert_int_equal(s.ttft.count, bucket_sum(&s.ttft));
        assert_int_equal(s.gap.count, bucket_sum(&s.gap));
        assert_int_equal(s.duration.count, bucket_sum(&s.duration));
        assert_true(ended(&s) + s.ttft.count + s.gap.count > 0);

        t->n++;
        t->seen[peer][s.model] = 1;
        t->s[peer][s.model] = s;
    }
}


static void
read_table(const aibrix_stats_t *st, table_t *t)
{
    read_table_from(st, t, 0);
}


static uint8_t  told[PEERS + 1][KINDS][AIBRIX_STRATEGIES][AIBRIX_CLASSES];


static uint64_t
count_requests(const aibrix_stats_t *st, uint32_t *series)
{
    uint8_t           *mark;
    uint32_t           at;
    uint64_t           n;
    aibrix_requests_t  r;

    n = 0;
    at = 0;
    *series = 0;
    memset(told, 0, sizeof(told));

    while (aibrix_stats_requests(st, &at, &r)) {
        mark = &told[(r.peer == NOBODY) ? PEERS : r.peer][r.model]
                    [r.strategy][r.status];
        assert_false(*mark);
        *mark = 1;

        n += r.count;
        (*series)++;
    }

    return n;
}


static void
test_size(void **state)
{
    (void) state;

    assert_true(aibrix_stats_size(4096) < 8 * 1024 * 1024);
    assert_true(aibrix_stats_size(64) < 300 * 1024);
    assert_true(aibrix_stats_size(16) < 300 * 1024);
    assert_true(aibrix_stats_size(64) < aibrix_stats_size(65));
}


static void
test_models(void **state)
{
    char             cut[200];
    uint32_t         i, m, seen;
    aibrix_span_t    s;
    aibrix_stats_t  *st;

    (void) state;

    st = new_stats(PEERS);
    seen = model(st, "llama");

    assert_true(seen < AIBRIX_MODELS);
    assert_int_equal(model(st, "llama"), seen);
    assert_int_not_equal(model(st, "llama2"), seen);
    assert_span(aibrix_stats_model_name(st, seen), "llama");
    assert_span(aibrix_stats_model_name(st, AIBRIX_MODEL_OTHER), "other");
    assert_int_equal(model(st, "other"), AIBRIX_MODEL_OTHER);

    m = model(st, "");
    assert_true(m < AIBRIX_MODELS);
    assert_span(aibrix_stats_model_name(st, m), "");

    /* A cut never leaves a part of a character, nor two equal labels. */

    memset(cut, 'x', sizeof(cut));
    memcpy(cut + 127, "\xc3\xa9", 2);
    s.data = cut;
    s.len = 200;
    m = aibrix_stats_model(st, &s);
    assert_int_equal(aibrix_stats_model_name(st, m).len, 127);
    s.len = 127;
    assert_int_equal(aibrix_stats_model(st, &s), m);

    cut[127] = 'a';
    s.len = 200;
    m = aibrix_stats_model(st, &s);
    assert_int_equal(aibrix_stats_model_name(st, m).len, 128);
    s.len = 128;
    assert_int_equal(aibrix_stats_model(st, &s), m);

    /* Names that would be shown alike are one. */

    m = model(st, "a\x01\xff");
    assert_span(aibrix_stats_model_name(st, m), "a\xef\xbf\xbd\xef\xbf\xbd");
    assert_int_equal(model(st, "a\n\x80"), m);
    assert_int_not_equal(model(st, "a\"\\"), m);

    seen = 0;

    for (i = 0; i < 200; i++) {
        m = model_n(st, i);
        seen += (m == AIBRIX_MODEL_OTHER);
        assert_int_equal(model_n(st, i), m);
    }

    assert_int_equal(seen, 200 - (AIBRIX_MODELS - 7));
    assert_int_equal(model(st, "llama"), model(st, "llama"));
    assert_true(model(st, "llama") < AIBRIX_MODELS);

    for (i = 0; i < AIBRIX_MODELS; i++) {
        assert_non_null(aibrix_stats_model_name(st, i).data);
    }

    free_stats(st, PEERS);
}


static void
test_decision(void **state)
{
    static const uint32_t  percent[] = { 0, 1, 25, 26, 50, 51, 75, 76, 100 };

    uint32_t               i, m;
    aibrix_stats_t        *st;
    aibrix_decision_t      d;
    aibrix_peer_stats_t    p;
    aibrix_model_stats_t   ms;

    (void) state;

    st = new_stats(PEERS);
    m = model(st, "m");

    for (i = 0; i < 9; i++) {
        memset(&d, 0, sizeof(d));
        d.model = m;
        d.peer = 3;
        d.selection = i % 2 ? AIBRIX_PREFIX_MATCH : AIBRIX_LEAST_REQUEST;
        d.percent = percent[i];
        d.blocks = 10;
        d.matched = i;
        d.imbalanced = (i == 4);
        d.ns = (uint64_t) 1000 << i;
        aibrix_stats_decision(st, &d);
    }

    assert_true(aibrix_stats_model_read(st, m, &ms));
    assert_int_equal(ms.selections[AIBRIX_PREFIX_MATCH], 4);
    assert_int_equal(ms.selections[AIBRIX_LEAST_REQUEST], 5);
    assert_int_equal(ms.percents[AIBRIX_PERCENT_0], 1);
    assert_int_equal(ms.percents[AIBRIX_PERCENT_25], 2);
    assert_int_equal(ms.percents[AIBRIX_PERCENT_50], 2);
    assert_int_equal(ms.percents[AIBRIX_PERCENT_75], 2);
    assert_int_equal(ms.percents[AIBRIX_PERCENT_100], 2);
    assert_int_equal(ms.imbalances, 1);
    assert_int_equal(ms.blocks, 90);
    assert_int_equal(ms.matched, 36);
    assert_int_equal(ms.latency.count, 9);
    assert_int_equal(ms.latency.sum, 511000);
    assert_int_equal(ms.latency.per_second, 1000000000);

    /* 1, 2, 4, 8, 16, 32, 64, 128 and 256 us */

    for (i = 0; i < 9; i++) {
        assert_int_equal(ms.latency.bucket[i], 1);
    }

    for (i = 0; i < 15; i++) {
        assert_int_equal(ms.latency.bounds[3 + i], 10000ULL << i);
    }

    assert_true(aibrix_stats_peer_read(st, 3, &p));
    assert_int_equal(p.decisions, 9);
    assert_int_equal(p.blocks, 90);
    assert_int_equal(p.matched, 36);

    assert_false(aibrix_stats_model_read(st, (m + 1) % AIBRIX_MODELS, &ms));
    assert_true(aibrix_stats_model_read(st, AIBRIX_MODEL_OTHER, &ms));
    assert_int_equal(ms.latency.count, 0);

    /* Peers and models without a number are counted, too. */

    d.model = 1000;
    d.peer = NOBODY;
    aibrix_stats_decision(st, &d);
    assert_true(aibrix_stats_model_read(st, AIBRIX_MODEL_OTHER, &ms));
    assert_int_equal(ms.latency.count, 1);
    assert_true(aibrix_stats_peer_read(st, NOBODY, &p));
    assert_int_equal(p.decisions, 1);

    aibrix_stats_error(st, m, AIBRIX_ERROR_NO_TARGET);
    aibrix_stats_error(st, m, AIBRIX_ERRORS);
    assert_true(aibrix_stats_model_read(st, m, &ms));
    assert_int_equal(ms.errors[AIBRIX_ERROR_NO_TARGET], 1);
    assert_int_equal(ms.errors[AIBRIX_ERROR_TOKENIZE], 0);

    aibrix_stats_fallback(st, 2, AIBRIX_FALLBACK_NOT_JSON);
    aibrix_stats_fallback(st, 1000, AIBRIX_FALLBACK_NO_PEER);
    aibrix_stats_fallback(st, 2, AIBRIX_FALLBACKS);
    assert_int_equal(aibrix_stats_fallbacks(st, 2, AIBRIX_FALLBACK_NOT_JSON),
                     1);
    assert_int_equal(aibrix_stats_fallbacks(st, 2, AIBRIX_FALLBACK_NO_BODY),
                     0);
    assert_int_equal(aibrix_stats_fallbacks(st, AIBRIX_STRATEGY_OTHER,
                                            AIBRIX_FALLBACK_NO_PEER), 1);
    assert_int_equal(aibrix_stats_fallbacks(st, 2, AIBRIX_FALLBACKS), 0);

    free_stats(st, PEERS);
}


static void
test_series(void **state)
{
    uint32_t             a, b, n;
    aibrix_series_t     *s;
    aibrix_stats_t      *st;
    aibrix_requests_t    r;
    aibrix_peer_stats_t  p;

    (void) state;

    st = new_stats(PEERS);
    a = model(st, "a");
    b = model(st, "b");

    read_table(st, &table);
    assert_int_equal(table.n, 0);

    /* Bounds are inclusive: 5 ms is in the first bucket, 60 s not beyond. */

    aibrix_stats_first_token(st, 1, a, 0);
    aibrix_stats_first_token(st, 1, a, 5);
    aibrix_stats_first_token(st, 1, a, 6);
    aibrix_stats_first_token(st, 1, a, 60000);
    aibrix_stats_first_token(st, 1, a, 60001);
    aibrix_stats_gap(st, 1, a, 1);
    aibrix_stats_gap(st, 1, a, 5001);
    aibrix_stats_gaps(st, 1, b, 3, 7);
    done(st, 1, a, 2, 200);
    done(st, 1, a, 2, 404);
    done(st, 1, b, 2, 503);
    done(st, NOBODY, a, 1000, 999);

    read_table(st, &table);
    assert_int_equal(table.n, 3);

    s = &table.s[1][a];
    assert_int_equal(s->ttft.count, 5);
    assert_int_equal(s->ttft.bucket[0], 2);
    assert_int_equal(s->ttft.bucket[1], 1);
    assert_int_equal(s->ttft.bucket[s->ttft.n - 1], 1);
    assert_int_equal(s->ttft.bucket[s->ttft.n], 1);
    assert_int_equal(s->ttft.bounds[0], 5);
    assert_int_equal(s->ttft.bounds[s->ttft.n - 1], 60000);
    assert_int_equal(s->ttft.sum, 120012);
    assert_int_equal(s->ttft.per_second, 1000);
    assert_int_equal(s->gap.bucket[0], 1);
    assert_int_equal(s->gap.bucket[s->gap.n], 1);
    assert_int_equal(s->gap.bounds[0], 1);
    assert_int_equal(s->gap.bounds[s->gap.n - 1], 5000);
    assert_int_equal(s->duration.bounds[0], 50);
    assert_int_equal(s->duration.bounds[s->duration.n - 1], 600000);
    assert_int_equal(s->duration.bucket[1], 2);
    assert_int_equal(s->outcomes[AIBRIX_FINISHED], 1);
    assert_int_equal(s->outcomes[AIBRIX_ERROR_STATUS], 1);
    assert_int_equal(s->prompt_tokens, 14);
    assert_int_equal(s->completion_tokens, 10);
    assert_int_equal(s->cached_tokens, 6);

    s = &table.s[1][b];
    assert_int_equal(s->gap.count, 7);
    assert_int_equal(s->gap.sum, 21);
    assert_int_equal(s->ttft.count, 0);

    assert_int_equal(ended(&table.s[PEERS][a]), 1);

    aibrix_stats_fail(st, 1);
    assert_true(aibrix_stats_peer_read(st, 1, &p));
    assert_int_equal(p.fails, 1);
    assert_int_equal(p.all.ttft.count, 5);
    assert_int_equal(p.all.gap.count, 9);
    assert_int_equal(p.all.prompt_tokens, 21);
    assert_int_equal(ended(&p.all), 3);

    assert_int_equal(count_requests(st, &n), 4);
    assert_int_equal(n, 4);

    n = 0;

    while (aibrix_stats_requests(st, &n, &r)) {
        assert_int_equal(r.count, 1);

        if (r.peer == NOBODY) {
            assert_int_equal(r.model, a);
            assert_int_equal(r.strategy, AIBRIX_STRATEGY_OTHER);
            assert_int_equal(r.status, 0);

        } else {
            assert_int_equal(r.peer, 1);
            assert_int_equal(r.strategy, 2);
            assert_int_equal(r.status, r.model == b ? 5
                                       : r.status == 2 ? 2 : 4);
        }
    }

    free_stats(st, PEERS);
}


/* Nothing is lost when a table is full, and nothing is told twice. */

static void
test_overflow(void **state)
{
    uint32_t         i, k, n, round;
    uint64_t         sum, others;
    aibrix_stats_t  *st;

    (void) state;

    st = new_stats(PEERS);

    name_models(st, AIBRIX_MODELS);

    /* "Other" by itself, and soon by what has no room. */

    done(st, NOBODY, AIBRIX_MODEL_OTHER, AIBRIX_STRATEGY_OTHER, 200);
    done(st, NOBODY, AIBRIX_MODEL_OTHER, 0, 200);

    for (round = 0; round < 2; round++) {
        for (i = 0; i <= PEERS; i++) {
            for (k = 0; k < AIBRIX_MODELS; k++) {
                done(st, i < PEERS ? i : NOBODY, k, k % 8, 200);
                done(st, i < PEERS ? i : NOBODY, k, k % 8, 400);
            }
        }
    }

    read_table(st, &table);
    sum = 0;
    others = 0;

    for (i = 0; i <= PEERS; i++) {
        for (k = 0; k < KINDS; k++) {
            sum += ended(&table.s[i][k]);
        }

        others += ended(&table.s[i][AIBRIX_MODEL_OTHER]);
    }

    assert_int_equal(sum, 4 * (PEERS + 1) * AIBRIX_MODELS + 2);
    assert_true(others > 0);
    assert_true(table.n > 200);

    /* The table of requests takes 1024 series. */

    assert_int_equal(count_requests(st, &n), sum);
    assert_in_range(n, 1000, 1024 + (PEERS + 1) * AIBRIX_CLASSES);

    free_stats(st, PEERS);
}


static void
fill_peer(aibrix_stats_t *st, uint32_t peer, uint32_t models)
{
    uint32_t           k, m;
    aibrix_decision_t  d;

    for (k = 0; k < models; k++) {
        m = numbers[k];
        aibrix_stats_first_token(st, peer, m, 20);
        aibrix_stats_gaps(st, peer, m, 20, 4);
        done(st, peer, m, 0, 200);
        done(st, peer, m, 1, 500);
    }

    memset(&d, 0, sizeof(d));
    d.peer = peer;
    d.blocks = 4;
    d.matched = 1;
    d.at = 0xabcd0000 + peer;
    aibrix_stats_decision(st, &d);
    aibrix_stats_fail(st, peer);
    done(st, peer, AIBRIX_MODEL_OTHER, 0, 200);
}


static void
assert_filled(const aibrix_stats_t *st, uint32_t peer, uint32_t models,
    const table_t *t)
{
    uint32_t             k, m;
    aibrix_peer_stats_t  p;

    for (k = 0; k < models; k++) {
        m = numbers[k];
        assert_true(t->seen[peer][m]);
        assert_int_equal(t->s[peer][m].ttft.count, 1);
        assert_int_equal(t->s[peer][m].gap.count, 4);
        assert_int_equal(t->s[peer][m].duration.count, 2);
        assert_int_equal(ended(&t->s[peer][m]), 2);
        assert_int_equal(t->s[peer][m].prompt_tokens, 14);
    }

    assert_int_equal(ended(&t->s[peer][AIBRIX_MODEL_OTHER]), 1);

    assert_true(aibrix_stats_peer_read(st, peer, &p));
    assert_int_equal(p.decisions, 1);
    assert_int_equal(p.fails, 1);
    assert_int_equal(p.blocks, 4);
    assert_int_equal(p.matched, 1);
    assert_int_equal(ended(&p.all), 2 * models + 1);
}


static void
test_reset(void **state)
{
    uint32_t             i, k, n;
    aibrix_stats_t      *st;
    aibrix_decision_t    d[AIBRIX_RECENT];
    aibrix_peer_stats_t  p;

    (void) state;

    st = new_stats(PEERS);

    name_models(st, 8);

    for (i = 0; i < PEERS; i++) {
        fill_peer(st, i, 8);
    }

    aibrix_stats_reset_peer(st, 5);
    aibrix_stats_reset_peer(st, NOBODY);

    read_table(st, &table);

    for (i = 0; i < PEERS; i++) {
        if (i != 5) {
            assert_filled(st, i, 8, &table);
            continue;
        }

        for (k = 0; k < KINDS; k++) {
            assert_false(table.seen[i][k]);
        }
    }

    assert_true(aibrix_stats_peer_read(st, 5, &p));
    assert_int_equal(p.decisions + p.fails + p.blocks + ended(&p.all), 0);
    assert_int_equal(aibrix_stats_recent(st, d, AIBRIX_RECENT), PEERS - 1);
    assert_int_equal(count_requests(st, &n), (PEERS - 1) * 17);

    /* Used again, again and again: no slot is lost, none keeps a count. */

    fill_peer(st, 5, 8);

    for (i = 0; i < 5000; i++) {
        aibrix_stats_reset_peer(st, i % PEERS);
        fill_peer(st, i % PEERS, 8);

        if (i % 97 == 0 || i == 4999) {
            read_table(st, &table);
            assert_int_equal(table.n, PEERS * 9);

            for (k = 0; k < PEERS; k++) {
                assert_filled(st, k, 8, &table);
            }

            assert_int_equal(count_requests(st, &n), PEERS * 17);
            assert_int_equal(n, PEERS * 17);
        }
    }

    free_stats(st, PEERS);
}


static void
test_recent(void **state)
{
    char               *mem;
    size_t              at, n;
    uint64_t            mark;
    uint32_t            i;
    aibrix_stats_t     *st;
    aibrix_decision_t   d, got[AIBRIX_RECENT + 1];

    (void) state;

    st = new_stats(PEERS);
    assert_int_equal(aibrix_stats_recent(st, got, AIBRIX_RECENT), 0);

    for (i = 1; i <= 300; i++) {
        memset(&d, 0, sizeof(d));
        d.model = i % KINDS;
        d.peer = (i % 17 < PEERS) ? i % 17 : NOBODY;
        d.strategy = i % AIBRIX_STRATEGIES;
        d.selection = i % AIBRIX_SELECTIONS;
        d.percent = i % 101;
        d.blocks = UINT32_MAX - i;
        d.matched = i * 3;
        d.imbalanced = i % 2;
        d.ns = i * 1000;
        d.at = 1700000000000 + i;
        aibrix_stats_decision(st, &d);

        n = aibrix_stats_recent(st, got, AIBRIX_RECENT + 1);
        assert_int_equal(n, i < AIBRIX_RECENT ? i : AIBRIX_RECENT);
        assert_memory_equal(&got[0], &d, sizeof(d));
        assert_int_equal(got[n - 1].at, 1700000000000 + i - (n - 1));
    }

    assert_int_equal(aibrix_stats_recent(st, got, 3), 3);

    /* A slot that holds parts of two decisions is not told. */

    mark = 1700000000000 + 250;
    mem = (char *) st;

    for (at = 0; at < aibrix_stats_size(PEERS); at += 8) {
        if (memcmp(mem + at, &mark, 8) == 0) {
            mem[at] ^= 1;
        }
    }

    n = aibrix_stats_recent(st, got, AIBRIX_RECENT);
    assert_int_equal(n, AIBRIX_RECENT - 1);

    for (i = 0; i < n; i++) {
        assert_int_not_equal(got[i].matched, 250 * 3);
    }

    free_stats(st, PEERS);
}


static void
test_quantile(void **state)
{
    static const uint64_t  bounds[] = { 10, 20, 40 };

    aibrix_hist_t  h, sum;

    (void) state;

    memset(&h, 0, sizeof(h));
    h.bounds = bounds;
    h.n = 3;

    assert_float_equal(aibrix_hist_quantile(&h, 0.5), 0, 1e-9);

    h.bucket[1] = 4;
    h.bucket[2] = 4;
    h.count = 8;

    assert_float_equal(aibrix_hist_quantile(&h, 0), 10, 1e-9);
    assert_float_equal(aibrix_hist_quantile(&h, 0.25), 15, 1e-9);
    assert_float_equal(aibrix_hist_quantile(&h, 0.5), 20, 1e-9);
    assert_float_equal(aibrix_hist_quantile(&h, 0.75), 30, 1e-9);
    assert_float_equal(aibrix_hist_quantile(&h, 1), 40, 1e-9);
    assert_float_equal(aibrix_hist_quantile(&h, 7), 40, 1e-9);

    h.bucket[0] = 8;
    h.bucket[3] = 84;
    h.count = 100;

    assert_float_equal(aibrix_hist_quantile(&h, 0.04), 5, 1e-9);
    assert_float_equal(aibrix_hist_quantile(&h, 0.99), 40, 1e-9);

    sum = h;
    aibrix_hist_merge(&sum, &h);
    assert_int_equal(sum.count, 200);
    assert_int_equal(sum.bucket[3], 168);
    assert_float_equal(aibrix_hist_quantile(&sum, 0.04), 5, 1e-9);
}


static void
assert_escaped(size_t (*escape)(char *, size_t, const aibrix_span_t *),
    const char *src, size_t len, const char *want)
{
    char           buf[256], *tight;
    size_t         n, size;
    aibrix_span_t  s;

    s.data = src;
    s.len = len;

    n = escape(buf, sizeof(buf), &s);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(buf, want, n);

    /* In less room it is a head of that, and nothing is written beyond. */

    for (size = 0; size <= n; size++) {
        tight = malloc(size + 1);
        tight[size] = '\x55';
        assert_true(escape(tight, size, &s) <= size);
        assert_memory_equal(tight, want, escape(tight, size, &s));
        assert_int_equal(tight[size], '\x55');
        free(tight);
    }
}


#define FFFD  "\xef\xbf\xbd"


static void
test_escape(void **state)
{
    char           buf[8];
    aibrix_span_t  s;

    (void) state;

    assert_escaped(aibrix_escape_label, "", 0, "");
    assert_escaped(aibrix_escape_label, "a\\b\"c\nd", 7, "a\\\\b\\\"c\\nd");
    assert_escaped(aibrix_escape_label, "\0\r\t\x7f.", 5,
                   FFFD FFFD FFFD FFFD ".");
    assert_escaped(aibrix_escape_label, "\xc2\x85\xc2\xa0", 4,
                   FFFD "\xc2\xa0");
    assert_escaped(aibrix_escape_label, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
                   9, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");

    /* Stray, overlong, surrogate, too large, cut off. */

    assert_escaped(aibrix_escape_label, "\x80", 1, FFFD);
    assert_escaped(aibrix_escape_label, "\xc0\xaf", 2, FFFD FFFD);
    assert_escaped(aibrix_escape_label, "\xe0\x80\xaf", 3, FFFD FFFD FFFD);
    assert_escaped(aibrix_escape_label, "\xed\xa0\x80", 3, FFFD FFFD FFFD);
    assert_escaped(aibrix_escape_label, "\xf4\x90\x80\x80", 4,
                   FFFD FFFD FFFD FFFD);
    assert_escaped(aibrix_escape_label, "\xf8", 1, FFFD);
    assert_escaped(aibrix_escape_label, "a\xe2\x82", 3, "a" FFFD FFFD);
    assert_escaped(aibrix_escape_label, "\xe2\x82\"", 3, FFFD FFFD "\\\"");

    assert_escaped(aibrix_escape_json, "a\\b\"c\n\x1f\x7f", 8,
                   "a\\\\b\\\"c\\u000a\\u001f\\u007f");
    assert_escaped(aibrix_escape_json, "\0\xff\xc3\xa9", 4,
                   "\\u0000" FFFD "\xc3\xa9");

    s.data = "\"";
    s.len = 1;
    assert_int_equal(aibrix_escape_label(buf, 1, &s), 0);
}


static void
test_labels(void **state)
{
    (void) state;

    assert_string_equal(aibrix_percent_label(AIBRIX_PERCENT_0), "0");
    assert_string_equal(aibrix_percent_label(AIBRIX_PERCENT_100), "76-100");
    assert_string_equal(aibrix_percent_label(AIBRIX_PERCENTS), "other");
    assert_string_equal(aibrix_outcome_label(AIBRIX_REPLICA_GONE),
                        "replica_gone");
    assert_string_equal(aibrix_outcome_label(AIBRIX_OUTCOMES), "other");
    assert_string_equal(aibrix_error_label(AIBRIX_ERROR_NO_TARGET),
                        "no_target_pod");
    assert_string_equal(aibrix_error_label(AIBRIX_ERRORS), "other");
    assert_string_equal(aibrix_fallback_label(AIBRIX_FALLBACK_NO_PEER),
                        "no_peer");
    assert_string_equal(aibrix_fallback_label(AIBRIX_FALLBACKS), "other");
}


/* Several processes at once */

static volatile int  *go;

static uint32_t
next(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;

    return *seed;
}


static void
count_much(aibrix_stats_t *st, uint32_t seed, uint32_t n)
{
    uint32_t           peer, m;
    aibrix_decision_t  d;

    memset(&d, 0, sizeof(d));

    while (n-- > 0) {
        peer = next(&seed) % PEERS;
        m = model_n(st, next(&seed) % 10);

        d.peer = peer;
        d.model = m;
        d.blocks = 1;
        d.ns = d.at = (uint64_t) d.peer << 32 | m;
        d.matched = peer * 1000 + m;

        aibrix_stats_decision(st, &d);
        aibrix_stats_first_token(st, peer, m, 5);
        done(st, peer, m, 0, 200);
    }
}


static void
assert_not_less(const table_t *was, const table_t *is, uint32_t from)
{
    uint32_t  i, k, b;

    for (i = from; i <= PEERS; i++) {
        for (k = 0; k < KINDS; k++) {
            if (!was->seen[i][k]) {
                continue;
            }

            assert_true(is->seen[i][k]);
            assert_true(ended(&is->s[i][k]) >= ended(&was->s[i][k]));
            assert_true(is->s[i][k].duration.sum >= was->s[i][k].duration.sum);

            for (b = 0; b <= is->s[i][k].ttft.n; b++) {
                assert_true(is->s[i][k].ttft.bucket[b]
                            >= was->s[i][k].ttft.bucket[b]);
            }
        }
    }
}


static void
assert_recent_sound(const aibrix_stats_t *st)
{
    size_t             n;
    aibrix_decision_t  d[AIBRIX_RECENT];

    n = aibrix_stats_recent(st, d, AIBRIX_RECENT);

    while (n-- > 0) {
        assert_int_equal(d[n].at, (uint64_t) d[n].peer << 32 | d[n].model);
        assert_int_equal(d[n].ns, d[n].at);
        assert_int_equal(d[n].matched, d[n].peer * 1000 + d[n].model);
    }
}


/* from: the first peer that nobody resets. */

static void
watch(const aibrix_stats_t *st, const pid_t *pids, unsigned n, uint32_t from)
{
    int       status;
    unsigned  i;

    memset(&before, 0, sizeof(before));

    for (i = 0; i < n; /* void */ ) {
        read_table_from(st, &table, from);
        assert_not_less(&before, &table, from);
        assert_recent_sound(st);
        before = table;

        if (waitpid(pids[i], &status, WNOHANG) == pids[i]) {
            assert_true(WIFEXITED(status) || WTERMSIG(status) == SIGKILL);
            i++;
        }
    }

    read_table(st, &table);
}


static pid_t
counter(aibrix_stats_t *st, uint32_t seed, uint32_t n)
{
    pid_t  pid;

    pid = fork();

    if (pid == 0) {
        while (!*go) {
            (void) sched_yield();
        }

        count_much(st, seed, n);
        _exit(0);
    }

    assert_true(pid > 0);

    return pid;
}


static void
test_processes(void **state)
{
    pid_t                 pids[4];
    uint32_t              i, k, seed, expected[PEERS][KINDS];
    uint64_t              all;
    aibrix_stats_t       *st;
    aibrix_model_stats_t  m;

    (void) state;

    st = new_stats(PEERS);

    *go = 0;

    for (i = 0; i < 4; i++) {
        pids[i] = counter(st, i + 1, 20000);
    }

    *go = 1;

    watch(st, pids, 4, 0);
    assert_int_equal(table.n, PEERS * 10);
    memset(expected, 0, sizeof(expected));

    for (i = 0; i < 4; i++) {
        seed = i + 1;

        for (k = 0; k < 20000; k++) {
            uint32_t  peer = next(&seed) % PEERS;

            expected[peer][model_n(st, next(&seed) % 10)]++;
        }
    }

    for (i = 0; i < PEERS; i++) {
        for (k = 0; k < KINDS; k++) {
            assert_int_equal(ended(&table.s[i][k]), expected[i][k]);
            assert_int_equal(table.s[i][k].ttft.bucket[0], expected[i][k]);
        }
    }

    assert_int_equal(count_requests(st, &i), 80000);

    all = 0;

    for (i = 0; i < AIBRIX_MODELS; i++) {
        if (aibrix_stats_model_read(st, i, &m)) {
            assert_int_equal(m.blocks, m.latency.count);
            all += m.latency.count;
        }
    }

    assert_int_equal(all, 80000);
    free_stats(st, PEERS);
}


/*
 * Peers below 8 get a new owner all the time, and processes are killed.  What
 * is counted for the others is not lost; a count that was under way when its
 * peer was reset may be in another series.
 */

static void
test_resets_and_kills(void **state)
{
    pid_t            pids[3], victim;
    uint32_t         i, k, n, seed;
    uint64_t         sum, expected;
    aibrix_stats_t  *st;

    (void) state;

    st = new_stats(PEERS);

    for (i = 0; i < 2; i++) {
        pids[i] = counter(st, i + 1, 40000);
    }

    pids[2] = fork();

    if (pids[2] == 0) {
        seed = 99;

        for (i = 0; i < 40; i++) {
            victim = counter(st, 1000 + i, UINT32_MAX);

            for (k = 0; k < 20; k++) {
                aibrix_stats_reset_peer(st, next(&seed) % 8);
            }

            usleep(next(&seed) % 3000);
            (void) kill(victim, SIGKILL);
            (void) waitpid(victim, NULL, 0);
        }

        _exit(0);
    }

    watch(st, pids, 3, 8);

    expected = 0;
    sum = 0;

    for (i = 0; i < 2; i++) {
        seed = i + 1;

        for (k = 0; k < 40000; k++) {
            expected += (next(&seed) % PEERS >= 8);
            (void) next(&seed);
        }
    }

    for (i = 8; i < PEERS; i++) {
        for (k = 0; k < KINDS; k++) {
            sum += ended(&table.s[i][k]);
        }
    }

    assert_true(sum >= expected);

    /* No slot was lost: a fresh start finds room for everything. */

    name_models(st, 10);

    for (i = 0; i < PEERS; i++) {
        aibrix_stats_reset_peer(st, i);
    }

    read_table(st, &table);
    assert_int_equal(table.n, 0);
    assert_int_equal(count_requests(st, &n), 0);

    for (i = 0; i < PEERS; i++) {
        fill_peer(st, i, 10);
    }

    read_table(st, &table);
    assert_int_equal(table.n, PEERS * 11);

    for (i = 0; i < PEERS; i++) {
        assert_filled(st, i, 10, &table);
    }

    free_stats(st, PEERS);
}


/*
 * Death at any place: a child is stepped through one call; after each of its
 * instructions that changed the memory, a copy of it is what a death there
 * would have left, and check() looks at what others can do with that.
 */

static int
stepped(aibrix_stats_t *st, void (*call)(aibrix_stats_t *st),
    void (*check)(aibrix_stats_t *st), unsigned *changes)
{
    int     status;
    pid_t   pid;
    void   *last, *copy;
    size_t  size;

    size = aibrix_stats_size(PEERS);
    last = malloc(size);
    copy = shared(size);
    memcpy(last, st, size);
    *changes = 0;

    pid = fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
            _exit(77);
        }

        (void) raise(SIGSTOP);
        call(st);
        _exit(0);
    }

    assert_int_equal(waitpid(pid, &status, 0), pid);

    while (WIFSTOPPED(status)) {
        if (memcmp(last, st, size) != 0) {
            memcpy(last, st, size);
            memcpy(copy, st, size);
            check(copy);
            (*changes)++;
        }

        assert_int_equal(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }

    free(last);
    assert_int_equal(munmap(copy, size), 0);
    assert_true(WIFEXITED(status));

    return WEXITSTATUS(status) == 0;
}


static void
assert_recent_ordered(const aibrix_stats_t *st)
{
    size_t             i, n;
    aibrix_decision_t  d[AIBRIX_RECENT];

    n = aibrix_stats_recent(st, d, AIBRIX_RECENT);
    assert_in_range(n, AIBRIX_RECENT - 1, AIBRIX_RECENT);

    for (i = 1; i < n; i++) {
        assert_true(d[i].at < d[i - 1].at);
    }
}


static void
call_count(aibrix_stats_t *st)
{
    fill_peer(st, 2, 1);
}


static void
check_count(aibrix_stats_t *st)
{
    uint32_t          i, n;
    aibrix_series_t  *was, *is;

    assert_recent_ordered(st);
    read_table(st, &table);
    (void) count_requests(st, &n);
    assert_in_range(n, PEERS * 5 - 5, PEERS * 5);

    for (i = 0; i < PEERS; i++) {
        if (i != 2) {
            assert_filled(st, i, 2, &table);
        }
    }

    before = table;
    was = &before.s[2][numbers[0]];
    is = &table.s[2][numbers[0]];

    fill_peer(st, 2, 1);
    read_table(st, &table);
    assert_not_less(&before, &table, 0);
    assert_int_equal(ended(is), ended(was) + 2);
    assert_int_equal(is->gap.count, was->gap.count + 4);
}


static void
call_name(aibrix_stats_t *st)
{
    (void) model(st, "a model of some length, over several words");
}


static void
check_name(aibrix_stats_t *st)
{
    uint32_t              i, m, n;
    aibrix_span_t         s;
    aibrix_model_stats_t  ms;

    for (i = 0; i < AIBRIX_MODELS; i++) {
        s = aibrix_stats_model_name(st, i);
        assert_int_equal(aibrix_stats_model_read(st, i, &ms), s.data != NULL);
        assert_true(s.data == NULL || s.len == 7 || s.len == 42);
    }

    n = model(st, "another");
    m = model(st, "a model of some length, over several words");
    assert_int_not_equal(m, n);
    assert_span(aibrix_stats_model_name(st, m),
                "a model of some length, over several words");
    assert_span(aibrix_stats_model_name(st, n), "another");
    assert_int_equal(model(st, "a model of some length, over several words"),
                     m);
}


static void
call_reset(aibrix_stats_t *st)
{
    aibrix_stats_reset_peer(st, 2);
}


static void
check_reset(aibrix_stats_t *st)
{
    uint32_t             i, k, gone;
    aibrix_peer_stats_t  p;

    /* What is shown of the peer is whole, or there is nothing. */

    read_table(st, &table);
    gone = !table.seen[2][numbers[0]];

    if (!gone) {
        assert_filled(st, 2, 2, &table);

    } else if (aibrix_stats_peer_read(st, 2, &p)) {
        assert_int_equal(p.decisions + p.fails + ended(&p.all), 0);
    }

    for (k = 0; k < KINDS; k++) {
        assert_false(gone && table.seen[2][k]);
    }

    /* The next holder of the lock comes to the same end. */

    aibrix_stats_reset_peer(st, 2);
    read_table(st, &table);

    for (k = 0; k < KINDS; k++) {
        assert_false(table.seen[2][k]);
    }

    for (i = 0; i < 2; i++) {
        aibrix_stats_reset_peer(st, 2);
        fill_peer(st, 2, 2);
    }

    read_table(st, &table);

    for (i = 0; i < PEERS; i++) {
        assert_filled(st, i, 2, &table);
    }

    /* All 256 slots of the table can be used. */

    for (i = 0; i < PEERS * AIBRIX_MODELS; i++) {
        done(st, i % PEERS, i / PEERS, 0, 200);
    }

    read_table(st, &table);
    assert_int_equal(table.n, 256 + PEERS);
}


/*
 * A child counts for new series of peer 15.  When it has just changed the
 * memory for the n-th time, others count the same and either take the slot
 * that it has chosen or free one before it.  A series may then be there
 * twice, but is told once, and nothing is lost.
 */

#define CLAIMS  3
#define CROWD   21


static void
call_claims(aibrix_stats_t *st)
{
    uint32_t  k;

    for (k = 0; k < CLAIMS; k++) {
        done(st, 15, numbers[k], 0, 200);
    }
}


static void
crowd(aibrix_stats_t *st, uint32_t peer)
{
    uint32_t  k;

    for (k = 0; k < CROWD; k++) {
        done(st, peer, numbers[k], 0, 200);
    }
}


/* Takes slots that were free. */

static void
meddle_take(aibrix_stats_t *st)
{
    crowd(st, 8);
    crowd(st, 9);
    call_claims(st);
}


/* Frees slots that were not. */

static void
meddle_free(aibrix_stats_t *st)
{
    aibrix_stats_reset_peer(st, 0);
    aibrix_stats_reset_peer(st, 1);
    call_claims(st);
    crowd(st, 0);
    crowd(st, 1);
}


/* Returns 0 when nothing can be stepped here. */

static int
stepped_until(aibrix_stats_t *st, unsigned change,
    void (*meddle)(aibrix_stats_t *st), int *meddled)
{
    int              status;
    pid_t            pid;
    void            *last;
    size_t           size;

    size = aibrix_stats_size(PEERS);
    last = malloc(size);
    assert_non_null(last);
    memcpy(last, st, size);

    *meddled = 0;
    pid = fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
            _exit(77);
        }

        (void) raise(SIGSTOP);
        call_claims(st);
        _exit(0);
    }

    assert_int_equal(waitpid(pid, &status, 0), pid);

    while (WIFSTOPPED(status)) {
        if (!*meddled && memcmp(last, st, size) != 0) {
            memcpy(last, st, size);

            if (--change == 0) {
                meddle(st);
                *meddled = 1;
            }
        }

        assert_int_equal(ptrace(*meddled ? PTRACE_CONT : PTRACE_SINGLESTEP,
                                pid, NULL, NULL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }

    free(last);

    return WEXITSTATUS(status) == 0;
}


static uint64_t
ended_at(uint32_t peer)
{
    uint32_t  k;
    uint64_t  n;

    n = 0;

    for (k = 0; k < KINDS; k++) {
        n += ended(&table.s[peer][k]);
    }

    return n;
}


static void
test_meddled(void (*meddle)(aibrix_stats_t *st), uint32_t more)
{
    int              meddled;
    uint32_t         k, n, rounds;
    aibrix_stats_t  *st;

    rounds = 0;

    do {
        st = new_stats(PEERS);
        name_models(st, CROWD);

        for (k = 0; k < 8; k++) {
            crowd(st, k);
        }

        if (!stepped_until(st, ++rounds, meddle, &meddled)) {
            skip();
        }

        read_table(st, &table);
        n = CLAIMS + (meddled ? CLAIMS : 0);
        assert_int_equal(ended_at(15), n);

        n += (8 + (meddled ? more : 0)) * CROWD;
        assert_int_equal(count_requests(st, &k), n);

        for (k = 0; k < 8 + (meddled ? more : 0); k++) {
            assert_int_equal(ended_at(k), CROWD);
        }

        free_stats(st, PEERS);

    } while (meddled);

    assert_true(rounds > 10 * CLAIMS);
}


static void
test_taken(void **state)
{
    (void) state;

    test_meddled(meddle_take, 2);
}


static void
test_twice(void **state)
{
    (void) state;

    test_meddled(meddle_free, 0);
}


static void
test_death(void **state)
{
    unsigned            i, counted, named, reset;
    aibrix_stats_t     *st;
    aibrix_decision_t   d;

    (void) state;

    st = new_stats(PEERS);
    name_models(st, 2);

    for (i = 0; i < PEERS; i++) {
        if (i != 2) {
            fill_peer(st, i, 2);
        }
    }

    memset(&d, 0, sizeof(d));

    for (i = 1; i <= 200; i++) {
        d.peer = NOBODY;
        d.at = i;
        aibrix_stats_decision(st, &d);
    }

    if (!stepped(st, call_count, check_count, &counted)) {
        skip();
    }

    assert_true(counted > 30);

    assert_true(stepped(st, call_name, check_name, &named));
    assert_true(named > 5);

    aibrix_stats_reset_peer(st, 2);
    fill_peer(st, 2, 2);

    assert_true(stepped(st, call_reset, check_reset, &reset));
    assert_true(reset > 30);

    free_stats(st, PEERS);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_decision),
        cmocka_unit_test(test_series),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_recent),
        cmocka_unit_test(test_quantile),
        cmocka_unit_test(test_escape),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_resets_and_kills),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_twice),
    };

    go = shared(sizeof(int));
    *go = 1;

    return cmocka_run_group_tests(tests, NULL, NULL);
}
