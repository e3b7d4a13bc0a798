
#include <string.h>

#include "strategy.h"


const aibrix_strategy_t  aibrix_strategies[] = {
    { "random", aibrix_choose_random, 0 },
    { "least-request", aibrix_choose_least_request, 0 },
    { "prefix-cache", aibrix_choose_prefix_cache, 1 },
    { "least-work", aibrix_choose_least_work, 1 },
    { NULL, NULL, 0 }
};


static const char *const  aibrix_selections[AIBRIX_SELECTIONS] = {
    [AIBRIX_PREFIX_MATCH] = "prefix_match",
    [AIBRIX_PREFIX_MATCH_SKIPPED] = "prefix_match_skipped",
    [AIBRIX_LEAST_REQUEST_FALLBACK] = "least_request_fallback",
    [AIBRIX_LEAST_REQUEST] = "least_request",
    [AIBRIX_RANDOM] = "random",
    [AIBRIX_SINGLE_CANDIDATE] = "single_candidate",
    [AIBRIX_LEAST_WORK_HIT] = "least_work_hit",
    [AIBRIX_LEAST_WORK_MISS] = "least_work_miss",
    [AIBRIX_LEAST_WORK_COPY] = "least_work_copy",
    [AIBRIX_LEAST_WORK_GUARD] = "least_work_guard"
};


const aibrix_strategy_t *
aibrix_strategy_find(const char *name, size_t len)
{
    const aibrix_strategy_t  *s;

    for (s = aibrix_strategies; s->name != NULL; s++) {
        if (strlen(s->name) == len && memcmp(s->name, name, len) == 0) {
            return s;
        }
    }

    return NULL;
}


const char *
aibrix_strategy_name(uint32_t strategy)
{
    uint32_t  n;

    n = sizeof(aibrix_strategies) / sizeof(aibrix_strategies[0]) - 1;

    return (strategy < n) ? aibrix_strategies[strategy].name : "other";
}


const char *
aibrix_selection_name(aibrix_selection_e selection)
{
    return ((unsigned) selection < AIBRIX_SELECTIONS)
           ? aibrix_selections[selection] : "other";
}


uint32_t
aibrix_random(aibrix_view_t *v, uint32_t n)
{
    uint64_t  x;

    x = v->rng;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    v->rng = x;

    return (uint32_t) (((x * 0x2545f4914f6cdd1dULL >> 32) * n) >> 32);
}


uint32_t
aibrix_percent(uint32_t matched, uint32_t blocks)
{
    if (blocks == 0) {
        return 0;
    }

    return (uint32_t) ((uint64_t) matched * 100 / blocks);
}


size_t
aibrix_least_loaded(aibrix_view_t *v)
{
    size_t    i, best;
    uint32_t  equals;

    best = 0;
    equals = 1;

    for (i = 1; i < v->n; i++) {
        if (v->candidates[i].load > v->candidates[best].load) {
            continue;
        }

        if (v->candidates[i].load < v->candidates[best].load) {
            best = i;
            equals = 1;
            continue;
        }

        if (aibrix_random(v, ++equals) == 0) {
            best = i;
        }
    }

    return best;
}
