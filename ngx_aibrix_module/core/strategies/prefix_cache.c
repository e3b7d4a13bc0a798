
#include <math.h>

#include "strategy.h"


typedef struct {
    double    min;
    double    max;
    double    mean;
    double    stddev;           /* of a sample: divided by n - 1 */
} aibrix_spread_t;


static void
aibrix_spread(const aibrix_view_t *v, aibrix_spread_t *s)
{
    size_t  i;
    double  d, sum;

    s->min = v->candidates[0].load;
    s->max = v->candidates[0].load;
    sum = 0;

    for (i = 0; i < v->n; i++) {
        d = v->candidates[i].load;
        sum += d;

        if (d < s->min) {
            s->min = d;
        }

        if (d > s->max) {
            s->max = d;
        }
    }

    s->mean = sum / (double) v->n;
    sum = 0;

    for (i = 0; i < v->n; i++) {
        d = v->candidates[i].load - s->mean;
        sum += d * d;
    }

    s->stddev = (v->n > 1) ? sqrt(sum / (double) (v->n - 1)) : 0;
}


/*
 * AIBrix v0.7.0, algorithms/prefix_cache.go: among the peers that know a
 * prefix (only the least loaded of them when max - min > imbalance), the
 * highest percent, then the fewest requests, that is not above
 * mean + factor * stddev of all; else the least loaded of all.
 */

void
aibrix_choose_prefix_cache(aibrix_view_t *v, aibrix_choice_t *c)
{
    size_t               i, best;
    double               limit;
    uint32_t             percent, best_percent, equals, matched;
    aibrix_spread_t      s;
    aibrix_candidate_t  *p;

    aibrix_spread(v, &s);

    c->imbalanced = (s.max - s.min > v->imbalance);
    limit = s.mean + v->stddev_factor * s.stddev;

    best = v->n;
    best_percent = 0;
    equals = 0;
    matched = 0;

    for (i = 0; i < v->n; i++) {
        p = &v->candidates[i];

        if (p->matched == 0 || (c->imbalanced && p->load > s.min)) {
            continue;
        }

        matched = 1;

        if (p->load > limit) {
            continue;
        }

        percent = aibrix_percent(p->matched, v->blocks);

        if (best != v->n) {
            if (percent < best_percent
                || (percent == best_percent
                    && p->load > v->candidates[best].load))
            {
                continue;
            }

            if (percent == best_percent
                && p->load == v->candidates[best].load)
            {
                if (aibrix_random(v, ++equals) == 0) {
                    best = i;
                }

                continue;
            }
        }

        best = i;
        best_percent = percent;
        equals = 1;
    }

    if (best != v->n) {
        c->index = best;
        c->selection = AIBRIX_PREFIX_MATCH;
        return;
    }

    c->index = aibrix_least_loaded(v);
    c->selection = matched ? AIBRIX_PREFIX_MATCH_SKIPPED
                           : AIBRIX_LEAST_REQUEST_FALLBACK;
}
