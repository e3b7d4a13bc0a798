
/* The choice of least-work by hand-worked examples, and what it learns. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "route.h"


#define PEERS   4
#define BLOCK   128
#define PROMPT  (200 * BLOCK)


static aibrix_candidate_t  candidates[PEERS];
static aibrix_view_t       view;
static aibrix_learn_t     *learn;


static void
reset(void)
{
    size_t  i;

    memset(&view, 0, sizeof(view));
    memset(candidates, 0, sizeof(candidates));

    view.candidates = candidates;
    view.n = PEERS;
    view.blocks = 200;
    view.block_size = BLOCK;
    view.prompt = PROMPT;
    view.rng = 1;
    view.work = &aibrix_work_default;
    view.learned = aibrix_learned_nothing;

    for (i = 0; i < PEERS; i++) {
        candidates[i].peer = (uint32_t) i;
        candidates[i].weight = 1;
        candidates[i].used = 10 + i;
    }
}


static void
load(size_t i, uint32_t inflight, uint64_t queued, uint32_t matched)
{
    candidates[i].inflight = inflight;
    candidates[i].load = (double) inflight / candidates[i].weight;
    candidates[i].queued = queued;
    candidates[i].matched = matched;

    if (matched > view.longest) {
        view.longest = matched;
    }
}


static aibrix_choice_t
choose(void)
{
    aibrix_choice_t  c;

    memset(&c, 0, sizeof(c));
    aibrix_choose_least_work(&view, &c);
    assert_true(c.index < view.n);

    return c;
}


/* 25600 * (1 + 25600 / 60000) = 36522.67 bytes, and 6000 a request */

static void
test_cost(void **state)
{
    (void) state;

    reset();
    load(1, 2, 10000, 0);
    load(2, 0, 0, 199);

    (void) choose();

    assert_float_equal(candidates[0].cost, 36522.67, 0.01);

    /* 25600 * (1 + 35600 / 60000) + 10000 / 2 + 2 * 6000 */
    assert_float_equal(candidates[1].cost, 57789.33, 0.01);

    /* 128 * (1 + 128 / 60000) */
    assert_float_equal(candidates[2].cost, 128.27, 0.01);
}


static void
test_hit_until_it_is_dearer(void **state)
{
    aibrix_choice_t  c;

    (void) state;

    reset();
    load(0, 2, 0, 200);
    c = choose();
    assert_int_equal(c.index, 0);
    assert_int_equal(c.selection, AIBRIX_LEAST_WORK_HIT);

    /* 1 + 2 * 6000 + 60000 / 2 is above 36522 */
    reset();
    load(0, 2, 60000, 200);
    c = choose();
    assert_int_equal(c.index, 1);
    assert_int_equal(c.selection, AIBRIX_LEAST_WORK_MISS);
}


static void
test_guard(void **state)
{
    aibrix_choice_t  c;

    (void) state;

    /* mean 2 / 4: 2 is within 2.5, and so is all that is cheapest */
    reset();
    load(0, 2, 0, 200);
    assert_int_equal(choose().index, 0);

    /* mean 3 / 4: 3 is above 2.75 */
    reset();
    load(0, 3, 0, 200);
    c = choose();
    assert_int_not_equal(c.index, 0);
    assert_int_equal(c.selection, AIBRIX_LEAST_WORK_GUARD);

    /* mean 36 / 4: 12 is at the limit, 13 of 37 / 4 above it */
    reset();
    load(0, 12, 0, 200);
    load(1, 8, 100000, 0);
    load(2, 8, 100000, 0);
    load(3, 8, 100000, 0);
    assert_int_equal(choose().index, 0);
    load(0, 13, 0, 200);
    assert_int_equal(choose().selection, AIBRIX_LEAST_WORK_GUARD);

    /* with room for 16 the guard is 4 requests, and a request costs half */
    reset();
    view.learned.room = 16;
    load(0, 3, 0, 200);
    assert_int_equal(choose().index, 0);
    assert_float_equal(candidates[0].cost, 1 + 1 / 60000.0 + 9000, 0.01);
}


static void
test_ties_go_to_the_longest_unused(void **state)
{
    (void) state;

    reset();
    candidates[2].used = 1;
    assert_int_equal(choose().index, 2);

    candidates[3].used = 0;
    assert_int_equal(choose().index, 3);
}


static void
test_copy(void **state)
{
    aibrix_choice_t  c;

    (void) state;

    /* saves 6000 * rate * 2 of 36522: rates above (36522 - 12000) / 12000 */
    reset();
    load(0, 2, 0, 200);
    view.asked = 7;
    view.rate = 2.0;
    assert_int_equal(choose().selection, AIBRIX_LEAST_WORK_HIT);

    view.rate = 2.1;
    c = choose();
    assert_int_equal(c.selection, AIBRIX_LEAST_WORK_COPY);
    assert_int_equal(c.index, 1);

    /* not for a prefix that was asked for 6 times only */
    view.asked = 6;
    assert_int_equal(choose().selection, AIBRIX_LEAST_WORK_HIT);

    /* nor to a peer that has a prompt to compute */
    reset();
    load(0, 2, 0, 200);
    load(1, 0, 1, 0);
    load(2, 0, 1, 0);
    load(3, 0, 1, 0);
    view.asked = 7;
    view.rate = 100;
    assert_int_equal(choose().selection, AIBRIX_LEAST_WORK_HIT);
}


static void
test_weight(void **state)
{
    (void) state;

    reset();
    candidates[3].weight = 2;
    load(3, 1, 0, 0);
    (void) choose();

    /* 12800 * (1 + 12800 / 60000) + 6000 / 2 */
    assert_float_equal(candidates[3].cost, 18530.67, 0.01);
    assert_int_equal(choose().index, 3);
}


/* Equal work everywhere: the choice is that of least-request. */

static void
test_without_reuse_it_is_least_request(void **state)
{
    int              i, k;
    uint32_t         least;
    aibrix_choice_t  c;

    (void) state;
    srand(7);

    for (i = 0; i < 20000; i++) {
        reset();
        least = UINT32_MAX;

        for (k = 0; k < PEERS; k++) {
            load((size_t) k, (uint32_t) rand() % 12, 0, 0);
            least = (candidates[k].inflight < least)
                    ? candidates[k].inflight : least;
        }

        c = choose();
        assert_int_equal(candidates[c.index].inflight, least);
    }
}


/* Whatever it is told, nobody is above the guard. */

static void
test_bounded(void **state)
{
    int              i, k;
    double           mean, limit;
    aibrix_choice_t  c;

    (void) state;
    srand(11);

    for (i = 0; i < 100000; i++) {
        reset();
        mean = 0;

        for (k = 0; k < PEERS; k++) {
            candidates[k].weight = 1 + (uint32_t) rand() % 3;
            load((size_t) k, (uint32_t) rand() % 40,
                 (uint64_t) rand() % 200000, (uint32_t) rand() % 201);
            mean += candidates[k].load / PEERS;
        }

        view.learned.belief = (rand() % 101) / 100.0;
        view.asked = (uint32_t) rand() % 50;
        view.rate = rand() % 50;

        c = choose();
        limit = mean + ((mean / 3 > 2) ? mean / 3 : 2);
        assert_true(candidates[c.index].load <= limit + 1e-9);
    }
}


static aibrix_learned_t
learned(uint32_t peer)
{
    aibrix_learned_t  l;

    aibrix_learn_get(learn, peer, 0.7, &l);

    return l;
}


static int
setup(void **state)
{
    size_t  size;

    (void) state;

    size = (aibrix_learn_size(8) + 63) & ~(size_t) 63;
    learn = aligned_alloc(64, size);

    if (learn == NULL) {
        return -1;
    }

    memset(learn, 0, size);
    aibrix_learn_init(learn, 8);

    aibrix_learn_peer(learn, 0, 101);
    aibrix_learn_peer(learn, 1, 101);
    aibrix_learn_peer(learn, 2, 165);   /* the same place as 101 */

    return 0;
}


static int
teardown(void **state)
{
    (void) state;

    free(learn);

    return 0;
}


static void
sent(uint32_t peer, uint64_t known, uint64_t longest, uint32_t inflight,
    uint64_t ms)
{
    aibrix_learn_sent_t  s;

    s.prompt = 30000;
    s.known = known;
    s.longest = longest;
    s.inflight = inflight;
    s.idle = 1;

    aibrix_learn_first_byte(learn, peer, &s, 0.7, ms);
}


static void
test_belief(void **state)
{
    aibrix_learn_sent_t  s;

    (void) state;

    assert_float_equal(learned(0).belief, 0.7, 1e-6);

    aibrix_learn_unseen(learn, 0);
    assert_float_equal(learned(0).belief, 0, 1e-6);
    assert_float_equal(learned(1).belief, 0, 1e-6);
    assert_float_equal(learned(2).belief, 0.7, 1e-6);

    s.prompt = 30000;
    s.known = 0;
    s.longest = 28000;
    s.inflight = 0;
    s.idle = 1;

    /* 0 / 1, then 1 / 0.5, then 1.5 / 0.25 */
    aibrix_learn_usage(learn, 0, &s, 0.7, 27000);
    assert_float_equal(learned(1).belief, 2.0 / 3, 1e-6);
    aibrix_learn_usage(learn, 1, &s, 0.7, 27000);
    assert_float_equal(learned(0).belief, 1.5 / 1.75, 1e-6);

    /* an unseen prompt is no news any more */
    aibrix_learn_unseen(learn, 0);
    assert_float_equal(learned(0).belief, 1.5 / 1.75, 1e-6);

    /* 0.75 / 1.125 */
    aibrix_learn_usage(learn, 0, &s, 0.7, 13000);
    assert_float_equal(learned(0).belief, 0.4, 1e-6);

    /* a listed prefix tells nothing of what is not listed */
    s.known = s.longest;
    aibrix_learn_usage(learn, 0, &s, 0.7, 0);
    assert_float_equal(learned(0).belief, 0.4, 1e-6);
}


static void
test_belief_from_times(void **state)
{
    (void) state;

    /* nothing is known of a hit yet */
    sent(0, 0, 29000, 0, 200);
    assert_float_equal(learned(0).belief, 0.7, 1e-6);

    sent(0, 29000, 29000, 0, 200);
    assert_float_equal(learned(0).hit_ms, 200.5, 0.01);

    /* a miss is guessed at 4 times that, the line is at twice: 401 ms */
    sent(0, 0, 29000, 0, 400);
    assert_float_equal(learned(0).belief, 1.35 / 1.5, 1e-6);
    sent(0, 0, 29000, 0, 402);
    assert_float_equal(learned(0).belief, 0.675 / 1.75, 1e-6);

    /* 0.05 ms a byte: a hit takes 250 ms, a miss 1700, the line is at 652 */
    sent(0, 0, 0, 0, 1500);
    assert_float_equal(learned(0).byte_ms, 0.05, 0.0001);
    sent(0, 0, 29000, 0, 550);
    assert_float_equal(learned(0).belief, 1.3375 / 1.875, 1e-5);

    /* a prefix of 1000 bytes is 50 ms: that cannot be told apart */
    sent(0, 0, 1000, 0, 2000);
    assert_float_equal(learned(0).belief, 1.3375 / 1.875, 1e-5);
}


static void
test_slow_for_other_reasons(void **state)
{
    aibrix_learn_sent_t  s;

    (void) state;

    sent(0, 29000, 29000, 0, 200);

    s.prompt = 30000;
    s.known = 0;
    s.longest = 29000;
    s.inflight = 1;
    s.idle = 0;

    /* it waited for another prompt: being late proves nothing */
    aibrix_learn_first_byte(learn, 0, &s, 0.7, 5000);
    assert_float_equal(learned(0).belief, 0.7, 1e-6);

    /* being early does */
    aibrix_learn_first_byte(learn, 0, &s, 0.7, 200);
    assert_float_equal(learned(0).belief, 1.35 / 1.5, 1e-6);

    /* it had to wait for one of 8 places */
    sent(0, 0, 29000, 8, 5000);
    assert_float_equal(learned(0).belief, 1.35 / 1.5, 1e-6);
}


static void
test_room(void **state)
{
    int  i;

    (void) state;

    sent(0, 29000, 29000, 0, 200);
    assert_float_equal(learned(0).room, 8, 1e-6);

    sent(0, 29000, 29000, 7, 200);
    assert_float_equal(learned(0).room, 8, 1e-6);

    for (i = 0; i < 20; i++) {
        sent(0, 29000, 29000, 11, 200);
    }

    assert_float_equal(learned(0).room, 12, 1e-6);
    assert_float_equal(learned(2).room, 8, 1e-6);

    /* late with 30 is no news, late with 11 is; 8 is the least */
    sent(0, 29000, 29000, 30, 5000);
    assert_float_equal(learned(0).room, 12, 1e-6);
    sent(0, 29000, 29000, 11, 5000);
    assert_float_equal(learned(0).room, 11, 1e-6);

    for (i = 0; i < 20; i++) {
        sent(0, 29000, 29000, 0, 5000);
    }

    assert_float_equal(learned(0).room, 8, 1e-6);
}


static void
test_popularity(void **state)
{
    int       i;
    double    rate;
    uint64_t  now, hash;

    (void) state;

    hash = 0x123456789abcdef0ULL;
    now = 6400000;

    assert_int_equal(aibrix_learn_asked(learn, hash, now, &rate), 0);

    /* four a second for 30 seconds */
    for (i = 0; i < 120; i++) {
        aibrix_learn_ask(learn, hash, now + (uint64_t) i * 250);
    }

    assert_int_equal(aibrix_learn_asked(learn, hash, now + 29952, &rate), 120);
    assert_float_equal(rate, 120 / 29.952, 0.001);

    /* another prefix in its place wears it down, and is not counted */
    aibrix_learn_ask(learn, hash ^ 1ULL << 50, now + 29952);
    assert_int_equal(aibrix_learn_asked(learn, hash, now + 29952, &rate), 119);
    assert_int_equal(aibrix_learn_asked(learn, hash ^ 1ULL << 50,
                                        now + 29952, &rate), 0);

    /* it fades when nobody asks: 10 minutes later it is under 1 */
    assert_int_equal(aibrix_learn_asked(learn, hash, now + 100000, &rate), 59);
    assert_true(aibrix_learn_asked(learn, hash, now + 600000, &rate) < 8);
    assert_true(rate < 0.2);
}


static void
test_more_upstreams_than_places(void **state)
{
    uint64_t  i;

    (void) state;

    for (i = 1; i < 300; i++) {
        aibrix_learn_peer(learn, 5, i * 1000003);
        aibrix_learn_unseen(learn, 5);
        assert_float_equal(learned(5).belief, 0, 1e-6);
    }
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_hit_until_it_is_dearer),
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_ties_go_to_the_longest_unused),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_weight),
        cmocka_unit_test(test_without_reuse_it_is_least_request),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test_setup_teardown(test_belief, setup, teardown),
        cmocka_unit_test_setup_teardown(test_belief_from_times, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_slow_for_other_reasons, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_room, setup, teardown),
        cmocka_unit_test_setup_teardown(test_popularity, setup, teardown),
        cmocka_unit_test_setup_teardown(test_more_upstreams_than_places,
                                        setup, teardown)
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
