
/* The directory of peers in a zone: numbers, draining, forgetting. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "zone.h"


#define SIZE  (1024 * 1024)
#define TTL   1000000


static aibrix_zone_t  *z;


static int
setup(void **state)
{
    void  *mem;

    (void) state;

    mem = aligned_alloc(64, SIZE);
    memset(mem, 0, SIZE);
    z = aibrix_zone_init(mem, SIZE, 42, TTL);

    return z == NULL;
}


static int
teardown(void **state)
{
    (void) state;

    free(z);

    return 0;
}


static uint32_t
enter(const char *upstream, const char *name, uint64_t now)
{
    aibrix_span_t  u, n;

    u.data = upstream;
    u.len = strlen(upstream);
    n.data = name;
    n.len = strlen(name);

    return aibrix_zone_register(z, &u, &n, &n, now);
}


static void
test_names(void **state)
{
    uint32_t  a, b, c;

    (void) state;

    a = enter("u", "10.0.0.1:80", 1);
    b = enter("u", "10.0.0.2:80", 1);
    c = enter("v", "10.0.0.1:80", 1);

    assert_int_not_equal(a, b);
    assert_int_not_equal(a, c);
    assert_int_not_equal(b, c);
    assert_int_equal(enter("u", "10.0.0.1:80", 2), a);

    assert_int_equal(aibrix_zone_peer_used(z, c), 1);
    assert_int_equal(aibrix_zone_peer_used(z, 3), 0);
    assert_int_equal(aibrix_zone_peer(z, b)->name_len, 11);
    assert_memory_equal(aibrix_zone_peer(z, b)->name, "10.0.0.2:80", 11);
}


static void
test_drain(void **state)
{
    uint32_t  a, b;

    (void) state;

    a = enter("u", "a", 1);
    b = enter("u", "b", 1);
    assert_int_equal(aibrix_zone_drained(z, a), 0);

    aibrix_zone_drain(z, a, 7);
    assert_int_equal(aibrix_zone_drained(z, a), 1);
    assert_int_equal(aibrix_zone_drained(z, b), 0);

    /* a reload registers it again */

    assert_int_equal(enter("u", "a", 2), a);
    assert_int_equal(aibrix_zone_drained(z, a), 1);

    aibrix_zone_drain(z, a, 0);
    assert_int_equal(aibrix_zone_drained(z, a), 0);
}


/* Another peer gets the number of one that was drained and has long gone. */

static void
test_new_owner(void **state)
{
    char      name[16];
    uint32_t  i, first;

    (void) state;

    first = enter("u", "gone", 1);
    aibrix_zone_drain(z, first, 1);

    for (i = 1; i < z->max_peers; i++) {
        name[0] = (char) ('a' + i / 26);
        name[1] = (char) ('a' + i % 26);
        name[2] = '\0';
        assert_int_not_equal(enter("u", name, 200000), AIBRIX_NO_PEER);
    }

    assert_int_equal(enter("u", "new", 200000), first);
    assert_int_equal(aibrix_zone_drained(z, first), 0);
    assert_int_equal(enter("u", "one more", 200000), AIBRIX_NO_PEER);
}


static void
test_forget(void **state)
{
    uint32_t          a, b, matched[AIBRIX_MAX_PEERS];
    uint64_t          hashes[4] = { 11, 12, 13, 14 };
    aibrix_peerset_t  among;

    (void) state;

    a = enter("u", "a", 1);
    b = enter("u", "b", 1);

    memset(&among, 0, sizeof(among));
    among.word[0] = 1ULL << a | 1ULL << b;

    aibrix_index_record(aibrix_zone_index(z), hashes, 4, a, 1000, TTL);
    aibrix_index_record(aibrix_zone_index(z), hashes, 4, b, 1000, TTL);
    aibrix_zone_forget(z, a, 1001);

    matched[a] = 0;
    matched[b] = 0;
    (void) aibrix_index_match(aibrix_zone_index(z), hashes, 4, &among, 1002,
                              TTL, matched);
    assert_int_equal(matched[a], 0);
    assert_int_equal(matched[b], 4);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test_setup_teardown(test_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_drain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_new_owner, setup, teardown),
        cmocka_unit_test_setup_teardown(test_forget, setup, teardown)
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
