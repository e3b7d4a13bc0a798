
/* The index with many peers on a block, and peers that are forgotten. */

#include "index_fixture.h"


#define MIB    (1024 * 1024)
#define CHAIN  5


static void
record_peers(fixture_t *f, const uint64_t *chain, uint32_t n, uint64_t now)
{
    uint32_t  peer;

    for (peer = 0; peer < n; peer++) {
        fixture_record(f, chain, CHAIN, peer, now);
    }
}


static void
assert_peers(fixture_t *f, const uint64_t *chain, uint32_t n, uint64_t now)
{
    uint32_t  peer;

    assert_int_equal(fixture_match(f, chain, CHAIN, now), n ? CHAIN : 0);

    for (peer = 0; peer < AIBRIX_MAX_PEERS; peer++) {
        assert_int_equal(f->matched[peer], (peer < n) ? CHAIN : 0);
    }
}


/* Entries taken by blocks and by groups of peers. */
static size_t
count_entries(fixture_t *f, aibrix_ix_kind_e kind)
{
    size_t     i, n;
    uint64_t  *tags;
    unsigned   way;

    n = 0;

    for (i = 0; i < f->ix->shape.nbuckets; i++) {
        tags = aibrix_ix_buckets(f->ix)[i].tag;

        for (way = 0; way < AIBRIX_IX_WAYS; way++) {
            n += aibrix_ix_tag_of(tags[way]) != 0
                 && aibrix_ix_is_block(tags[way]) == (kind == AIBRIX_IX_BLOCK);
        }
    }

    return n;
}


static void
test_numbers_of_peers(void **state)
{
    size_t                 i;
    uint64_t               chain[CHAIN];
    fixture_t              f;
    static const uint32_t  numbers[] = { 1, 2, 5, 6, 7, 8, 10, 47, 48, 49, 54,
                                         55, 63, 64, 65, 128, 1024, 4096 };

    (void) state;

    fixture_chain(chain, CHAIN, 1);

    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        fixture_make(&f, MIB, TTL);
        record_peers(&f, chain, numbers[i], START);
        assert_peers(&f, chain, numbers[i], START);

        /* again, in all of their forms */

        record_peers(&f, chain, numbers[i], START + TTL / 6);
        assert_peers(&f, chain, numbers[i], START + TTL / 6);
        assert_int_equal(fixture_stat(&f).blocks, CHAIN);
        assert_int_equal(fixture_stat(&f).inserts, CHAIN);
        assert_int_equal(count_entries(&f, AIBRIX_IX_BLOCK), CHAIN);

        if (numbers[i] <= 6) {
            assert_int_equal(count_entries(&f, AIBRIX_IX_PEERS), 0);
        }

        assert_true(count_entries(&f, AIBRIX_IX_PEERS)
                    <= CHAIN * ((numbers[i] + 47) / 48));
        fixture_free(&f);
    }
}


static void
test_unrecord(void **state)
{
    uint32_t              peer;
    uint64_t              chain[CHAIN];
    fixture_t             f;
    static const uint32_t all[] = { 1, 6, 7, 200 };
    size_t                i;

    (void) state;

    fixture_chain(chain, CHAIN, 1);

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        fixture_make(&f, MIB, TTL);
        record_peers(&f, chain, all[i], START);

        for (peer = 0; peer < all[i]; peer++) {
            aibrix_index_unrecord(f.ix, chain, 2, CHAIN, peer);
            (void) fixture_match(&f, chain, CHAIN, START);
            assert_int_equal(f.matched[peer], 2);

            if (peer + 1 < all[i]) {
                assert_int_equal(f.matched[peer + 1], CHAIN);
            }
        }

        assert_int_equal(fixture_match(&f, chain, CHAIN, START), 2);

        for (peer = 0; peer < all[i]; peer++) {
            aibrix_index_unrecord(f.ix, chain, 0, 2, peer);
        }

        assert_peers(&f, chain, 0, START);

        /* what is not there is no trouble, and all may come again */

        aibrix_index_unrecord(f.ix, chain, 0, CHAIN, 3);
        record_peers(&f, chain, all[i], START);
        assert_peers(&f, chain, all[i], START);

        if (all[i] <= 6) {
            assert_int_equal(fixture_stat(&f).inserts, 2 * CHAIN);
        }

        fixture_free(&f);
    }
}


/* Two thirds of the ttl are kept in any form, and never more than the ttl. */
static void
test_ttl_of_groups(void **state)
{
    uint32_t   peer, known;
    uint64_t   chain[CHAIN], now, start;
    fixture_t  f;

    (void) state;

    fixture_make(&f, 4 * MIB, TTL);

    for (start = START; start < START + TTL; start += TTL / 20) {
        fixture_chain(chain, CHAIN, start);
        record_peers(&f, chain, 500, start);

        for (now = start; now < start + TTL * 2; now += TTL / 50) {
            (void) fixture_match(&f, chain, CHAIN, now);
            known = 0;

            for (peer = 0; peer < 500; peer++) {
                known += f.matched[peer] == CHAIN;
            }

            if (now - start < TTL / 3 * 2 - 2000) {
                assert_int_equal(known, 500);
            }

            if (now - start >= TTL) {
                assert_int_equal(known, 0);
            }
        }
    }

    /* a shorter ttl than the index was made for */

    (void) fixture_match(&f, chain, CHAIN, start);
    fixture_chain(chain, CHAIN, 1);
    record_peers(&f, chain, 500, start);
    memset(f.matched, 0, sizeof(f.matched));
    assert_int_equal(aibrix_index_match(f.ix, chain, CHAIN, &f.all,
                                        start + TTL / 10, TTL / 10, f.matched),
                     0);
    fixture_free(&f);
}


/* What is said of groups that are gone is taken back when it is noticed. */
static void
test_mask_is_pruned(void **state)
{
    uint32_t          cell;
    uint64_t          chain[CHAIN], words[AIBRIX_IX_WORDS];
    fixture_t         f;
    aibrix_ix_slot_t  slot;

    (void) state;

    fixture_make(&f, MIB, TTL);
    fixture_chain(chain, CHAIN, 1);
    record_peers(&f, chain, 300, START);

    slot = aibrix_ix_find(aibrix_ix_block_key(f.ix, chain[0]));
    aibrix_ix_read(&slot, words, 0);
    cell = aibrix_ix_cell_at(words, AIBRIX_IX_CELLS - 1);
    assert_true(aibrix_ix_cell_is_mask(cell));
    assert_int_equal(cell & AIBRIX_IX_TIME_MASK, 0x7f);

    fixture_record(&f, chain, CHAIN, 0, START + TTL * 2);
    fixture_record(&f, chain, CHAIN, 1, START + TTL * 2);
    assert_peers(&f, chain, 2, START + TTL * 2);

    slot = aibrix_ix_find(aibrix_ix_block_key(f.ix, chain[0]));
    aibrix_ix_read(&slot, words, 0);
    assert_int_equal(aibrix_ix_cell_at(words, AIBRIX_IX_CELLS - 1), 0);
    fixture_free(&f);
}


static void
test_forget(void **state)
{
    size_t                i;
    uint32_t              peer, n;
    uint64_t              chain[CHAIN], now;
    fixture_t             f;
    static const uint32_t numbers[] = { 2, 6, 7, 64, 1024 };

    (void) state;

    fixture_chain(chain, CHAIN, 1);

    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        fixture_make(&f, MIB, TTL);
        n = numbers[i];
        now = START;
        record_peers(&f, chain, n, now);

        /* in the same instant, for peers in cells and in groups */

        for (peer = 0; peer < n; peer += 3) {
            aibrix_index_forget(f.ix, peer, now);
        }

        (void) fixture_match(&f, chain, CHAIN, now);

        for (peer = 0; peer < n; peer++) {
            assert_int_equal(f.matched[peer], (peer % 3) ? CHAIN : 0);
        }

        /* what comes in the same instant, but after it, counts */

        for (peer = 0; peer < n; peer += 3) {
            fixture_record(&f, chain, CHAIN, peer, now);
            (void) fixture_match(&f, chain, CHAIN, now);
            assert_int_equal(f.matched[peer], CHAIN);
        }

        /* a later epoch: all may use the compact form again */

        now += TTL / 3 + 2000;
        record_peers(&f, chain, n, now);
        assert_peers(&f, chain, n, now);
        fixture_free(&f);
    }
}


/* A peer that keeps failing is not remembered, however often it is tried. */
static void
test_forget_often(void **state)
{
    size_t     i;
    uint64_t   chain[CHAIN];
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, TTL);
    fixture_chain(chain, CHAIN, 1);

    for (i = 0; i < 100; i++) {
        fixture_record(&f, chain, CHAIN, 7, START);

        if (i < AIBRIX_IX_FORGET_LEAD) {
            assert_int_equal(fixture_match(&f, chain, CHAIN, START), CHAIN);
        }

        aibrix_index_forget(f.ix, 7, START);
        assert_int_equal(fixture_match(&f, chain, CHAIN, START), 0);
    }

    fixture_record(&f, chain, CHAIN, 7, START + TTL / 500);
    assert_int_equal(fixture_match(&f, chain, CHAIN, START + TTL / 500),
                     CHAIN);
    aibrix_index_forget(f.ix, 7, START + TTL / 500);
    assert_int_equal(fixture_match(&f, chain, CHAIN, START + TTL / 500), 0);

    fixture_record(&f, chain, CHAIN, 7, START + TTL / 20);
    assert_int_equal(fixture_match(&f, chain, CHAIN, START + TTL / 20), CHAIN);
    assert_int_equal(fixture_match(&f, chain, CHAIN, START + TTL), CHAIN);
    assert_int_equal(fixture_match(&f, chain, CHAIN,
                                   START + TTL / 20 + TTL), 0);
    fixture_free(&f);
}


/* Groups are evicted like all else: then peers are missing, none is added. */
static void
test_many_peers_under_pressure(void **state)
{
    size_t     i, k;
    uint32_t   peer;
    uint64_t   chain[CHAIN], now;
    fixture_t  f;

    (void) state;

    fixture_make(&f, aibrix_index_min_size(), TTL);
    now = START;

    for (k = 0; k < 200; k++) {
        fixture_chain(chain, CHAIN, k);

        for (i = 0; i < 40; i++) {
            peer = fixture_random(&f, 500) * 8 + k % 8;
            fixture_record(&f, chain, CHAIN, peer, now);
        }

        now += 1000;
        fixture_chain(chain, CHAIN, fixture_random(&f, (uint32_t) k + 1));
        (void) fixture_match(&f, chain, CHAIN, now);
    }

    for (k = 0; k < 200; k++) {
        fixture_chain(chain, CHAIN, k);
        (void) fixture_match(&f, chain, CHAIN, now);

        for (peer = 0; peer < AIBRIX_MAX_PEERS; peer++) {
            assert_true(f.matched[peer] == 0 || peer % 8 == k % 8);
        }
    }

    fixture_free(&f);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_numbers_of_peers),
        cmocka_unit_test(test_unrecord),
        cmocka_unit_test(test_ttl_of_groups),
        cmocka_unit_test(test_mask_is_pruned),
        cmocka_unit_test(test_forget),
        cmocka_unit_test(test_forget_often),
        cmocka_unit_test(test_many_peers_under_pressure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
