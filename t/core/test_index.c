
/* The rules of the index with few peers: chains, time, eviction. */

#include <sys/mman.h>

#include "index_fixture.h"


#define MIB  (1024 * 1024)


static void
test_init(void **state)
{
    size_t           size;
    fixture_t        f;
    aibrix_index_t  *ix;

    (void) state;

    size = aibrix_index_min_size();
    assert_true(size <= 64 * 1024);

    fixture_make(&f, size, TTL);
    assert_int_equal(fixture_stat(&f).capacity, 512);
    assert_int_equal(fixture_stat(&f).blocks, 0);
    assert_true(aibrix_index_max_ttl(f.ix) >= 100 * (uint64_t) TTL);
    assert_true(aibrix_index_valid(f.mem, f.size));
    assert_false(aibrix_index_valid(f.mem, f.size + 256));
    assert_false(aibrix_index_valid(f.mem, size - 1));
    assert_null(aibrix_index_init(f.mem, size - 1, TTL));

    ix = f.ix;
    ix->shape.layout++;
    assert_false(aibrix_index_valid(f.mem, f.size));
    assert_non_null(aibrix_index_check(ix));
    ix->shape.layout--;

    ix->shape.unit = 0;
    assert_false(aibrix_index_valid(f.mem, f.size));
    ix->shape.unit = TTL / 1024;

    ix->magic++;
    assert_false(aibrix_index_valid(f.mem, f.size));
    ix->magic--;

    fixture_free(&f);
}


static void
test_check_finds(void **state)
{
    uint64_t             hash, *word;
    fixture_t            f;
    aibrix_ix_slot_t     slot;

    (void) state;

    fixture_make(&f, MIB, TTL);
    hash = fixture_mix(1);
    fixture_record(&f, &hash, 1, 0, START);
    slot = aibrix_ix_find(aibrix_ix_block_key(f.ix, hash));
    assert_non_null(slot.bucket);

    word = aibrix_ix_words(&slot);
    assert_null(aibrix_index_check(f.ix));

    word[1] = 5;
    assert_string_equal(aibrix_index_check(f.ix),
                        "a cell names a peer that cannot be");
    word[1] = 4097ull << AIBRIX_IX_TIME_BITS;
    assert_string_equal(aibrix_index_check(f.ix),
                        "a cell names a peer that cannot be");
    word[1] = (uint64_t) aibrix_ix_mask_cell(1) << 32;
    assert_string_equal(aibrix_index_check(f.ix),
                        "a mask of groups is in a cell of a peer");
    word[1] = 0;
    word[2] = (uint64_t) aibrix_ix_mask_cell(0) << 32;
    assert_string_equal(aibrix_index_check(f.ix),
                        "a mask of groups is empty");
    word[2] = (uint64_t) aibrix_ix_mask_cell(1) << 32;
    assert_null(aibrix_index_check(f.ix));

    slot.bucket->tag[7] = 1ull << AIBRIX_IX_TAG_SHIFT;
    assert_string_equal(aibrix_index_check(f.ix),
                        "a tag word has a kind but no hash");
    slot.bucket->tag[7] = 0;

    fixture_free(&f);
}


static void
test_match_per_peer(void **state)
{
    size_t            i;
    uint64_t          chain[10];
    fixture_t         f;
    aibrix_peerset_t  among;

    (void) state;

    fixture_make(&f, MIB, TTL);
    fixture_chain(chain, 10, 1);

    assert_int_equal(fixture_match(&f, chain, 10, START), 0);
    assert_int_equal(fixture_match(&f, chain, 0, START), 0);

    fixture_record(&f, chain, 10, 0, START);
    fixture_record(&f, chain, 4, 77, START);
    fixture_record(&f, chain, 7, 4095, START);

    assert_int_equal(fixture_match(&f, chain, 10, START), 10);
    assert_int_equal(f.matched[0], 10);
    assert_int_equal(f.matched[77], 4);
    assert_int_equal(f.matched[4095], 7);

    for (i = 1; i < 77; i++) {
        assert_int_equal(f.matched[i], 0);
    }

    /* a chain that goes on elsewhere */

    chain[5] = fixture_mix(99);
    assert_int_equal(fixture_match(&f, chain, 10, START), 5);
    assert_int_equal(f.matched[0], 5);
    assert_int_equal(f.matched[77], 4);

    /* only those asked for, and what matches nothing is left alone */

    memset(&among, 0, sizeof(among));
    among.word[0] = 6;
    among.word[1] = 1ull << 13;
    memset(f.matched, 0xee, sizeof(f.matched));
    assert_int_equal(aibrix_index_match(f.ix, chain, 10, &among, START, TTL,
                                        f.matched), 4);
    assert_int_equal(f.matched[77], 4);
    f.matched[77] = 0xeeeeeeee;

    for (i = 0; i < AIBRIX_MAX_PEERS; i++) {
        assert_int_equal(f.matched[i], 0xeeeeeeee);
    }

    among.word[1] = 0;
    assert_int_equal(aibrix_index_match(f.ix, chain, 10, &among, START, TTL,
                                        f.matched), 0);

    /* a peer that cannot be is nobody */

    fixture_record(&f, chain, 10, AIBRIX_MAX_PEERS, START);
    aibrix_index_unrecord(f.ix, chain, 0, 10, AIBRIX_MAX_PEERS);
    aibrix_index_forget(f.ix, AIBRIX_MAX_PEERS, START);
    fixture_free(&f);
}


static void
test_unbroken(void **state)
{
    uint64_t   chain[100];
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, TTL);
    fixture_chain(chain, 100, 1);

    fixture_record(&f, chain, 40, 3, START);
    fixture_record(&f, chain + 41, 59, 3, START);
    fixture_record(&f, chain, 100, 4, START);
    fixture_record(&f, chain + 1, 99, 5, START);

    assert_int_equal(fixture_match(&f, chain, 100, START), 100);
    assert_int_equal(f.matched[3], 40);
    assert_int_equal(f.matched[4], 100);
    assert_int_equal(f.matched[5], 0);
    fixture_free(&f);
}


/* The unit is 1 ms for short times, a 1024th for long ones. */
static void
test_ttl(void **state)
{
    uint64_t   chain[3], unit;
    fixture_t  f;

    (void) state;

    fixture_chain(chain, 3, 1);

    fixture_make(&f, MIB, 1000);
    fixture_record(&f, chain, 3, 9, START);
    assert_int_equal(fixture_match(&f, chain, 3, START + 999), 3);
    assert_int_equal(fixture_match(&f, chain, 3, START + 1000), 0);
    assert_int_equal(fixture_match(&f, chain, 3, START + 100000), 0);

    /* the first block alone is older, and nothing follows it */

    fixture_record(&f, chain, 3, 9, START + 5000);
    fixture_record(&f, chain + 1, 2, 9, START + 5500);
    assert_int_equal(fixture_match(&f, chain, 3, START + 5999), 3);
    assert_int_equal(fixture_match(&f, chain, 3, START + 6000), 0);
    assert_int_equal(fixture_match(&f, chain + 1, 2, START + 6499), 2);

    /* matching does not prolong, recording does */

    fixture_record(&f, chain, 3, 9, START + 7000);
    assert_int_equal(fixture_match(&f, chain, 3, START + 7900), 3);
    assert_int_equal(fixture_match(&f, chain, 3, START + 8000), 0);
    fixture_record(&f, chain, 3, 9, START + 8000);
    fixture_record(&f, chain, 3, 9, START + 8900);
    assert_int_equal(fixture_match(&f, chain, 3, START + 9899), 3);

    /* one call's ttl may be another's */

    assert_int_equal(aibrix_index_match(f.ix, chain, 3, &f.all, START + 19000,
                                        20000, f.matched), 3);
    assert_int_equal(aibrix_index_match(f.ix, chain, 3, &f.all, START + 9000,
                                        50, f.matched), 0);
    fixture_free(&f);

    fixture_make(&f, MIB, 20 * 60 * 1000);
    unit = 20 * 60 * 1000 / 1024;
    fixture_record(&f, chain, 3, 9, START);
    assert_int_equal(fixture_match(&f, chain, 3,
                                   START + 20 * 60 * 1000 - 2 * unit), 3);
    assert_int_equal(fixture_match(&f, chain, 3, START + 20 * 60 * 1000), 0);
    fixture_free(&f);
}


/* Long after, when stamps and cells have wrapped, nothing comes to life. */
static void
test_idle(void **state)
{
    uint64_t   chain[3], now;
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, TTL);
    fixture_chain(chain, 3, 1);
    fixture_record(&f, chain, 3, 9, START);

    for (now = START + TTL; now < START + 500ull * TTL; now += TTL / 3) {
        assert_int_equal(fixture_match(&f, chain, 3, now), 0);
    }

    fixture_record(&f, chain, 3, 9, now);
    assert_int_equal(fixture_match(&f, chain, 3, now), 3);
    fixture_free(&f);
}


static void
test_clock_order(void **state)
{
    uint64_t   chain[3];
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, 1000);
    fixture_chain(chain, 3, 1);

    /* a writer whose clock is behind does not make anything older */

    fixture_record(&f, chain, 3, 9, START + 500);
    fixture_record(&f, chain, 3, 9, START + 400);
    assert_int_equal(fixture_match(&f, chain, 3, START + 1450), 3);

    /* a reader whose clock is behind sees what was just written */

    assert_int_equal(fixture_match(&f, chain, 3, START + 500 - 200), 3);

    /* nor does it make the entry older for eviction */

    fixture_record(&f, chain, 3, 8, START + 300);
    assert_int_equal(fixture_match(&f, chain, 3, START + 500), 3);
    assert_int_equal(f.matched[8], 3);
    assert_int_equal(f.matched[9], 3);

    /* the first milliseconds of a machine */

    fixture_chain(chain, 3, 2);
    fixture_record(&f, chain, 3, 7, 0);
    assert_int_equal(fixture_match(&f, chain, 3, 0), 3);
    assert_int_equal(fixture_match(&f, chain, 3, 999), 3);
    assert_int_equal(fixture_match(&f, chain, 3, 1000), 0);
    fixture_free(&f);
}


static void
test_tail_goes_first(void **state)
{
    size_t     i, k;
    uint64_t   hashes[14];
    fixture_t  f;

    (void) state;

    for (k = 0; k <= 6; k++) {
        fixture_make(&f, MIB, TTL);
        fixture_rivals(&f, hashes, 14);
        fixture_record(&f, hashes, 8, 1, START);

        for (i = 0; i < k; i++) {
            fixture_record(&f, &hashes[8 + i], 1, 2, START);
        }

        assert_int_equal(fixture_stat(&f).evictions, k);
        assert_int_equal(fixture_match(&f, hashes, 8, START), 8 - k);
        fixture_free(&f);
    }

    /* asked again and again, a head stays before its tail */

    fixture_make(&f, MIB, TTL);
    fixture_rivals(&f, hashes, 14);
    fixture_record(&f, hashes, 8, 1, START + 100000);

    for (i = 0; i < 200; i++) {
        (void) fixture_match(&f, hashes, 1 + i % 8, START + 100000 + i * 777);
    }

    /* each new one is asked for too, or it would be the next to go */

    for (i = 0; i < 6; i++) {
        fixture_record(&f, &hashes[8 + i], 1, 2, START + 300000);
        fixture_record(&f, &hashes[8 + i], 1, 2, START + 300000);
    }

    assert_int_equal(fixture_match(&f, hashes, 8, START + 300000), 2);
    fixture_free(&f);
}


/* Where all else is asked for, a new tail does not push out its head. */
static void
test_new_head_stays(void **state)
{
    size_t     i;
    uint64_t   hashes[12];
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, TTL);
    fixture_rivals(&f, hashes, 12);

    for (i = 0; i < 7; i++) {
        fixture_record(&f, &hashes[i], 1, 1, START);
        fixture_record(&f, &hashes[i], 1, 1, START);
    }

    fixture_record(&f, &hashes[7], 3, 1, START);
    assert_int_equal(fixture_match(&f, &hashes[7], 3, START), 1);
    assert_int_equal(fixture_stat(&f).evictions, 0);

    /* but it gets a place where all are of the first kind */

    fixture_record(&f, &hashes[10], 2, 1, START);
    assert_int_equal(fixture_match(&f, &hashes[10], 2, START), 1);
    assert_int_equal(fixture_stat(&f).evictions, 1);
    fixture_free(&f);
}


static void
test_match_refreshes(void **state)
{
    size_t     i;
    uint64_t   hashes[16];
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, TTL);
    fixture_rivals(&f, hashes, 16);

    for (i = 0; i < 8; i++) {
        fixture_record(&f, &hashes[i], 1, 1, START + i * 2000);
    }

    /* the two oldest are asked for once, so the next two go instead */

    assert_int_equal(fixture_match(&f, &hashes[0], 1, START + 20000), 1);
    assert_int_equal(fixture_match(&f, &hashes[1], 1, START + 20000), 1);
    fixture_record(&f, &hashes[8], 1, 1, START + 30000);
    fixture_record(&f, &hashes[9], 1, 1, START + 30000);

    assert_int_equal(fixture_match(&f, &hashes[0], 1, START + 30000), 1);
    assert_int_equal(fixture_match(&f, &hashes[1], 1, START + 30000), 1);
    assert_int_equal(fixture_match(&f, &hashes[2], 1, START + 30000), 0);
    assert_int_equal(fixture_match(&f, &hashes[3], 1, START + 30000), 0);
    assert_int_equal(fixture_match(&f, &hashes[4], 1, START + 30000), 1);
    fixture_free(&f);
}


/* An entry of use to nobody goes before any other, however new it is. */
static void
test_dead_go_first(void **state)
{
    size_t     i, k;
    uint64_t   hashes[10];
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, TTL);

    for (k = 0; k < 30; k++) {
        fixture_rivals(&f, hashes, 10);

        for (i = 0; i < 8; i++) {
            fixture_record(&f, &hashes[i], 1, (uint32_t) i, START + i * 2000);
        }

        aibrix_index_unrecord(f.ix, hashes, 6, 7, 6);
        assert_int_equal(fixture_stat(&f).blocks, k * 8 + 7);
        aibrix_index_forget(f.ix, 5, START + 20000);
        fixture_record(&f, &hashes[8], 1, 20, START + 20000);
        fixture_record(&f, &hashes[9], 1, 20, START + 20000);
        assert_int_equal(fixture_stat(&f).evictions, 0);
        assert_int_equal(fixture_stat(&f).blocks, k * 8 + 8);

        for (i = 0; i < 10; i++) {
            assert_int_equal(fixture_match(&f, &hashes[i], 1, START + 20000),
                             i != 5 && i != 6);
        }

        f.ix->forgotten[5] = 0;
    }

    fixture_free(&f);
}


/* What a clock ahead has stamped is young, not older than all. */
static void
test_clock_ahead(void **state)
{
    size_t     i, k;
    uint64_t   hashes[16];
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, TTL);

    for (k = 0; k < 30; k++) {
        fixture_rivals(&f, hashes, 16);
        fixture_record(&f, hashes, 1, 1, START + 30000);
        fixture_record(&f, hashes, 1, 1, START + 30000);

        for (i = 1; i < 16; i++) {
            fixture_record(&f, &hashes[i], 1, 1, START + i);
        }

        assert_int_equal(fixture_match(&f, hashes, 1, START + 16), 1);
    }

    fixture_free(&f);
}


static void
test_pressure(void **state)
{
    size_t     i, n, chains, whole, kept;
    uint64_t   chain[50], now;
    fixture_t  f;

    (void) state;

    fixture_make(&f, 4 * MIB, TTL);
    chains = 3 * fixture_stat(&f).capacity / 50;
    now = START;

    for (i = 0; i < chains; i++) {
        fixture_chain(chain, 50, i);
        fixture_record(&f, chain, 50, i % 5, now);
        now += 50;
    }

    assert_int_equal(fixture_stat(&f).inserts,
                     fixture_stat(&f).blocks + fixture_stat(&f).evictions);
    assert_true(fixture_stat(&f).blocks * 100
                > fixture_stat(&f).capacity * 99);
    assert_true(fixture_stat(&f).blocks <= fixture_stat(&f).capacity);

    /* the youngest 12th is whole but for a few, the oldest third is gone */

    whole = 0;
    kept = 0;
    now = START + chains * 50;

    for (i = 0; i < chains; i++) {
        fixture_chain(chain, 50, i);
        n = fixture_match(&f, chain, 50, now);
        whole += (i >= chains - chains / 12) && n == 50;
        kept += (i < chains / 3) ? n : 0;
    }

    assert_true(whole > chains / 12 * 95 / 100);
    assert_true(kept < chains / 3);
    fixture_free(&f);
}


static void
test_default_zone(void **state)
{
    size_t     i;
    uint64_t   chain[200];
    fixture_t  f;

    (void) state;

    fixture_make(&f, 60 * MIB, TTL);

    for (i = 0; i < 1000; i++) {
        fixture_chain(chain, 200, i);
        fixture_record(&f, chain, 200, i % 7, START + i);
    }

    assert_int_equal(fixture_stat(&f).blocks, 200000);
    assert_int_equal(fixture_stat(&f).inserts, 200000);
    assert_int_equal(fixture_stat(&f).evictions, 0);

    for (i = 0; i < 1000; i++) {
        fixture_chain(chain, 200, i);
        assert_int_equal(fixture_match(&f, chain, 200, START + 1000), 200);
        assert_int_equal(f.matched[i % 7], 200);
    }

    fixture_free(&f);
}


/*
 * A hot set of a quarter of the table, asked for every 20th of the ttl, while
 * ten times the table of prompts that nobody asks for again passes.
 */
static void
test_scan(void **state)
{
    size_t     i, k, hot, cold, found;
    uint64_t   chain[25], now;
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, TTL);
    hot = fixture_stat(&f).capacity / 4 / 25;
    now = START;
    cold = hot;

    for (k = 0; k < 2; k++) {

        for (i = 0; i < hot; i++) {
            fixture_chain(chain, 25, i);
            fixture_record(&f, chain, 25, 1, now);
        }
    }

    for (k = 0; k < 10; k++) {

        for (i = 0; i < 4 * hot; i++) {
            fixture_chain(chain, 25, cold++);
            fixture_record(&f, chain, 25, 1, now + TTL / 20 * i / (4 * hot));
        }

        now += TTL / 20;
        found = 0;

        for (i = 0; i < hot; i++) {
            fixture_chain(chain, 25, i);
            found += fixture_match(&f, chain, 25, now);
        }

        /* a few buckets hold more than eight of the hot set */

        assert_true(found > hot * 25 * 98 / 100);
    }

    /* and once nobody asks for it, the set goes as all does */

    for (i = 0; i < 40 * hot; i++) {
        fixture_chain(chain, 25, cold++);
        fixture_record(&f, chain, 25, 1, now + TTL / 2 * i / (40 * hot));
    }

    now += TTL / 2;
    found = 0;

    for (i = 0; i < hot; i++) {
        fixture_chain(chain, 25, i);
        found += fixture_match(&f, chain, 25, now);
    }

    assert_true(found < hot * 25 / 50);
    fixture_free(&f);
}


static void
test_oldest(void **state)
{
    uint64_t   a[5], b[5], at, age, part, n;
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, 1000);
    fixture_chain(a, 5, 1);
    fixture_chain(b, 5, 2);
    assert_int_equal(aibrix_index_oldest(f.ix, START, 1000), 0);

    fixture_record(&f, a, 5, 1, START);
    fixture_record(&f, b, 5, 2, START + 300);
    assert_int_equal(aibrix_index_oldest(f.ix, START + 700, 1000), 700);
    assert_int_equal(aibrix_index_oldest(f.ix, START + 1100, 1000), 800);
    assert_int_equal(aibrix_index_oldest(f.ix, START + 1100, 2000), 1100);
    fixture_record(&f, a, 5, 3, START + 600);
    assert_int_equal(aibrix_index_oldest(f.ix, START + 700, 1000), 400);
    assert_int_equal(aibrix_index_oldest(f.ix, START + 9000, 1000), 0);

    /* in parts */

    at = 0;
    age = 0;
    n = 0;

    do {
        part = aibrix_index_oldest_part(f.ix, &at, 96, START + 700, 1000);
        age = (part > age) ? part : age;
        n++;
    } while (at != 0);

    assert_int_equal(age, 400);
    assert_int_equal(n, (fixture_stat(&f).capacity + 95) / 96);

    at = 0;
    assert_int_equal(aibrix_index_oldest_part(f.ix, &at, UINT64_MAX / 2,
                                              START + 700, 1000), 400);
    assert_int_equal(at, 0);

    /* counts that a kill made wrong are put right */

    f.ix->blocks = (uint64_t) -3;
    assert_int_equal(fixture_stat(&f).blocks, 0);
    f.ix->blocks = 1 << 30;
    assert_int_equal(fixture_stat(&f).blocks, fixture_stat(&f).capacity);
    (void) aibrix_index_oldest(f.ix, START + 700, 1000);
    assert_int_equal(fixture_stat(&f).blocks, 10);
    fixture_free(&f);
}


/* 100 million blocks and more; the pages that are not used cost nothing. */
static void
test_large(void **state)
{
    size_t                i, size, upper;
    uint64_t              chain[500];
    uint32_t              matched[AIBRIX_MAX_PEERS];
    aibrix_index_t       *ix;
    aibrix_peerset_t      among;
    aibrix_index_stat_t   st;

    (void) state;

    size = 12ull << 30;
    ix = mmap(NULL, size, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(ix, MAP_FAILED);
    assert_ptr_equal(aibrix_index_init(ix, size, TTL), ix);

    fixture_chain(chain, 500, 1);
    memset(&among, 0xff, sizeof(among));
    memset(matched, 0, sizeof(matched));
    upper = 0;

    for (i = 0; i < 500; i++) {
        upper += (size_t) aibrix_ix_block_key(ix, chain[i]).bucket
                 - (size_t) ix > 8ull << 30;
    }

    assert_in_range(upper, 100, 250);
    aibrix_index_record(ix, chain, 500, 4, START, TTL);
    assert_int_equal(aibrix_index_match(ix, chain, 500, &among, START, TTL,
                                        matched), 500);
    assert_int_equal(matched[4], 500);

    aibrix_index_stat(ix, &st);
    assert_true(st.capacity > 400 * 1000 * 1000);
    assert_int_equal(st.blocks, 500);
    munmap(ix, size);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_check_finds),
        cmocka_unit_test(test_match_per_peer),
        cmocka_unit_test(test_unbroken),
        cmocka_unit_test(test_ttl),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_clock_order),
        cmocka_unit_test(test_tail_goes_first),
        cmocka_unit_test(test_new_head_stays),
        cmocka_unit_test(test_match_refreshes),
        cmocka_unit_test(test_dead_go_first),
        cmocka_unit_test(test_clock_ahead),
        cmocka_unit_test(test_pressure),
        cmocka_unit_test(test_default_zone),
        cmocka_unit_test(test_scan),
        cmocka_unit_test(test_oldest),
        cmocka_unit_test(test_large),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
