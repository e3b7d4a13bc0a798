
/* Load rows: what is reserved is released, whoever dies. */

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "load.h"


#define ROWS   6
#define PEERS  40


static aibrix_load_t  *ld;
static uint64_t        dead_owner;


static int
setup(void **state)
{
    void  *mem;

    (void) state;

    mem = mmap(NULL, aibrix_load_size(ROWS, PEERS), PROT_READ|PROT_WRITE,
               MAP_ANONYMOUS|MAP_SHARED, -1, 0);

    if (mem == MAP_FAILED) {
        return -1;
    }

    ld = aibrix_load_init(mem, ROWS, PEERS);

    return 0;
}


static int
teardown(void **state)
{
    (void) state;

    return munmap(ld, aibrix_load_size(ROWS, PEERS));
}


static int
alive(uint64_t owner)
{
    return owner != dead_owner;
}


static int
alive_pid(uint64_t owner)
{
    return kill((pid_t) owner, 0) == 0;
}


static void
expect(uint32_t peer, uint32_t inflight, uint64_t queued)
{
    aibrix_load_sum_t  sum;

    aibrix_load_sum(ld, peer, &sum);

    assert_int_equal(sum.inflight, inflight);
    assert_int_equal(sum.queued, queued);
}


static void
test_life_of_a_request(void **state)
{
    uint32_t  row;

    (void) state;

    row = aibrix_load_attach(ld, 7);
    assert_int_not_equal(row, 0);

    aibrix_load_reserve(ld, row, 3, 1000);
    aibrix_load_reserve(ld, row, 3, 50);
    expect(3, 2, 1050);
    expect(2, 0, 0);
    expect(4, 0, 0);

    aibrix_load_answered(ld, row, 3, 1000);
    expect(3, 2, 50);

    aibrix_load_release(ld, row, 3, 0);
    expect(3, 1, 50);

    aibrix_load_release(ld, row, 3, 50);
    expect(3, 0, 0);
}


static void
test_waiting(void **state)
{
    uint32_t            row, other;
    aibrix_load_sum_t   sum;

    (void) state;

    row = aibrix_load_attach(ld, 7);
    other = aibrix_load_attach(ld, 8);

    aibrix_load_wait(ld, row, 3);
    aibrix_load_wait(ld, other, 3);
    aibrix_load_wait(ld, other, 3);

    aibrix_load_sum(ld, 3, &sum);
    assert_int_equal(sum.waiting, 3);
    assert_int_equal(sum.inflight, 0);

    aibrix_load_waited(ld, other, 3);
    aibrix_load_sum(ld, 3, &sum);
    assert_int_equal(sum.waiting, 2);

    /* a row that is given up takes its own with it */

    aibrix_load_detach(ld, other);
    aibrix_load_sum(ld, 3, &sum);
    assert_int_equal(sum.waiting, 1);

    aibrix_load_waited(ld, row, 3);
    aibrix_load_waited(ld, row, 3);
    aibrix_load_sum(ld, 3, &sum);
    assert_int_equal(sum.waiting, 0);
}


static void
test_rows_are_summed(void **state)
{
    uint32_t  a, b;

    (void) state;

    a = aibrix_load_attach(ld, 7);
    b = aibrix_load_attach(ld, 8);
    assert_int_not_equal(a, b);

    aibrix_load_reserve(ld, a, PEERS - 1, 10);
    aibrix_load_reserve(ld, b, PEERS - 1, 20);
    expect(PEERS - 1, 2, 30);

    aibrix_load_detach(ld, a);
    expect(PEERS - 1, 1, 20);
}


static void
test_attach_twice_is_the_same_row(void **state)
{
    uint32_t  row;

    (void) state;

    row = aibrix_load_attach(ld, 7);
    (void) aibrix_load_attach(ld, 8);

    assert_int_equal(aibrix_load_attach(ld, 7), row);
}


static void
test_a_row_is_used_again(void **state)
{
    uint32_t  row;

    (void) state;

    row = aibrix_load_attach(ld, 7);
    aibrix_load_reserve(ld, row, 0, 5);
    aibrix_load_detach(ld, row);

    assert_int_equal(aibrix_load_attach(ld, 9), row);
    expect(0, 0, 0);
}


static void
test_more_owners_than_rows(void **state)
{
    uint32_t  i;

    (void) state;

    for (i = 1; i < ROWS; i++) {
        assert_int_not_equal(aibrix_load_attach(ld, 100 + i), 0);
    }

    assert_int_equal(aibrix_load_attach(ld, 200), 0);
    assert_int_equal(aibrix_load_attach(ld, 201), 0);

    aibrix_load_reserve(ld, 0, 1, 9);
    aibrix_load_reserve(ld, 0, 1, 1);
    expect(1, 2, 10);

    /* one of those who share it leaves: the others' counts stay */

    aibrix_load_detach(ld, 0);
    expect(1, 2, 10);

    aibrix_load_release(ld, 0, 1, 9);
    aibrix_load_release(ld, 0, 1, 1);
    expect(1, 0, 0);
}


static void
test_sweep(void **state)
{
    uint32_t  a, b, c;

    (void) state;

    a = aibrix_load_attach(ld, 7);
    b = aibrix_load_attach(ld, 8);
    c = aibrix_load_attach(ld, 9);

    aibrix_load_reserve(ld, a, 5, 1);
    aibrix_load_reserve(ld, b, 5, 2);
    aibrix_load_reserve(ld, c, 5, 4);

    dead_owner = 8;

    assert_int_equal(aibrix_load_sweep(ld, 7, alive), 1);
    expect(5, 2, 5);

    assert_int_equal(aibrix_load_sweep(ld, 7, alive), 0);
    expect(5, 2, 5);

    /* its own row is never swept, whatever alive() would say */

    dead_owner = 7;

    assert_int_equal(aibrix_load_sweep(ld, 7, alive), 0);
    expect(5, 2, 5);
}


/* processes count and are killed at any moment; the truth comes back */

static void
test_killed_processes(void **state)
{
    int       i, round, status;
    pid_t     pid[3];
    uint32_t  row, mine;

    (void) state;

    mine = aibrix_load_attach(ld, (uint64_t) getpid());
    aibrix_load_reserve(ld, mine, 2, 77);

    for (round = 0; round < 60; round++) {

        for (i = 0; i < 3; i++) {
            pid[i] = fork();

            if (pid[i] == 0) {
                row = aibrix_load_attach(ld, (uint64_t) getpid());

                for ( ;; ) {
                    aibrix_load_reserve(ld, row, 2, 10);
                    aibrix_load_reserve(ld, row, 3, 10);
                    aibrix_load_answered(ld, row, 2, 10);
                    aibrix_load_release(ld, row, 2, 0);
                    (void) aibrix_load_sweep(ld, (uint64_t) getpid(),
                                             alive_pid);
                }
            }
        }

        usleep((useconds_t) (500 + round * 50));

        for (i = 0; i < 3; i++) {
            assert_int_equal(kill(pid[i], SIGKILL), 0);
            assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        }

        (void) aibrix_load_sweep(ld, (uint64_t) getpid(), alive_pid);

        expect(2, 1, 77);
        expect(3, 0, 0);
    }

    aibrix_load_release(ld, mine, 2, 77);
    expect(2, 0, 0);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test_setup_teardown(test_life_of_a_request, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_waiting, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rows_are_summed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_attach_twice_is_the_same_row,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_row_is_used_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_more_owners_than_rows, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_sweep, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed_processes, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
