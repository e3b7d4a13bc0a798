
/*
 * Writers in processes of their own are killed at any instruction, hundreds
 * of times; what they leave has to be an index, and one that works.
 */

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "index_fixture.h"


#define KILL_TTL      10000     /* ms; a claim is void after 65 to 128 */
#define KILL_WRITERS  3
#define KILL_KILLS    125
#define KILL_FAMILIES 4
#define KILL_CHAINS   64
#define KILL_CHAIN    12
#define KILL_PEERS    256


static fixture_t  f;


static uint64_t
kill_now(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000 + (uint64_t) ts.tv_nsec / 1000000;
}


static void
kill_make(size_t size)
{
    f.size = (size + 63) & ~(size_t) 63;
    f.mem = mmap(NULL, f.size, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(f.mem, MAP_FAILED);
    memset(&f.all, 0xff, sizeof(f.all));
    f.ix = aibrix_index_init(f.mem, f.size, KILL_TTL);
    assert_non_null(f.ix);
}


/* A chain belongs to a family, and only peers of the family record it. */
static void
kill_writer(uint64_t random)
{
    size_t    len;
    uint32_t  what, family, peer;
    uint64_t  now, chain[KILL_CHAIN];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    f.random = random << 32;

    for ( ;; ) {
        what = fixture_random(&f, UINT32_MAX);
        now = kill_now();
        family = what / 64 % KILL_FAMILIES;
        len = 1 + what / 256 % KILL_CHAIN;
        peer = what / 4096 % (KILL_PEERS / KILL_FAMILIES) * KILL_FAMILIES
               + family;
        fixture_chain(chain, len, (what >> 20) % KILL_CHAINS * KILL_FAMILIES
                                  + family);

        switch (what % 16) {
        case 0:
            aibrix_index_forget(f.ix, peer, now);
            break;

        case 1:
            aibrix_index_unrecord(f.ix, chain, len / 2, len, peer);
            break;

        case 2:
        case 3:
            (void) fixture_match(&f, chain, len, now);
            break;

        default:
            fixture_record(&f, chain, len, peer, now);
            break;
        }
    }
}


static pid_t
kill_start(uint64_t random)
{
    pid_t  pid;

    pid = fork();

    if (pid == 0) {
        kill_writer(random);
        _exit(1);
    }

    assert_true(pid > 0);

    return pid;
}


static void
kill_one(pid_t pid)
{
    int  status;

    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);

    /* it was alive until then: no writer ever crashed by itself */

    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}


static void
kill_at_random(void)
{
    pid_t            pids[KILL_WRITERS];
    uint32_t         i, k;
    fixture_t        random;
    struct timespec  pause;

    memset(&random, 0, sizeof(random));

    for (i = 0; i < KILL_WRITERS; i++) {
        pids[i] = kill_start(i + 1);
    }

    for (k = 0; k < KILL_KILLS; k++) {
        pause.tv_sec = 0;
        pause.tv_nsec = fixture_random(&random, 10000000);
        nanosleep(&pause, NULL);

        i = fixture_random(&random, KILL_WRITERS);
        kill_one(pids[i]);
        assert_null(aibrix_index_check(f.ix));
        pids[i] = kill_start(KILL_WRITERS + 1 + k);
    }

    for (i = 0; i < KILL_WRITERS; i++) {
        kill_one(pids[i]);
    }
}


/* Hints that name a peer of another family than the chain's. */
static uint32_t
kill_wrong_hints(uint64_t now)
{
    uint32_t  chain, peer, wrong;
    uint64_t  hashes[KILL_CHAIN];

    wrong = 0;

    for (chain = 0; chain < KILL_CHAINS * KILL_FAMILIES; chain++) {
        fixture_chain(hashes, KILL_CHAIN, chain);
        (void) fixture_match(&f, hashes, KILL_CHAIN, now);

        for (peer = 0; peer < AIBRIX_MAX_PEERS; peer++) {
            wrong += f.matched[peer] != 0
                     && peer % KILL_FAMILIES != chain % KILL_FAMILIES;
        }
    }

    return wrong;
}


/* Every entry can be used again: none is left claimed by the dead. */
static void
kill_all_usable(uint64_t now)
{
    size_t    i, n;
    uint64_t  hash;
    unsigned  way;

    n = 20 * fixture_stat(&f).capacity;

    for (i = 0; i < n; i++) {
        hash = fixture_mix(i << 32);
        fixture_record(&f, &hash, 1, 1, now);
    }

    for (i = 0; i < f.ix->shape.nbuckets; i++) {

        for (way = 0; way < AIBRIX_IX_WAYS; way++) {
            assert_true(aibrix_ix_is_block(aibrix_ix_buckets(f.ix)[i]
                                           .tag[way]));
        }
    }
}


static void
kill_run(size_t size, uint64_t least)
{
    uint32_t             chain, matched;
    uint64_t             now, counted, found, hashes[KILL_CHAIN];
    aibrix_index_stat_t  st;

    kill_make(size);
    kill_at_random();

    assert_null(aibrix_index_check(f.ix));
    assert_true(aibrix_index_valid(f.mem, f.size));
    st = fixture_stat(&f);
    assert_true(st.inserts > least);

    now = kill_now();
    assert_true(kill_wrong_hints(now) <= 1);

    /* a kill leaves the counts of one call out, not more */

    counted = f.ix->blocks;
    (void) aibrix_index_oldest(f.ix, now, KILL_TTL);
    found = fixture_stat(&f).blocks;
    assert_true(llabs((long long) (counted - found))
                <= KILL_CHAIN * (KILL_KILLS + KILL_WRITERS));

    print_message("%lu kB: %u kills, %lu blocks inserted, %lu evictions, "
                  "%lld blocks miscounted\n", (unsigned long) f.size / 1024,
                  KILL_KILLS + KILL_WRITERS, (unsigned long) st.inserts,
                  (unsigned long) st.evictions,
                  (long long) (counted - found));

    /* it works on */

    now += 2 * KILL_TTL;
    kill_all_usable(now);
    matched = 0;

    for (chain = 0; chain < 200; chain++) {
        fixture_chain(hashes, 4, 1000000 + chain);
        fixture_record(&f, hashes, 4, 77, now + chain);
        matched += fixture_match(&f, hashes, 4, now + chain);
        assert_true(f.matched[77] <= 4);
    }

    /* a bucket may get two of the four, and has room for one new one only */

    assert_true(matched > 200 * 4 * 90 / 100);

    assert_null(aibrix_index_check(f.ix));
    munmap(f.mem, f.size);
}


static void
test_kill(void **state)
{
    (void) state;

    kill_run(4 * 1024 * 1024, 1000);
}


static void
test_kill_evicting(void **state)
{
    (void) state;

    kill_run(aibrix_index_min_size(), 100000);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_kill_evicting),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
