
/*
 * Random operations on the index and on a plain table of all that was said,
 * the answers compared.  With six peers or fewer on a block they are equal.
 * With more, the index may know less, never more:
 *
 *   - a group forgets a third of the ttl early, at most;
 *   - a block with groups keeps no more than five peers that were forgotten
 *     and recorded again within a third of the ttl.
 */

#include "index_fixture.h"


#define MODEL_TTL     1000      /* ms; a unit is 1 ms, so times are exact */
#define MODEL_BLOCKS  96        /* a tree of prefixes */
#define MODEL_CHAIN   12
#define MODEL_PEERS   1100

#define MIB           (1024 * 1024)


typedef struct {
    uint64_t   time;                    /* of the last record */
    uint64_t   until;                   /* it may count, before this time */
    int        known;
} fact_t;


typedef struct {
    fixture_t  f;
    uint64_t   now;
    uint32_t   npeers;
    uint64_t   equal;
    uint64_t   less;
    uint64_t   forgotten[MODEL_PEERS];  /* time of the last, 0: never */
    uint64_t   lead[MODEL_PEERS];       /* first ms that is not blocked */
    int        crowded[MODEL_BLOCKS];   /* had more than six at once */
    fact_t     fact[MODEL_BLOCKS][MODEL_PEERS];
} model_t;


static model_t  m;


/* Peer numbers are spread over all there are, some are neighbours. */
static uint32_t
model_peer(uint32_t i)
{
    return (m.npeers > 100) ? i : i * 7 % 4 + i / 4 * (4096 / 28);
}


/* A chain is a path in a tree in which every node has two children. */
static size_t
model_chain(unsigned *blocks, uint64_t *hashes)
{
    size_t    n, len;
    unsigned  node;

    len = 1 + fixture_random(&m.f, MODEL_CHAIN);
    node = 0;

    for (n = 0; n < len && node < MODEL_BLOCKS; n++) {
        blocks[n] = node;
        hashes[n] = fixture_mix(0x1234567 + node);
        node = 2 * node + 1 + fixture_random(&m.f, 2);
    }

    return n;
}


static void
model_record(void)
{
    size_t     i, n;
    fact_t    *fact;
    unsigned   blocks[MODEL_CHAIN];
    uint32_t   k, peer, live;
    uint64_t   hashes[MODEL_CHAIN], ahead;

    n = model_chain(blocks, hashes);
    peer = fixture_random(&m.f, m.npeers);
    fixture_record(&m.f, hashes, n, model_peer(peer), m.now);

    ahead = (m.lead[peer] > m.now) ? m.lead[peer] - m.now : 0;

    if (ahead >= AIBRIX_IX_FORGET_LEAD) {
        return;
    }

    for (i = 0; i < n; i++) {
        fact = m.fact[blocks[i]];
        fact[peer].known = 1;
        fact[peer].time = m.now + ahead;
        fact[peer].until = m.now + ahead + MODEL_TTL;
        live = 0;

        for (k = 0; k < m.npeers; k++) {
            live += fact[k].known && m.now < fact[k].until;
        }

        m.crowded[blocks[i]] |= live > AIBRIX_IX_CELLS;
    }
}


static void
model_unrecord(void)
{
    size_t     i, n, from;
    unsigned   blocks[MODEL_CHAIN];
    uint32_t   peer;
    uint64_t   hashes[MODEL_CHAIN];

    n = model_chain(blocks, hashes);
    from = fixture_random(&m.f, (uint32_t) n);
    peer = fixture_random(&m.f, m.npeers);
    aibrix_index_unrecord(m.f.ix, hashes, from, n, model_peer(peer));

    for (i = from; i < n; i++) {
        m.fact[blocks[i]][peer].known = 0;
    }
}


static void
model_forget(void)
{
    unsigned  block;
    uint32_t  peer;

    peer = fixture_random(&m.f, m.npeers);
    aibrix_index_forget(m.f.ix, model_peer(peer), m.now);
    m.forgotten[peer] = m.now;

    if (m.lead[peer] <= m.now) {
        m.lead[peer] = m.now + 1;

    } else if (m.lead[peer] < m.now + AIBRIX_IX_FORGET_LEAD) {
        m.lead[peer]++;
    }

    for (block = 0; block < MODEL_BLOCKS; block++) {
        m.fact[block][peer].known = 0;
    }
}


static int
model_may_know(unsigned block, uint32_t peer)
{
    return m.fact[block][peer].known && m.now < m.fact[block][peer].until;
}


static int
model_must_know(unsigned block, uint32_t peer)
{
    uint64_t  third;

    if (!model_may_know(block, peer) || !m.crowded[block]) {
        return model_may_know(block, peer);
    }

    third = MODEL_TTL / 3;

    return m.now - m.fact[block][peer].time < 2 * third - 1
           && (m.forgotten[peer] == 0
               || m.fact[block][peer].time - m.forgotten[peer] > third + 1);
}


static size_t
model_count(const unsigned *blocks, size_t n, uint32_t peer,
    int (*knows)(unsigned block, uint32_t peer))
{
    size_t  i;

    for (i = 0; i < n && knows(blocks[i], peer); i++) { /* void */ }

    return i;
}


static void
model_match(void)
{
    size_t            n, may, must, got, longest, best;
    unsigned          blocks[MODEL_CHAIN];
    uint32_t          i, p;
    uint64_t          hashes[MODEL_CHAIN];
    aibrix_peerset_t  among;

    n = model_chain(blocks, hashes);
    memset(&among, 0, sizeof(among));

    for (i = 0; i < m.npeers; i++) {
        p = model_peer(i);
        among.word[p / 64] |= (uint64_t) (fixture_random(&m.f, 4) != 0)
                              << p % 64;
    }

    memset(m.f.matched, 0xff, sizeof(m.f.matched));
    best = aibrix_index_match(m.f.ix, hashes, n, &among, m.now, MODEL_TTL,
                              m.f.matched);
    longest = 0;

    for (i = 0; i < m.npeers; i++) {
        p = model_peer(i);
        got = m.f.matched[p];

        if (!(among.word[p / 64] >> p % 64 & 1)) {
            assert_int_equal(got, UINT32_MAX);
            continue;
        }

        got = (got == UINT32_MAX) ? 0 : got;
        may = model_count(blocks, n, i, model_may_know);
        must = model_count(blocks, n, i, model_must_know);

        assert_true(got <= may);
        assert_true(got >= must);
        longest = (got > longest) ? got : longest;

        m.equal += got == may;
        m.less += got < may;
    }

    assert_int_equal(longest, best);
}


/* forgets: how many of a thousand steps */
static void
model_run(uint32_t npeers, uint32_t steps, uint32_t longest_pause,
    uint32_t forgets)
{
    uint32_t  step, what;

    memset(&m, 0, sizeof(m));
    fixture_make(&m.f, 4 * MIB, MODEL_TTL);
    m.f.random = npeers * 1000;
    m.npeers = npeers;
    m.now = START;

    for (step = 0; step < steps; step++) {
        what = fixture_random(&m.f, 1000);

        if (what < forgets) {
            model_forget();

        } else if (what < 450) {
            model_record();

        } else if (what < 800) {
            model_match();

        } else if (what < 850) {
            model_unrecord();

        } else {
            m.now += fixture_random(&m.f, longest_pause);
        }
    }

    assert_int_equal(fixture_stat(&m.f).evictions, 0);
    fixture_free(&m.f);
}


static void
test_few_peers(void **state)
{
    (void) state;

    model_run(1, 30000, 100, 30);
    assert_int_equal(m.less, 0);
    model_run(6, 100000, 30, 30);
    assert_int_equal(m.less, 0);
    model_run(6, 100000, 2000, 30);
    assert_int_equal(m.less, 0);
    model_run(6, 100000, 2, 200);
    assert_int_equal(m.less, 0);
}


/* What may be less is seldom so; most of it is what is about to expire. */
static void
test_more_peers(void **state)
{
    (void) state;

    model_run(7, 100000, 50, 30);
    assert_true(m.less < m.equal / 20);
    model_run(28, 100000, 50, 30);
    assert_true(m.less < m.equal / 10);
    model_run(28, 100000, 4, 1);
    assert_true(m.less < m.equal / 10);
    model_run(28, 100000, 4, 100);
}


static void
test_many_peers(void **state)
{
    (void) state;

    model_run(200, 30000, 10, 1);
    assert_true(m.less < m.equal / 8);
    model_run(1100, 20000, 3, 1);
    assert_true(m.less < m.equal / 8);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_few_peers),
        cmocka_unit_test(test_more_peers),
        cmocka_unit_test(test_many_peers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
