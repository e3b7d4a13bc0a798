
#include <float.h>

#include "strategy.h"


const aibrix_work_t  aibrix_work_default = {
    .guard = 2,
    .request = 5857,
    .crowd = 57200,
    .queue = 0.5,
    .copy = 5720,
    .copy_min = 6,
    .belief = 0.7
};


/* Bytes that the peer would have to compute. */

static double
aibrix_work_own(const aibrix_view_t *v, const aibrix_candidate_t *c)
{
    double  known, own;

    if (c->listing == AIBRIX_UNLISTED) {
        known = (double) c->matched
                + v->learned.cached[AIBRIX_UNLISTED]
                  * (double) (v->longest - c->matched);

    } else {
        known = v->learned.cached[c->listing] * (double) c->matched;
    }

    own = (double) v->prompt - known * (double) v->block_size;

    return (own > 1) ? own / c->weight : 1.0 / c->weight;
}


static double
aibrix_work_cost(const aibrix_view_t *v, const aibrix_candidate_t *c)
{
    double                own, queued;
    const aibrix_work_t  *w;

    w = v->work;
    own = aibrix_work_own(v, c);
    queued = (double) c->queued / c->weight;

    return own * (1 + (queued + own) / w->crowd) + queued * w->queue
           + c->load * w->request * 8 / v->learned.room;
}


typedef struct {
    double   mean;              /* load, of all */
    double   holders;           /* load, mean of those with the longest */
    double   limit;
} aibrix_work_survey_t;


static void
aibrix_work_survey(aibrix_view_t *v, aibrix_work_survey_t *s)
{
    size_t    i, n;

    n = 0;
    s->mean = 0;
    s->holders = 0;

    for (i = 0; i < v->n; i++) {
        s->mean += v->candidates[i].load / (double) v->n;

        if (v->candidates[i].matched == v->longest) {
            s->holders += v->candidates[i].load;
            n++;
        }
    }

    s->holders /= (double) n;
    s->limit = s->mean + v->work->guard * v->learned.room / 8;
}


void
aibrix_choose_least_work(aibrix_view_t *v, aibrix_choice_t *c)
{
    size_t                 i, best, any, copy;
    double                 cost, best_cost, any_cost, copy_cost, gap;
    aibrix_candidate_t    *p;
    aibrix_work_survey_t   s;

    aibrix_work_survey(v, &s);

    best = v->n;
    any = v->n;
    copy = v->n;
    best_cost = DBL_MAX;
    any_cost = DBL_MAX;
    copy_cost = DBL_MAX;

    for (i = 0; i < v->n; i++) {
        p = &v->candidates[i];
        cost = aibrix_work_cost(v, p);
        p->cost = cost;

        if (cost < any_cost) {
            any = i;
            any_cost = cost;
        }

        if (p->load > s.limit) {
            continue;
        }

        if (cost < best_cost
            || (cost == best_cost && p->used < v->candidates[best].used))
        {
            best = i;
            best_cost = cost;
        }

        if (p->matched < v->longest && p->queued == 0
            && (cost < copy_cost
                || (cost == copy_cost
                    && p->used < v->candidates[copy].used)))
        {
            copy = i;
            copy_cost = cost;
        }
    }

    c->selection = (v->longest != 0
                    && v->candidates[best].matched == v->longest)
                   ? AIBRIX_LEAST_WORK_HIT : AIBRIX_LEAST_WORK_MISS;
    c->index = best;

    if (any != best && v->candidates[any].load > s.limit) {
        c->selection = AIBRIX_LEAST_WORK_GUARD;
    }

    if (copy != v->n && v->asked > v->work->copy_min) {
        gap = s.holders - v->candidates[copy].load;

        if (gap > 0
            && copy_cost - v->work->copy * v->rate * gap * 8
                           / v->learned.room < best_cost)
        {
            c->selection = AIBRIX_LEAST_WORK_COPY;
            c->index = copy;
        }
    }
}
