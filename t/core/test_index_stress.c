
/*
 * The index under threads (clean under ThreadSanitizer), and with memory that
 * is full of anything.
 */

#include <pthread.h>

#include "index_fixture.h"


#define MIB             (1024 * 1024)

#define STRESS_THREADS  4
#define STRESS_ROUNDS   40000
#define STRESS_CHAIN    12
#define STRESS_CHAINS   64


typedef struct {
    uint64_t         random;
    uint64_t         wrong;
    uint64_t         found;
    aibrix_index_t  *ix;
} worker_t;


/* Peers of a family: those that are its number modulo STRESS_THREADS. */
static uint32_t
stress_peer(uint32_t family, uint32_t i)
{
    return i * STRESS_THREADS + family;
}


static void
stress_look(worker_t *w, uint32_t family, const uint64_t *chain, uint64_t now)
{
    uint32_t          peer, matched[AIBRIX_MAX_PEERS];
    aibrix_peerset_t  all;

    memset(&all, 0, sizeof(all));
    memset(all.word, 0xff, 4 * sizeof(uint64_t));
    memset(matched, 0, sizeof(matched));
    w->found += aibrix_index_match(w->ix, chain, STRESS_CHAIN, &all, now, TTL,
                                   matched);

    for (peer = 0; peer < 256; peer++) {
        w->wrong += matched[peer] != 0 && peer % STRESS_THREADS != family;
    }
}


/*
 * Every thread records peers of all families, but each family's chains for
 * its own peers only; so what a chain matches tells a right hint from a wrong
 * one.
 */
static void *
stress_worker(void *data)
{
    size_t     len;
    uint32_t   round, what, family, peer;
    uint64_t   now, chain[STRESS_CHAIN];
    worker_t  *w;

    w = data;

    for (round = 0; round < STRESS_ROUNDS; round++) {
        what = (uint32_t) (fixture_mix(w->random++) >> 32);
        now = START + round * 10 + what % 5;
        family = what / 64 % STRESS_THREADS;
        len = 1 + what / 256 % STRESS_CHAIN;
        peer = stress_peer(family, what / 4096 % 64);
        fixture_chain(chain, STRESS_CHAIN,
                      (what >> 20) % STRESS_CHAINS * STRESS_THREADS + family);

        switch (what % 16) {
        case 0:
            aibrix_index_forget(w->ix, peer, now);
            break;

        case 1:
            aibrix_index_unrecord(w->ix, chain, len / 2, len, peer);
            break;

        case 2:
        case 3:
        case 4:
        case 5:
            stress_look(w, family, chain, now);
            break;

        default:
            aibrix_index_record(w->ix, chain, len, peer, now, TTL);
            break;
        }
    }

    return NULL;
}


/* Entries that are in their bucket twice. */
static size_t
stress_twins(const aibrix_index_t *ix)
{
    size_t    i, n;
    uint64_t  tag;
    unsigned  way;

    n = 0;

    for (i = 0; i < ix->shape.nbuckets; i++) {

        for (way = 0; way < AIBRIX_IX_WAYS; way++) {
            tag = aibrix_ix_tag_of(aibrix_ix_buckets(ix)[i].tag[way]);
            n += tag != 0
                 && __builtin_ctz(aibrix_ix_ways(aibrix_ix_buckets(ix) + i,
                                                 tag)) < (int) way;
        }
    }

    return n;
}


static void
stress_run(size_t size)
{
    uint32_t             i, family;
    uint64_t             chain[STRESS_CHAIN], wrong, found;
    worker_t             workers[STRESS_THREADS + 1];
    pthread_t            threads[STRESS_THREADS];
    fixture_t            f;

    fixture_make(&f, size, TTL);

    for (i = 0; i <= STRESS_THREADS; i++) {
        memset(&workers[i], 0, sizeof(worker_t));
        workers[i].random = i * 1000000;
        workers[i].ix = f.ix;
    }

    for (i = 0; i < STRESS_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, stress_worker,
                                        &workers[i]), 0);
    }

    wrong = 0;
    found = 0;

    for (i = 0; i < STRESS_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        wrong += workers[i].wrong;
        found += workers[i].found;
    }

    /* a late store is seen for the few instructions until it is undone */

    assert_true(found > STRESS_ROUNDS / 4);
    assert_true(wrong < 5);
    assert_null(aibrix_index_check(f.ix));
    assert_int_equal(stress_twins(f.ix), 0);

    i = STRESS_THREADS;
    workers[i].wrong = 0;

    for (family = 0; family < STRESS_THREADS * STRESS_CHAINS; family++) {
        fixture_chain(chain, STRESS_CHAIN, family);
        stress_look(&workers[i], family % STRESS_THREADS, chain,
                    START + STRESS_ROUNDS * 10);
    }

    assert_int_equal(workers[i].wrong, 0);

    /* the count is kept by all, and right */

    found = fixture_stat(&f).blocks;
    (void) aibrix_index_oldest(f.ix, START, TTL);
    assert_int_equal(fixture_stat(&f).blocks, found);
    fixture_free(&f);
}


static void
test_threads(void **state)
{
    (void) state;

    stress_run(4 * MIB);
}


/* So small that all entries are fought for. */
static void
test_threads_evicting(void **state)
{
    (void) state;

    stress_run(aibrix_index_min_size());
}


static void
garbage_fill(fixture_t *f, uint32_t kind)
{
    size_t     i, n;
    uint64_t  *word;

    word = (uint64_t *) f->ix->forgotten - 8;
    n = ((char *) f->mem + f->size - (char *) word) / sizeof(uint64_t);

    for (i = 0; i < n; i++) {

        switch (kind) {
        case 0:
            word[i] = fixture_mix(f->random++);
            break;

        case 1:
            word[i] = UINT64_MAX;
            break;

        case 2:
            word[i] = (uint64_t) fixture_random(f, 4) << 30;
            break;

        default:
            if (fixture_random(f, 10) == 0) {
                word[i] ^= fixture_mix(f->random++);
            }
        }
    }
}


static void
test_garbage(void **state)
{
    size_t     n;
    uint32_t   round, k, what, peer;
    uint64_t   chain[40], now;
    fixture_t  f;

    (void) state;

    fixture_make(&f, aibrix_index_min_size() + 1000 * 256, TTL);

    for (round = 0; round < 60; round++) {
        garbage_fill(&f, round % 4);
        assert_true(aibrix_index_valid(f.mem, f.size));
        (void) aibrix_index_check(f.ix);

        for (k = 0; k < 500; k++) {
            what = fixture_random(&f, 100);
            now = (what == 7) ? UINT64_MAX : START + k;
            now = (what == 8) ? 0 : now;
            n = fixture_random(&f, 40);
            peer = fixture_random(&f, AIBRIX_MAX_PEERS);
            fixture_chain(chain, 40, fixture_random(&f, 30));

            if (what % 5 == 0) {
                aibrix_index_forget(f.ix, peer, now);

            } else if (what % 5 == 1) {
                aibrix_index_unrecord(f.ix, chain, n / 2, n, peer);

            } else if (what % 5 == 2) {
                aibrix_index_record(f.ix, chain, n, peer, now, TTL);

            } else {
                assert_true(fixture_match(&f, chain, n, now) <= n);
            }
        }

        assert_true(fixture_stat(&f).blocks <= fixture_stat(&f).capacity);
        assert_true(aibrix_index_oldest(f.ix, START, TTL) <= TTL);
        assert_true(fixture_stat(&f).blocks <= fixture_stat(&f).capacity);
    }

    free(f.mem);
}


/* Entries with anything in them are put to use again by and by. */
static void
test_garbage_heals(void **state)
{
    size_t     i, found;
    uint64_t   chain[10];
    fixture_t  f;

    (void) state;

    fixture_make(&f, MIB, TTL);
    garbage_fill(&f, 0);
    memset(f.ix->forgotten, 0, sizeof(f.ix->forgotten));
    found = 0;

    for (i = 0; i < 20000; i++) {
        fixture_chain(chain, 10, i);
        fixture_record(&f, chain, 10, i % 100, START + i * 100);
        found += fixture_match(&f, chain, 10, START + i * 100);
        assert_true(f.matched[i % 100] <= 10);
    }

    assert_true(found > 20000 * 10 * 98 / 100);
    free(f.mem);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_threads_evicting),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_garbage_heals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
