
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


static const aibrix_work_t *
aibrix_route_work(const aibrix_route_t *rt)
{
    return (rt->work != NULL) ? rt->work : &aibrix_work_default;
}


/* What the zone has learned, for the strategies that ask. */

static void
aibrix_route_recall(const aibrix_route_t *rt, aibrix_view_t *v)
{
    size_t               i;
    uint32_t             peer;
    aibrix_learn_t      *ln;
    aibrix_candidate_t  *c;

    v->work = aibrix_route_work(rt);
    v->prompt = rt->prompt;
    v->block_size = rt->block_size;
    v->longest = 0;
    v->asked = 0;
    v->rate = 0;
    peer = AIBRIX_NO_PEER;

    for (i = 0; i < v->n; i++) {
        c = &v->candidates[i];

        if (c->matched > v->longest) {
            v->longest = c->matched;
        }

        if (c->peer != AIBRIX_NO_PEER) {
            peer = c->peer;
        }
    }

    ln = aibrix_zone_learn(rt->zone);

    for (i = 0; i < v->n; i++) {
        c = &v->candidates[i];

        c->longest = v->longest;
        c->used = (c->peer != AIBRIX_NO_PEER)
                  ? aibrix_learn_used(ln, c->peer) : 0;
    }

    if (peer == AIBRIX_NO_PEER) {
        v->learned = aibrix_learned_nothing;
        return;
    }

    aibrix_learn_get(ln, peer, v->work->belief, &v->learned);

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
        c->cost = 0;
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
    g->queued = (rt->prompt > known) ? rt->prompt - known : 0;

    g->sent.prompt = rt->prompt;
    g->sent.known = known;
    g->sent.longest = (uint64_t) chosen->longest * rt->block_size;
    g->sent.inflight = chosen->inflight;
    g->sent.idle = (chosen->queued == 0);

    aibrix_load_reserve(aibrix_zone_load(rt->zone), rt->row, g->peer,
                        g->queued);
    aibrix_load_wait(aibrix_zone_load(rt->zone), rt->row, g->peer);
    aibrix_learn_chosen(aibrix_zone_learn(rt->zone), g->peer);
    g->held = 1;
    g->waiting = 1;
}


void
aibrix_route_record(const aibrix_route_t *rt, aibrix_grant_t *g)
{
    aibrix_learn_t  *ln;

    if (!g->held || rt->blocks == 0) {
        return;
    }

    aibrix_index_record(aibrix_zone_index(rt->zone), rt->hashes, rt->blocks,
                        g->peer, rt->now_ms, rt->ttl_ms);
    g->recorded = 1;

    ln = aibrix_zone_learn(rt->zone);

    if (g->longest != 0) {
        aibrix_learn_ask(ln, rt->hashes[g->longest - 1], rt->now_ms);

    } else {
        aibrix_learn_unseen(ln, g->peer);
    }
}


void
aibrix_route_answered(const aibrix_route_t *rt, aibrix_grant_t *g)
{
    if (!g->held || !g->waiting) {
        return;
    }

    aibrix_load_waited(aibrix_zone_load(rt->zone), rt->row, g->peer);
    g->waiting = 0;

    aibrix_load_answered(aibrix_zone_load(rt->zone), rt->row, g->peer,
                         g->queued);
    g->queued = 0;
}


void
aibrix_route_first_byte(const aibrix_route_t *rt, aibrix_grant_t *g,
    uint64_t ms)
{
    if (!g->held) {
        return;
    }

    aibrix_learn_first_byte(aibrix_zone_learn(rt->zone), g->peer, &g->sent,
                            aibrix_route_work(rt)->belief, ms);
    aibrix_route_answered(rt, g);
}


void
aibrix_route_usage(const aibrix_route_t *rt, aibrix_grant_t *g,
    uint64_t tokens, uint64_t cached)
{
    if (!g->held || tokens == 0) {
        return;
    }

    aibrix_learn_usage(aibrix_zone_learn(rt->zone), g->peer, &g->sent,
                       aibrix_route_work(rt)->belief,
                       (double) rt->prompt * (double) cached
                       / (double) tokens);
}


void
aibrix_route_release(const aibrix_route_t *rt, aibrix_grant_t *g)
{
    if (!g->held) {
        return;
    }

    if (g->waiting) {
        aibrix_load_waited(aibrix_zone_load(rt->zone), rt->row, g->peer);
        g->waiting = 0;
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
