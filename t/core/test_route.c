
/* The zone's directory, and the course of one decision over it. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "prefix.h"
#include "route.h"


#define SIZE  (8 * 1024 * 1024)
#define TTL   60000


static aibrix_zone_t  *zone;
static uint32_t        row;
static uint32_t        matched[AIBRIX_MAX_PEERS];
static uint64_t        hashes[4][32];


static aibrix_span_t
span(const char *s)
{
    aibrix_span_t  sp;

    sp.data = s;
    sp.len = strlen(s);

    return sp;
}


static uint32_t
add(const char *upstream, const char *name, uint64_t now)
{
    aibrix_span_t  u, n;

    u = span(upstream);
    n = span(name);

    return aibrix_zone_register(zone, &u, &n, &n, now);
}


static int
setup(void **state)
{
    int            i;
    char           text[32 * 16];
    void          *mem;
    aibrix_span_t  s;

    (void) state;

    mem = aligned_alloc(64, SIZE);

    if (mem == NULL) {
        return -1;
    }

    memset(mem, 0, SIZE);

    zone = aibrix_zone_init(mem, SIZE, 42, TTL);
    row = aibrix_load_attach(aibrix_zone_load(zone), 1);

    s.data = text;
    s.len = sizeof(text);

    for (i = 0; i < 4; i++) {
        memset(text, 'a' + i, sizeof(text));
        (void) aibrix_prefix_hash(&s, 1, 16, 42, hashes[i], 32);
    }

    return 0;
}


static int
teardown(void **state)
{
    (void) state;

    free(zone);

    return 0;
}


static aibrix_route_t
route(const char *strategy, int prompt, uint64_t now)
{
    aibrix_route_t  rt;

    memset(&rt, 0, sizeof(rt));

    rt.zone = zone;
    rt.row = row;
    rt.strategy = aibrix_strategy_find(strategy, strlen(strategy));
    rt.block_size = 16;
    rt.now_ms = now;
    rt.ttl_ms = TTL;
    rt.matched = matched;

    if (prompt >= 0) {
        rt.hashes = hashes[prompt];
        rt.blocks = 32;
        rt.prompt = 32 * 16 + 7;
    }

    return rt;
}


static uint32_t
decide(aibrix_route_t *rt, const uint32_t *peers, size_t n,
    aibrix_grant_t *g, aibrix_choice_t *c)
{
    size_t              i;
    aibrix_view_t       v;
    aibrix_peerset_t    set;
    aibrix_candidate_t  cand[16];

    memset(&set, 0, sizeof(set));
    memset(g, 0, sizeof(*g));

    for (i = 0; i < n; i++) {
        cand[i].peer = peers[i];
        cand[i].weight = 1;

        if (peers[i] != AIBRIX_NO_PEER) {
            set.word[peers[i] / 64] |= (uint64_t) 1 << peers[i] % 64;
        }
    }

    v.candidates = cand;
    v.n = n;
    v.imbalance = 16;
    v.stddev_factor = 2;
    v.rng = 4711;

    aibrix_route_match(rt, peers, n, &set);
    aibrix_route_choose(rt, &v, c);
    aibrix_route_reserve(rt, &cand[c->index], g);
    aibrix_route_record(rt, g);

    return cand[c->index].peer;
}


static aibrix_load_sum_t
load_of(uint32_t peer)
{
    aibrix_load_sum_t  sum;

    aibrix_load_sum(aibrix_zone_load(zone), peer, &sum);

    return sum;
}


static void
test_zone_too_small(void **state)
{
    void  *mem;

    (void) state;

    mem = aligned_alloc(64, 1024 * 1024);
    memset(mem, 0, 1024 * 1024);

    assert_true(aibrix_zone_min_size() < 1024 * 1024);
    assert_null(aibrix_zone_init(mem, aibrix_zone_min_size() - 64, 0, TTL));
    assert_non_null(aibrix_zone_init(mem, aibrix_zone_min_size(), 0, TTL));

    free(mem);
}


static void
test_zone_check(void **state)
{
    (void) state;

    assert_null(aibrix_zone_check(zone, SIZE));
    assert_non_null(aibrix_zone_check(zone, SIZE + 4096));

    zone->version++;
    assert_non_null(aibrix_zone_check(zone, SIZE));
    zone->version--;

    zone->magic ^= 1;
    assert_non_null(aibrix_zone_check(zone, SIZE));
}


static void
test_peers_keep_their_number(void **state)
{
    uint32_t  a, b, c;

    (void) state;

    a = add("up", "10.0.0.1:8000", 0);
    b = add("up", "10.0.0.2:8000", 0);
    c = add("other", "10.0.0.1:8000", 0);

    assert_true(a != b && b != c && a != c);

    assert_int_equal(add("up", "10.0.0.2:8000", 5), b);
    assert_int_equal(add("up", "10.0.0.1:8000", 5), a);
    assert_int_equal(add("other", "10.0.0.1:8000", 5), c);

    assert_true(aibrix_zone_peer_used(zone, c));
    assert_false(aibrix_zone_peer_used(zone, c + 1));
    assert_memory_equal(aibrix_zone_peer(zone, c)->upstream, "other", 5);
}


/* a full directory gives the numbers of those long gone, never of others */

static void
test_numbers_are_used_again(void **state)
{
    char            name[64];
    uint32_t        i, id, kept, busy;
    aibrix_grant_t  g;
    aibrix_route_t  rt;
    aibrix_choice_t c;

    (void) state;

    for (i = 0; i < zone->max_peers; i++) {
        (void) snprintf(name, sizeof(name), "10.1.%u.%u:1", i / 256, i % 256);
        assert_int_not_equal(add("up", name, 1000), AIBRIX_NO_PEER);
    }

    assert_int_equal(add("up", "new:1", 2000), AIBRIX_NO_PEER);

    kept = add("up", "10.1.0.3:1", 100000);
    busy = add("up", "10.1.0.4:1", 1000);

    rt = route("random", 0, 1000);
    assert_int_equal(decide(&rt, &busy, 1, &g, &c), busy);

    for (i = 0; i < zone->max_peers - 2; i++) {
        (void) snprintf(name, sizeof(name), "10.2.%u.%u:1", i / 256, i % 256);
        id = add("up", name, 100000);
        assert_int_not_equal(id, AIBRIX_NO_PEER);
        assert_int_not_equal(id, kept);
        assert_int_not_equal(id, busy);
    }

    assert_int_equal(zone->recycled, zone->max_peers - 2);
    assert_int_equal(add("up", "newer:1", 100000), AIBRIX_NO_PEER);

    /* whoever gets a number has none of the former owner's prefixes */

    aibrix_route_release(&rt, &g);
    id = add("up", "newer:1", 200000);
    assert_int_not_equal(id, AIBRIX_NO_PEER);

    for (i = 0; i < 4; i++) {
        rt = route("prefix-cache", (int) i, 1500);
        (void) decide(&rt, &id, 1, &g, &c);
        assert_int_equal(g.matched, 0);
        aibrix_route_unrecord(&rt, &g);
        aibrix_route_release(&rt, &g);
    }
}


static void
test_a_prompt_comes_back(void **state)
{
    int              i;
    uint32_t         peers[3], first;
    aibrix_grant_t   g;
    aibrix_route_t   rt;
    aibrix_choice_t  c;

    (void) state;

    peers[0] = add("up", "a:1", 0);
    peers[1] = add("up", "b:1", 0);
    peers[2] = add("up", "c:1", 0);

    rt = route("prefix-cache", 0, 1000);
    first = decide(&rt, peers, 3, &g, &c);
    assert_int_equal(c.selection, AIBRIX_LEAST_REQUEST_FALLBACK);
    assert_int_equal(g.queued, 32 * 16 + 7);
    assert_int_equal(load_of(first).inflight, 1);
    assert_int_equal(load_of(first).queued, 32 * 16 + 7);

    aibrix_route_answered(&rt, &g);
    aibrix_route_answered(&rt, &g);
    assert_int_equal(load_of(first).inflight, 1);
    assert_int_equal(load_of(first).queued, 0);

    aibrix_route_release(&rt, &g);
    aibrix_route_release(&rt, &g);
    assert_int_equal(load_of(first).inflight, 0);

    for (i = 0; i < 20; i++) {
        rt = route("prefix-cache", 0, 1000 + (uint64_t) i);
        assert_int_equal(decide(&rt, peers, 3, &g, &c), first);
        assert_int_equal(c.selection, AIBRIX_PREFIX_MATCH);
        assert_int_equal(g.matched, 32);
        assert_int_equal(g.queued, 7);
        aibrix_route_release(&rt, &g);
        assert_int_equal(load_of(first).queued, 0);
    }
}


static void
test_take_back_keeps_what_was_known(void **state)
{
    uint32_t         peer;
    aibrix_grant_t   g;
    aibrix_route_t   rt;
    aibrix_choice_t  c;

    (void) state;

    peer = add("up", "a:1", 0);

    rt = route("prefix-cache", 0, 1000);
    rt.blocks = 10;
    (void) decide(&rt, &peer, 1, &g, &c);
    aibrix_route_release(&rt, &g);

    /* the longer prompt fails: its own part goes, the first ten blocks stay */

    rt = route("prefix-cache", 0, 1100);
    (void) decide(&rt, &peer, 1, &g, &c);
    assert_int_equal(g.matched, 10);
    aibrix_route_unrecord(&rt, &g);
    aibrix_route_release(&rt, &g);

    rt = route("prefix-cache", 0, 1200);
    (void) decide(&rt, &peer, 1, &g, &c);
    assert_int_equal(g.matched, 10);
    aibrix_route_release(&rt, &g);
}


static void
test_every_strategy_records(void **state)
{
    int                       i;
    uint32_t                  peer;
    aibrix_grant_t            g;
    aibrix_route_t            rt;
    aibrix_choice_t           c;
    const aibrix_strategy_t  *s;

    (void) state;

    peer = add("up", "a:1", 0);

    for (i = 0, s = aibrix_strategies; s->name != NULL && i < 4; s++, i++) {
        rt = route(s->name, i, 1000);
        (void) decide(&rt, &peer, 1, &g, &c);
        assert_int_equal(c.selection, AIBRIX_SINGLE_CANDIDATE);
        assert_int_equal(g.matched, 0);
        aibrix_route_release(&rt, &g);

        (void) decide(&rt, &peer, 1, &g, &c);
        assert_int_equal(g.matched, 32);
        aibrix_route_release(&rt, &g);
    }
}


static void
test_a_burst_spreads(void **state)
{
    int              i;
    uint32_t         peers[4];
    aibrix_grant_t   g[40];
    aibrix_route_t   rt;
    aibrix_choice_t  c;

    (void) state;

    for (i = 0; i < 4; i++) {
        char  name[8] = { (char) ('a' + i), ':', '1', '\0' };

        peers[i] = add("up", name, 0);
    }

    for (i = 0; i < 40; i++) {
        rt = route("least-request", -1, 1000);
        (void) decide(&rt, peers, 4, &g[i], &c);
    }

    for (i = 0; i < 4; i++) {
        assert_int_equal(load_of(peers[i]).inflight, 10);
    }
}


static void
test_a_peer_without_a_number(void **state)
{
    uint32_t         peers[2];
    aibrix_grant_t   g;
    aibrix_route_t   rt;
    aibrix_choice_t  c;

    (void) state;

    peers[0] = AIBRIX_NO_PEER;
    peers[1] = AIBRIX_NO_PEER;

    rt = route("prefix-cache", 0, 1000);
    assert_int_equal(decide(&rt, peers, 2, &g, &c), AIBRIX_NO_PEER);
    assert_int_equal(g.held, 0);

    aibrix_route_unrecord(&rt, &g);
    aibrix_route_answered(&rt, &g);
    aibrix_route_release(&rt, &g);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_zone_too_small),
        cmocka_unit_test_setup_teardown(test_zone_check, setup, teardown),
        cmocka_unit_test_setup_teardown(test_peers_keep_their_number, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_numbers_are_used_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_prompt_comes_back, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_take_back_keeps_what_was_known,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_strategy_records, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_burst_spreads, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_peer_without_a_number, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
