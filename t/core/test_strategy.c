
/* The three strategies against the rules of AIBrix v0.7.0. */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "strategy.h"


#define MANY  1200


static aibrix_candidate_t  candidates[MANY];
static uint64_t            rng = 88172645463325252ULL;


static aibrix_view_t
view(size_t n, const uint32_t *load, const uint32_t *matched)
{
    size_t         i;
    aibrix_view_t  v;

    for (i = 0; i < n; i++) {
        candidates[i].peer = (uint32_t) i;
        candidates[i].weight = 1;
        candidates[i].inflight = load[i];
        candidates[i].load = load[i];
        candidates[i].matched = matched ? matched[i] : 0;
        candidates[i].queued = 0;
    }

    v.candidates = candidates;
    v.n = n;
    v.blocks = 100;
    v.imbalance = 16;
    v.stddev_factor = 2;
    v.rng = rng += 0x9e3779b97f4a7c15ULL;

    return v;
}


static aibrix_choice_t
choose(const char *name, aibrix_view_t *v)
{
    aibrix_choice_t           c;
    const aibrix_strategy_t  *s;

    memset(&c, 0, sizeof(c));

    s = aibrix_strategy_find(name, strlen(name));
    assert_non_null(s);

    s->choose(v, &c);
    assert_true(c.index < v->n);

    return c;
}


static aibrix_choice_t
prefix_cache(size_t n, const uint32_t *load, const uint32_t *matched)
{
    aibrix_view_t  v;

    v = view(n, load, matched);

    return choose("prefix-cache", &v);
}


static void
test_names(void **state)
{
    size_t                    i;
    static const char *const  bad[] = {
        "", "Random", "random ", "prefix", "prefix-cache:0", "pd",
        "random,least-request", "prefix-cache:1,least-request:1"
    };

    (void) state;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_null(aibrix_strategy_find(bad[i], strlen(bad[i])));
    }

    assert_non_null(aibrix_strategy_find("prefix-cache-and-more", 12));
    assert_non_null(aibrix_strategy_find(AIBRIX_STRATEGY_DEFAULT,
                                         strlen(AIBRIX_STRATEGY_DEFAULT)));
}


static void
test_labels(void **state)
{
    int  i;

    (void) state;

    assert_string_equal(aibrix_selection_name(AIBRIX_PREFIX_MATCH),
                        "prefix_match");
    assert_string_equal(aibrix_selection_name(AIBRIX_PREFIX_MATCH_SKIPPED),
                        "prefix_match_skipped");
    assert_string_equal(aibrix_selection_name(AIBRIX_LEAST_REQUEST_FALLBACK),
                        "least_request_fallback");

    for (i = 0; i < AIBRIX_SELECTIONS; i++) {
        assert_non_null(aibrix_selection_name((aibrix_selection_e) i));
    }
}


static void
test_percent(void **state)
{
    (void) state;

    assert_int_equal(aibrix_percent(0, 0), 0);
    assert_int_equal(aibrix_percent(1, 3), 33);
    assert_int_equal(aibrix_percent(2, 3), 66);
    assert_int_equal(aibrix_percent(3, 3), 100);
    assert_int_equal(aibrix_percent(199, 200), 99);
    assert_int_equal(aibrix_percent(1, 4000), 0);
    assert_int_equal(aibrix_percent(4000000000U, 4000000000U), 100);
}


static void
test_random_is_uniform(void **state)
{
    int              i, hits[4];
    uint32_t         load[4] = { 0, 1000, 0, 7 };
    aibrix_view_t    v;
    aibrix_choice_t  c;

    (void) state;

    memset(hits, 0, sizeof(hits));
    v = view(4, load, NULL);

    for (i = 0; i < 40000; i++) {
        c = choose("random", &v);
        assert_int_equal(c.selection, AIBRIX_RANDOM);
        hits[c.index]++;
    }

    /* 10,000 expected, standard deviation 87 */

    for (i = 0; i < 4; i++) {
        assert_in_range(hits[i], 9500, 10500);
    }
}


static void
test_least_request(void **state)
{
    int              i, hits[5];
    uint32_t         load[5] = { 3, 1, 2, 1, 1 };
    aibrix_view_t    v;
    aibrix_choice_t  c;

    (void) state;

    memset(hits, 0, sizeof(hits));
    v = view(5, load, NULL);

    for (i = 0; i < 30000; i++) {
        c = choose("least-request", &v);
        assert_int_equal(c.selection, AIBRIX_LEAST_REQUEST);
        hits[c.index]++;
    }

    assert_int_equal(hits[0], 0);
    assert_int_equal(hits[2], 0);
    assert_in_range(hits[1], 9500, 10500);
    assert_in_range(hits[3], 9500, 10500);
    assert_in_range(hits[4], 9500, 10500);
}


static void
test_weight_divides_load(void **state)
{
    uint32_t       load[2] = { 6, 4 };
    aibrix_view_t  v;

    (void) state;

    v = view(2, load, NULL);
    assert_int_equal(choose("least-request", &v).index, 1);

    candidates[0].weight = 3;
    candidates[0].load = 6.0 / 3;

    assert_int_equal(choose("least-request", &v).index, 0);
}


/* max - min > 16, strictly */

static void
test_imbalance_boundary(void **state)
{
    uint32_t         matched[2] = { 100, 0 };
    uint32_t         balanced[2] = { 16, 0 };
    uint32_t         imbalanced[2] = { 17, 0 };
    aibrix_choice_t  c;

    (void) state;

    c = prefix_cache(2, balanced, matched);
    assert_int_equal(c.index, 0);
    assert_int_equal(c.selection, AIBRIX_PREFIX_MATCH);
    assert_false(c.imbalanced);

    /* the holder is not among the least loaded: nobody matches at all */

    c = prefix_cache(2, imbalanced, matched);
    assert_int_equal(c.index, 1);
    assert_int_equal(c.selection, AIBRIX_LEAST_REQUEST_FALLBACK);
    assert_true(c.imbalanced);
}


static void
test_imbalance_still_matches_the_least_loaded(void **state)
{
    uint32_t         load[4] = { 20, 1, 1, 2 };
    uint32_t         matched[4] = { 100, 0, 30, 90 };
    aibrix_choice_t  c;

    (void) state;

    c = prefix_cache(4, load, matched);
    assert_int_equal(c.index, 2);
    assert_int_equal(c.selection, AIBRIX_PREFIX_MATCH);
    assert_true(c.imbalanced);
}


/* two pods: (c1 - c2) / 2 <= F * (c1 - c2) / sqrt(2) for every F >= 1 */

static void
test_two_pods_are_never_rejected_by_deviation(void **state)
{
    uint32_t         d, load[2], matched[2] = { 1, 0 };
    aibrix_view_t    v;
    aibrix_choice_t  c;

    (void) state;

    for (d = 0; d <= 1000; d++) {
        load[0] = d;
        load[1] = 0;

        v = view(2, load, matched);
        v.imbalance = 1e9;
        v.stddev_factor = 1;

        c = choose("prefix-cache", &v);
        assert_int_equal(c.index, 0);
        assert_int_equal(c.selection, AIBRIX_PREFIX_MATCH);
    }
}


/* n pods, one hot: rejected iff (n - 1) / sqrt(n) > F, whatever the excess */

static void
test_n_pods_derivation(void **state)
{
    int              rejected;
    size_t           n;
    double           factor;
    uint32_t         load[64], matched[64];
    aibrix_view_t    v;
    aibrix_choice_t  c;

    (void) state;

    memset(matched, 0, sizeof(matched));
    matched[0] = 100;

    for (n = 2; n <= 64; n++) {
        for (factor = 1; factor <= 4; factor += 1) {

            memset(load, 0, sizeof(load));
            load[0] = 16;

            v = view(n, load, matched);
            v.stddev_factor = factor;

            c = choose("prefix-cache", &v);

            rejected = (double) (n - 1) / sqrt((double) n) > factor;

            assert_int_equal(c.index == 0, !rejected);
            assert_int_equal(c.selection, rejected
                                          ? AIBRIX_PREFIX_MATCH_SKIPPED
                                          : AIBRIX_PREFIX_MATCH);
            assert_false(c.imbalanced);
        }
    }

    /* the figures of the reference: n >= 3 for F = 1, n >= 6 for F = 2 */

    assert_true(2 / sqrt(3) > 1 && 1 / sqrt(2) < 1);
    assert_true(5 / sqrt(6) > 2 && 4 / sqrt(5) < 2);
}


static void
test_percent_first_then_load(void **state)
{
    uint32_t  load[4] = { 2, 1, 3, 0 };
    uint32_t  matched[4] = { 50, 50, 49, 10 };

    (void) state;

    assert_int_equal(prefix_cache(4, load, matched).index, 1);

    matched[2] = 51;
    assert_int_equal(prefix_cache(4, load, matched).index, 2);
}


/* what is compared is the whole percent, not the number of blocks */

static void
test_equal_percent_of_unequal_blocks(void **state)
{
    uint32_t         load[2] = { 1, 0 };
    uint32_t         matched[2] = { 1009, 1001 };
    aibrix_view_t    v;

    (void) state;

    v = view(2, load, matched);
    v.blocks = 10000;

    assert_int_equal(choose("prefix-cache", &v).index, 1);
}


static void
test_no_minimum_match(void **state)
{
    uint32_t         load[2] = { 10, 0 };
    uint32_t         matched[2] = { 1, 0 };
    aibrix_view_t    v;
    aibrix_choice_t  c;

    (void) state;

    v = view(2, load, matched);
    v.blocks = 8000;

    c = choose("prefix-cache", &v);
    assert_int_equal(c.index, 0);
    assert_int_equal(c.selection, AIBRIX_PREFIX_MATCH);
}


static void
test_ties_are_random(void **state)
{
    int       i, hits[3];
    uint32_t  load[3] = { 4, 4, 4 };
    uint32_t  matched[3] = { 70, 70, 69 };

    (void) state;

    memset(hits, 0, sizeof(hits));

    for (i = 0; i < 20000; i++) {
        hits[prefix_cache(3, load, matched).index]++;
    }

    assert_int_equal(hits[2], 0);
    assert_in_range(hits[0], 9400, 10600);
}


static void
test_empty_prompt_falls_back(void **state)
{
    uint32_t         load[3] = { 2, 0, 1 };
    aibrix_view_t    v;
    aibrix_choice_t  c;

    (void) state;

    v = view(3, load, NULL);
    v.blocks = 0;

    c = choose("prefix-cache", &v);
    assert_int_equal(c.index, 1);
    assert_int_equal(c.selection, AIBRIX_LEAST_REQUEST_FALLBACK);
}


/* any state whatever gives a candidate and an honest reason */

static void
test_any_state(void **state)
{
    int              i, j, n, any;
    uint32_t         load[MANY], matched[MANY];
    aibrix_view_t    v;
    aibrix_choice_t  c;

    (void) state;

    for (i = 0; i < 20000; i++) {
        v = view(0, load, matched);
        n = 1 + (int) aibrix_random(&v, (i % 100) ? 12 : MANY);

        for (j = 0; j < n; j++) {
            load[j] = aibrix_random(&v, 1 + aibrix_random(&v, 40));
            matched[j] = aibrix_random(&v, 3) ? 0 : aibrix_random(&v, 101);
        }

        v = view((size_t) n, load, matched);
        v.imbalance = aibrix_random(&v, 20);
        v.stddev_factor = aibrix_random(&v, 3);

        c = choose("prefix-cache", &v);

        any = 0;

        for (j = 0; j < n; j++) {
            any |= (matched[j] != 0);
        }

        if (c.selection == AIBRIX_PREFIX_MATCH) {
            assert_true(matched[c.index] != 0);

        } else {
            for (j = 0; j < n; j++) {
                assert_true(load[c.index] <= load[j]);
            }
        }

        if (!any) {
            assert_int_equal(c.selection, AIBRIX_LEAST_REQUEST_FALLBACK);
        }
    }
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_percent),
        cmocka_unit_test(test_random_is_uniform),
        cmocka_unit_test(test_least_request),
        cmocka_unit_test(test_weight_divides_load),
        cmocka_unit_test(test_imbalance_boundary),
        cmocka_unit_test(test_imbalance_still_matches_the_least_loaded),
        cmocka_unit_test(test_two_pods_are_never_rejected_by_deviation),
        cmocka_unit_test(test_n_pods_derivation),
        cmocka_unit_test(test_percent_first_then_load),
        cmocka_unit_test(test_equal_percent_of_unequal_blocks),
        cmocka_unit_test(test_no_minimum_match),
        cmocka_unit_test(test_ties_are_random),
        cmocka_unit_test(test_empty_prompt_falls_back),
        cmocka_unit_test(test_any_state),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
