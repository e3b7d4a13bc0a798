
/*
 * A writer is taken through its calls one machine instruction at a time, and
 * whenever memory has changed, what a kill would have left there is tried: it
 * has to be a sound index, say nothing wrong, and be of use, with every entry.
 */

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "index_fixture.h"


#define STEP_CHAIN   6
#define STEP_CHAINS  90         /* as many blocks as there are entries */
#define STEP_PEERS   200


static fixture_t  shared;       /* the writer's index */
static fixture_t  seen;         /* as it was when it last changed */
static fixture_t  tried;        /* a copy of that to work with */
static uint64_t   now;
static uint32_t   states;

/* who may be said to know a chain: all that were ever recorded for it */
static uint8_t    may_know[STEP_CHAINS][STEP_PEERS];


static void
step_setup(void)
{
    void  *mem;

    fixture_make(&seen, aibrix_index_min_size(), TTL);
    fixture_make(&tried, seen.size, TTL);
    shared = seen;
    mem = mmap(NULL, seen.size, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(mem, MAP_FAILED);
    shared.mem = mem;
    shared.ix = aibrix_index_init(mem, seen.size, TTL);
    assert_non_null(shared.ix);
    memset(may_know, 0, sizeof(may_know));
    now = START;
    states = 0;
}


static void
step_teardown(void)
{
    munmap(shared.mem, shared.size);
    free(seen.mem);
    free(tried.mem);
}


static void
step_record(uint32_t chain, size_t n, uint32_t peer)
{
    uint64_t  hashes[STEP_CHAIN];

    may_know[chain][peer] = 1;
    fixture_chain(hashes, n, chain);
    fixture_record(&shared, hashes, n, peer, now);
}


static void
step_nothing_wrong(void)
{
    uint32_t  chain, peer;
    uint64_t  hashes[STEP_CHAIN];

    assert_null(aibrix_index_check(tried.ix));

    for (chain = 0; chain < STEP_CHAINS; chain++) {
        fixture_chain(hashes, STEP_CHAIN, chain);
        (void) fixture_match(&tried, hashes, STEP_CHAIN, now);

        for (peer = 0; peer < AIBRIX_MAX_PEERS; peer++) {
            assert_true(tried.matched[peer] == 0
                        || (peer < STEP_PEERS && may_know[chain][peer]));
        }
    }
}


/* At once for one more block a bucket, by and by for all of the entries. */
static void
step_all_of_use(void)
{
    size_t               i, n;
    uint64_t             hash, later;
    unsigned             way;
    aibrix_ix_bucket_t  *bucket;

    for (i = 0; i < tried.ix->shape.nbuckets; i++) {
        hash = fixture_mix(1ull << 40 | i);
        fixture_record(&tried, &hash, 1, 1, now);
        assert_int_equal(fixture_match(&tried, &hash, 1, now), 1);
    }

    n = 30 * fixture_stat(&tried).capacity;
    later = now + 2 * TTL;

    for (i = 0; i < n; i++) {
        hash = fixture_mix(1ull << 41 | i);
        fixture_record(&tried, &hash, 1, 1, later);
    }

    for (i = 0; i < tried.ix->shape.nbuckets; i++) {
        bucket = aibrix_ix_buckets(tried.ix) + i;

        for (way = 0; way < AIBRIX_IX_WAYS; way++) {
            assert_true(aibrix_ix_is_block(bucket->tag[way]));
        }
    }

    assert_null(aibrix_index_check(tried.ix));
}


static void
step_look(void)
{
    if (memcmp(seen.mem, shared.mem, shared.size) == 0) {
        return;
    }

    states++;
    memcpy(seen.mem, shared.mem, shared.size);
    memcpy(tried.mem, seen.mem, seen.size);
    step_nothing_wrong();
    step_all_of_use();
}


static void
step_through(void (*calls)(void))
{
    int    status;
    pid_t  pid;

    memcpy(seen.mem, shared.mem, shared.size);
    pid = fork();
    assert_true(pid >= 0);

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        calls();
        _exit(0);
    }

    assert_int_equal(waitpid(pid, &status, 0), pid);

    while (WIFSTOPPED(status)) {
        step_look();
        assert_int_equal(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
    }

    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}


static void
calls_evict(void)
{
    uint32_t  chain;

    for (chain = STEP_CHAINS - 4; chain < STEP_CHAINS; chain++) {
        step_record(chain, STEP_CHAIN, chain % 7);
    }
}


/* A full index: all that is new needs the place of something. */
static void
test_evicting(void **state)
{
    uint32_t  chain;

    (void) state;

    step_setup();

    for (chain = 0; chain < STEP_CHAINS - 4; chain++) {
        step_record(chain, STEP_CHAIN, chain % 7);
        now += 500;
    }

    for ( /* void */ ; chain < STEP_CHAINS; chain++) {
        may_know[chain][chain % 7] = 1;
    }

    step_through(calls_evict);
    assert_true(states > 80);
    step_teardown();
}


static void
calls_groups(void)
{
    uint32_t  peer;

    for (peer = 0; peer < 12; peer++) {
        step_record(0, 2, peer * 16);
    }

    aibrix_index_forget(shared.ix, 32, now);
    step_record(0, 2, 32);
    now += TTL / 2;
    step_record(0, 2, 176);
    now += TTL * 2;
    step_record(0, 2, 0);
}


/* From cells to groups, a peer forgotten among them, epochs that end. */
static void
test_groups(void **state)
{
    uint32_t  peer, chain;

    (void) state;

    step_setup();

    for (chain = 1; chain < STEP_CHAINS; chain++) {
        step_record(chain, STEP_CHAIN, chain % 7);
    }

    for (peer = 0; peer < 12; peer++) {
        may_know[0][peer * 16] = 1;
    }

    step_through(calls_groups);
    assert_true(states > 50);
    step_teardown();
}


/* Of few peers: every instruction has its price here. */
static void
step_match(uint32_t chain)
{
    uint64_t          hashes[STEP_CHAIN];
    uint32_t          matched[64];
    aibrix_peerset_t  among;

    memset(&among, 0, sizeof(among));
    among.word[0] = 0x10085;
    fixture_chain(hashes, STEP_CHAIN, chain);
    (void) aibrix_index_match(shared.ix, hashes, STEP_CHAIN, &among, now, TTL,
                              matched);
}


static void
calls_take_back(void)
{
    uint32_t  peer;
    uint64_t  hashes[STEP_CHAIN];

    fixture_chain(hashes, STEP_CHAIN, 0);

    for (peer = 0; peer < 12; peer++) {
        aibrix_index_unrecord(shared.ix, hashes, peer % 3, 3, peer * 16);
    }

    fixture_chain(hashes, STEP_CHAIN, 1);
    aibrix_index_unrecord(shared.ix, hashes, 0, STEP_CHAIN, 1);
    step_match(2);
    aibrix_index_forget(shared.ix, 2, now);
    now += TTL * 2;
    step_record(0, 2, 7);
    step_match(0);
}


/* Unrecorded, forgotten, matched; masks whose groups have gone. */
static void
test_taking_back(void **state)
{
    uint32_t  peer, chain;

    (void) state;

    step_setup();

    for (peer = 0; peer < 12; peer++) {
        step_record(0, 3, peer * 16);
    }

    for (chain = 1; chain < 20; chain++) {
        step_record(chain, STEP_CHAIN, chain);
    }

    may_know[0][7] = 1;
    step_through(calls_take_back);
    assert_true(states > 30);
    step_teardown();
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_evicting),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_taking_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
