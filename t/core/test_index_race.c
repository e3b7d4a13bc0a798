
/*
 * One process is stopped after each of its machine instructions, another does
 * something to the same entries, and the first goes on: a reader must not be
 * told wrong, a writer must not leave anything wrong.
 *
 * The first is stepped through its call once only.  At every step a twin of
 * it is made, a fork that is given its registers and stack, and it is the
 * twin that is overtaken and goes on.
 */

#define _GNU_SOURCE

#include <elf.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "index_fixture.h"


/* All in the same bucket; block i is for peers that are i modulo 40. */
#define RACE_BLOCKS  40
#define RACE_STACK   (64 * 1024)

#ifdef __x86_64__
#define RACE_VECTORS  NT_X86_XSTATE
#else
#define RACE_VECTORS  NT_PRFPREG
#endif


/* All that a process in a call of the index has, but for the index. */
typedef struct {
    char     *base;             /* of the stack that is copied */
    char      stack[RACE_STACK];
    char      registers[1024];
    char      vectors[16384];
    size_t    nregisters;
    size_t    nvectors;
} moment_t;


typedef struct {
    void     (*setup)(void);
    int      (*first)(void);    /* exit status of the one who is stopped */
    void     (*second)(void);
    void     (*check)(void);
} race_t;


/* A call by name would have the loader resolve it, in a thousand steps. */
static void     (*volatile leave)(int) = _exit;

static fixture_t  f;
static uint64_t   block[RACE_BLOCKS];


static uint32_t
race_peer(uint32_t i, uint32_t k)
{
    return k * RACE_BLOCKS + i;
}


static void
race_record(uint32_t i, uint32_t k)
{
    fixture_record(&f, &block[i], 1, race_peer(i, k), START);
}


/* Returns how many peers are named wrongly. */
static uint32_t
race_wrong(uint32_t i)
{
    uint32_t  peer, wrong;

    wrong = 0;
    (void) fixture_match(&f, &block[i], 1, START);

    for (peer = 0; peer < AIBRIX_MAX_PEERS; peer++) {
        wrong += f.matched[peer] != 0 && peer % RACE_BLOCKS != i;
    }

    return wrong;
}


static int
race_knows(uint32_t i, uint32_t k)
{
    (void) fixture_match(&f, &block[i], 1, START);

    return f.matched[race_peer(i, k)] == 1;
}


static void
race_check(void)
{
    uint32_t             i;
    unsigned             way;
    uint64_t             tag;
    aibrix_ix_bucket_t  *bucket;

    assert_null(aibrix_index_check(f.ix));

    for (i = 0; i < RACE_BLOCKS; i++) {
        assert_int_equal(race_wrong(i), 0);
    }

    bucket = aibrix_ix_block_key(f.ix, block[0]).bucket;

    for (way = 0; way < AIBRIX_IX_WAYS; way++) {
        tag = aibrix_ix_tag_of(bucket->tag[way]);
        assert_true(tag == 0
                    || aibrix_ix_ways(bucket, tag) == 1u << way);
    }
}


/* Pages that the stack has not grown to yet could not be written. */
static __attribute__((noinline)) void
race_grow_stack(void)
{
    volatile char  below[2 * RACE_STACK];
    size_t         i;

    for (i = 0; i < sizeof(below); i += 1024) {
        below[i] = 0;
    }
}


static void
race_move(pid_t pid, moment_t *now, int give)
{
    size_t        n;
    struct iovec  ours, theirs, regs, vectors;

    regs.iov_base = now->registers;
    regs.iov_len = give ? now->nregisters : sizeof(now->registers);
    vectors.iov_base = now->vectors;
    vectors.iov_len = give ? now->nvectors : sizeof(now->vectors);
    ours.iov_base = now->stack;
    ours.iov_len = RACE_STACK;
    theirs.iov_base = now->base;
    theirs.iov_len = RACE_STACK;

    n = give ? process_vm_writev(pid, &ours, 1, &theirs, 1, 0)
             : process_vm_readv(pid, &ours, 1, &theirs, 1, 0);
    assert_int_equal(n, RACE_STACK);

    assert_int_equal(ptrace(give ? PTRACE_SETREGSET : PTRACE_GETREGSET, pid,
                            NT_PRSTATUS, &regs), 0);
    assert_int_equal(ptrace(give ? PTRACE_SETREGSET : PTRACE_GETREGSET, pid,
                            RACE_VECTORS, &vectors), 0);

    now->nregisters = regs.iov_len;
    now->nvectors = vectors.iov_len;
}


/* Called from one place only: all processes then have the same stack. */
static __attribute__((noinline)) void
race_begin(const race_t *race, pid_t *pid)
{
    *pid = fork();
    assert_true(*pid >= 0);

    if (*pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        leave(race->first());
    }
}


/* The twin is overtaken and goes on to its end. */
static void
race_overtake(const race_t *race, pid_t twin, moment_t *now)
{
    int  status;

    race_move(twin, now, 1);
    race->second();

    assert_int_equal(ptrace(PTRACE_CONT, twin, NULL, NULL), 0);
    assert_int_equal(waitpid(twin, &status, 0), twin);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    race->check();
}


static void
race_step_through(const race_t *race, void *memory)
{
    int              status;
    pid_t            first, pid;
    uint64_t         steps;
    static moment_t  now;

    race_grow_stack();
    now.base = (char *) __builtin_frame_address(0) - RACE_STACK;
    first = 0;
    steps = 0;

    for ( ;; ) {
        race_begin(race, &pid);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSTOPPED(status));

        if (first == 0) {
            first = pid;
            continue;
        }

        memcpy(memory, f.mem, f.size);
        race_move(first, &now, 0);
        race_overtake(race, pid, &now);
        memcpy(f.mem, memory, f.size);

        assert_int_equal(ptrace(PTRACE_SINGLESTEP, first, NULL, NULL), 0);
        assert_int_equal(waitpid(first, &status, 0), first);
        steps++;

        if (!WIFSTOPPED(status)) {
            break;
        }
    }

    assert_true(WIFEXITED(status));
    assert_true(steps > 200);
}


static void
race_run(const race_t *race)
{
    void  *memory;

    fixture_make(&f, aibrix_index_min_size(), TTL);
    fixture_rivals(&f, block, RACE_BLOCKS);
    memory = f.mem;
    f.mem = mmap(NULL, f.size, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(f.mem, MAP_FAILED);
    f.ix = aibrix_index_init(f.mem, f.size, TTL);

    race->setup();
    race_step_through(race, memory);

    munmap(f.mem, f.size);
    free(memory);
}


static void
setup_full(void)
{
    uint32_t  i, k;

    for (i = 0; i < AIBRIX_IX_WAYS; i++) {

        for (k = 0; k < 2; k++) {
            race_record(i, k);
        }
    }
}


/* Nothing of what was there stays; what comes has two cells as well. */
static void
second_replaces_all(void)
{
    uint32_t  i, k;

    for (i = AIBRIX_IX_WAYS; i < 4 * AIBRIX_IX_WAYS; i++) {

        for (k = 0; k < 2; k++) {
            race_record(i, k);
        }
    }
}


/* Asks for peers that block 0 has not: whatever is found is wrong. */
static int
first_matches(void)
{
    uint32_t          matched[64];
    aibrix_peerset_t  among;

    memset(&among, 0, sizeof(among));
    among.word[0] = 0xfffffffffe;

    return aibrix_index_match(f.ix, block, 1, &among, START, TTL, matched)
           != 0;
}


static void
test_reader_overtaken(void **state)
{
    const race_t  race = { setup_full, first_matches, second_replaces_all,
                           race_check };

    (void) state;

    race_run(&race);
}


static int
first_records(void)
{
    race_record(0, 2);

    return 0;
}


/* Its cell goes where the new entries have none, so the store succeeds. */
static void
test_writer_overtaken(void **state)
{
    const race_t  race = { setup_full, first_records, second_replaces_all,
                           race_check };

    (void) state;

    race_run(&race);
}


static int
first_takes_back(void)
{
    aibrix_index_unrecord(f.ix, block, 0, 1, race_peer(0, 1));

    return 0;
}


static void
test_taker_overtaken(void **state)
{
    const race_t  race = { setup_full, first_takes_back, second_replaces_all,
                           race_check };

    (void) state;

    race_run(&race);
}


static void
setup_crowded(void)
{
    uint32_t  k;

    setup_full();

    for (k = 0; k < 8; k++) {
        race_record(0, k);
    }
}


static int
first_records_in_group(void)
{
    race_record(0, 9);

    return 0;
}


static void
test_group_writer_overtaken(void **state)
{
    const race_t  race = { setup_crowded, first_records_in_group,
                           second_replaces_all, race_check };

    (void) state;

    race_run(&race);
}


static void
setup_nothing(void)
{
}


static int
first_inserts(void)
{
    race_record(30, 0);

    return 0;
}


static void
second_inserts_the_same(void)
{
    race_record(30, 1);
}


static void
check_inserted(void)
{
    race_check();
    assert_true(race_knows(30, 0));
    assert_true(race_knows(30, 1));
}


/* There is one entry then, and it knows both. */
static void
test_same_block_inserted(void **state)
{
    const race_t  race = { setup_nothing, first_inserts,
                           second_inserts_the_same, check_inserted };

    (void) state;

    race_run(&race);
}


static void
test_same_block_inserted_by_eviction(void **state)
{
    const race_t  race = { setup_full, first_inserts, second_inserts_the_same,
                           check_inserted };

    (void) state;

    race_run(&race);
}


static void
second_records_another(void)
{
    race_record(0, 3);
}


static void
check_both_recorded(void)
{
    race_check();
    assert_true(race_knows(0, 2));
    assert_true(race_knows(0, 3));
}


/* Two peers of one block: neither store may be lost. */
static void
test_same_block_recorded(void **state)
{
    const race_t  race = { setup_full, first_records, second_records_another,
                           check_both_recorded };

    (void) state;

    race_run(&race);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_reader_overtaken),
        cmocka_unit_test(test_writer_overtaken),
        cmocka_unit_test(test_taker_overtaken),
        cmocka_unit_test(test_group_writer_overtaken),
        cmocka_unit_test(test_same_block_inserted),
        cmocka_unit_test(test_same_block_inserted_by_eviction),
        cmocka_unit_test(test_same_block_recorded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
