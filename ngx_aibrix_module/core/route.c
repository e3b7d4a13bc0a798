
#include "route.h"


void
aibrix_route_match(aibrix_route_t *rt, const uint32_t *peers, size_t n,
    const aibrix_peerset_t *among)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        if (peers[i] != AIBRIX_NO_PEER) {
            rt->matched[peers[i]] = 0;
        }
    }

    if (rt->blocks == 0) {
        return;
    }

    (void) aibrix_index_match(aibrix_zone_index(rt->zone), rt->hashes,
                              rt->blocks, among, rt->now_ms, rt->ttl_ms,
                              rt->matched);
}


/* What the zone has learned, for the strategies that ask. */

static void
aibrix_route_recall(const aibrix_route_t *rt, aibrix_view_t *v)
{
    size_t               i;
    aibrix_learn_t      *ln;
    aibrix_candidate_t  *c;

    ln = aibrix_zone_learn(rt->zone);

    v->work = (rt->work != NULL) ? rt->work : &aibrix_work_default;
    v->prompt = rt->prompt;
    v->block_size = rt->block_size;
    v->longest = 0;
    v->asked = 0;
    v->rate = 0;

    for (i = 0; i < v->n; i++) {
        if (v->candidates[i].matched > v->longest) {
            v->longest = v->candidates[i].matched;
        }
    }

    for (i = 0; i < v->n; i++) {
        c = &v->candidates[i];

        c->longest = v->longest;
        c->belief = 0;
        c->used = 0;

        if (c->peer != AIBRIX_NO_PEER) {
            c->belief = aibrix_learn_belief(ln, c->peer, v->work->belief);
            c->used = aibrix_learn_used(ln, c->peer);
        }
    }

    if (v->longest != 0) {
        v->asked = aibrix_learn_asked(ln, rt->hashes[v->longest - 1],
                                      rt->now_ms, &v->rate);
    }
}


void
aibrix_route_choose(const aibrix_route_t *rt, aibrix_view_t *v,
    aibrix_choice_t *choice)
{
    size_t               i;
    aibrix_load_t       *load;
    aibrix_load_sum_t    sum;
    aibrix_candidate_t  *c;

    load = aibrix_zone_load(rt->zone);

    v->blocks = rt->blocks;

    for (i = 0; i < v->n; i++) {
        c = &v->candidates[i];

        c->matched = 0;
        sum.inflight = 0;
        sum.queued = 0;

        if (c->peer != AIBRIX_NO_PEER) {
            c->matched = rt->matched[c->peer];
            aibrix_load_sum(load, c->peer, &sum);
        }

        c->inflight = sum.inflight;
        c->queued = sum.queued;
        c->load = (double) c->inflight / (double) c->weight;
    }

    aibrix_route_recall(rt, v);

    choice->index = 0;
    choice->imbalanced = 0;
    choice->selection = AIBRIX_SINGLE_CANDIDATE;

    if (v->n > 1) {
        rt->strategy->choose(v, choice);
    }
}


void
aibrix_route_reserve(const aibrix_route_t *rt,
    const aibrix_candidate_t *chosen, aibrix_grant_t *g)
{
    uint64_t  known;

    if (chosen->peer == AIBRIX_NO_PEER) {
        return;
    }

    known = (uint64_t) chosen->matched * rt->block_size;

    g->peer = chosen->peer;
    g->matched = chosen->matched;
    g->longest = chosen->longest;
    g->judged = 0;
    g->queued = (rt->prompt > known) ? rt->prompt - known : 0;

    aibrix_load_reserve(aibrix_zone_load(rt->zone), rt->row, g->peer,
                        g->queued);
    aibrix_learn_chosen(aibrix_zone_learn(rt->zone), g->peer);
    g->held = 1;
}


void
aibrix_route_record(const aibrix_route_t *rt, aibrix_grant_t *g)
{
    if (!g->held || rt->blocks == 0) {
        return;
    }

    aibrix_index_record(aibrix_zone_index(rt->zone), rt->hashes, rt->blocks,
                        g->peer, rt->now_ms, rt->ttl_ms);
    g->recorded = 1;

    if (g->longest != 0) {
        aibrix_learn_ask(aibrix_zone_learn(rt->zone),
                         rt->hashes[g->longest - 1], rt->now_ms);
    }
}


void
aibrix_route_answered(const aibrix_route_t *rt, aibrix_grant_t *g)
{
    if (!g->held || g->queued == 0) {
        return;
    }

    aibrix_load_answered(aibrix_zone_load(rt->zone), rt->row, g->peer,
                         g->queued);
    g->queued = 0;
}


void
aibrix_route_first_byte(const aibrix_route_t *rt, aibrix_grant_t *g,
    uint64_t ms)
{
    (void) ms;

    aibrix_route_answered(rt, g);
}


void
aibrix_route_usage(const aibrix_route_t *rt, aibrix_grant_t *g,
    uint64_t tokens, uint64_t cached)
{
    double  had;

    if (!g->held || g->matched >= g->longest) {
        return;
    }

    had = (double) cached / (double) tokens * rt->blocks;

    aibrix_learn_outcome(aibrix_zone_learn(rt->zone), g->peer,
                         (rt->work ? rt->work : &aibrix_work_default)->belief,
                         had * 2 > g->matched + g->longest);
}


void
aibrix_route_release(const aibrix_route_t *rt, aibrix_grant_t *g)
{
    if (!g->held) {
        return;
    }

    aibrix_load_release(aibrix_zone_load(rt->zone), rt->row, g->peer,
                        g->queued);
    g->held = 0;
    g->queued = 0;
}


void
aibrix_route_unrecord(const aibrix_route_t *rt, aibrix_grant_t *g)
{
    if (!g->recorded) {
        return;
    }

    aibrix_index_unrecord(aibrix_zone_index(rt->zone), rt->hashes,
                          g->matched, rt->blocks, g->peer);
    g->recorded = 0;
}
