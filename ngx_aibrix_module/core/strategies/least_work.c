
#include "strategy.h"


/* Tuned by replay in tokens of 5.72 bytes; flat around these values. */

const aibrix_work_t  aibrix_work_default = {
    .guard = 2,
    .guard_share = 1.0 / 3,
    .request = 6000,
    .crowd = 60000,
    .queue = 0.5,
    .copy = 6000,
    .copy_min = 6,
    .belief = 0.7
};


#define AIBRIX_WORK_ROOM  8     /* the prices are for engines of that room */


typedef struct {
    double     limit;           /* of load */
    double     holders;         /* mean load of those with the longest */
    double     scale;           /* of what a request in flight costs */
} aibrix_work_survey_t;


static void
aibrix_work_survey(const aibrix_view_t *v, aibrix_work_survey_t *s)
{
    size_t  i, n;
    double  mean, guard;

    n = 0;
    mean = 0;
    s->holders = 0;
    s->scale = AIBRIX_WORK_ROOM / v->learned.room;

    for (i = 0; i < v->n; i++) {
        mean += v->candidates[i].load / (double) v->n;

        if (v->candidates[i].matched == v->longest) {
            s->holders += v->candidates[i].load;
            n++;
        }
    }

    s->holders /= (double) n;

    /* where all are overloaded, moving a hit makes more work for all */

    guard = v->work->guard / s->scale;

    if (guard < v->work->guard_share * mean) {
        guard = v->work->guard_share * mean;
    }

    s->limit = mean + guard;
}


/* Bytes of the prompt that the peer would have to compute, at least 1. */

static double
aibrix_work_own(const aibrix_view_t *v, const aibrix_candidate_t *c)
{
    double  known, own;

    known = (double) c->matched
            + v->learned.belief * (double) (v->longest - c->matched);
    own = (double) v->prompt - known * (double) v->block_size;

    return (own > 1) ? own : 1;
}


static double
aibrix_work_cost(const aibrix_view_t *v, const aibrix_work_survey_t *s,
    const aibrix_candidate_t *c)
{
    double                own, queued;
    const aibrix_work_t  *w;

    w = v->work;
    own = aibrix_work_own(v, c) / c->weight;
    queued = (double) c->queued / c->weight;

    return own * (1 + (own + queued) / w->crowd) + queued * w->queue
           + c->load * w->request * s->scale;
}


/* Among equals the one that was chosen longest ago. */

static size_t
aibrix_work_cheaper(const aibrix_view_t *v, size_t i, size_t best)
{
    const aibrix_candidate_t  *a, *b;

    if (best == v->n) {
        return i;
    }

    a = &v->candidates[i];
    b = &v->candidates[best];

    if (a->cost != b->cost) {
        return (a->cost < b->cost) ? i : best;
    }

    return (a->used < b->used) ? i : best;
}


/* What a copy would save, in bytes: more the more often it is asked for. */

static double
aibrix_work_saving(const aibrix_view_t *v, const aibrix_work_survey_t *s,
    const aibrix_candidate_t *c)
{
    if ((double) v->asked <= v->work->copy_min || c->load >= s->holders) {
        return 0;
    }

    return v->work->copy * v->rate * (s->holders - c->load) * s->scale;
}


/*
 * The least work: what the peer must compute for this prompt, and the more
 * of that the worse as others wait for it; what it was sent before; how many
 * requests share it.  docs/least-work.md has the formulas and the figures
 * that each part of them was kept for.
 */

void
aibrix_choose_least_work(aibrix_view_t *v, aibrix_choice_t *c)
{
    size_t                 i, any, best, copy;
    aibrix_candidate_t    *p;
    aibrix_work_survey_t   s;

    aibrix_work_survey(v, &s);

    any = v->n;
    best = v->n;
    copy = v->n;

    for (i = 0; i < v->n; i++) {
        p = &v->candidates[i];
        p->cost = aibrix_work_cost(v, &s, p);

        any = aibrix_work_cheaper(v, i, any);

        if (p->load > s.limit) {
            continue;
        }

        best = aibrix_work_cheaper(v, i, best);

        if (p->matched < v->longest && p->queued == 0) {
            copy = aibrix_work_cheaper(v, i, copy);
        }
    }

    c->index = best;

    if (v->candidates[any].load > s.limit) {
        c->selection = AIBRIX_LEAST_WORK_GUARD;

    } else if (v->longest != 0
               && v->candidates[best].matched == v->longest)
    {
        c->selection = AIBRIX_LEAST_WORK_HIT;

    } else {
        c->selection = AIBRIX_LEAST_WORK_MISS;
    }

    if (copy == v->n) {
        return;
    }

    p = &v->candidates[copy];

    if (p->cost - aibrix_work_saving(v, &s, p) < v->candidates[best].cost) {
        c->index = copy;
        c->selection = AIBRIX_LEAST_WORK_COPY;
    }
}
