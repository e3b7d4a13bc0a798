
/*
 * One run in virtual time.  Arrivals, the ends of engine steps and the bytes
 * that reach the router are events in one heap; at equal times they come in
 * this order.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"


#define REPLAY_EPOCH      10000000      /* ms of the index's clock at t = 0 */
#define REPLAY_REGISTERED 1000000       /* and when the peers came */
#define REPLAY_ZONE       (2 * 1024 * 1024)
#define REPLAY_PER_PEER   49152
#define REPLAY_PER_HASH   128           /* bytes of zone for a hash */


typedef enum {
    REPLAY_ARRIVAL = 0,
    REPLAY_STEP,
    REPLAY_FIRST_BYTE,
    REPLAY_LAST_BYTE
} replay_kind_e;


typedef struct {
    double             t;
    uint32_t           kind;
    uint32_t           index;           /* request, or replica */
    uint64_t           seq;
} replay_event_t;


typedef struct {
    void              *mem;
    aibrix_zone_t     *zone;
    aibrix_peerset_t   among;
    uint32_t           row;
    uint32_t           peers[REPLAY_MAX_REPLICAS];
    replay_books_t    *books;
} replay_router_t;


typedef struct {
    const replay_config_t    *cf;
    const replay_workload_t  *w;
    const replay_strategy_t  *s;
    const aibrix_strategy_t  *strategy;
    aibrix_strategy_t         rival;

    engine_t                **engines;
    engine_request_t         *requests;
    replay_router_t          *routers;
    aibrix_grant_t           *grants;
    uint32_t                 *matched;
    aibrix_candidate_t       *candidates;

    replay_answer_t          *answers;
    replay_totals_t          *totals;
    replay_random_t           random;

    replay_event_t           *events;
    size_t                    nevents;
    size_t                    size;
    uint64_t                  seq;
} replay_t;


static void *
replay_zeroed(size_t n, size_t size)
{
    void  *p;

    p = calloc(n ? n : 1, size);

    if (p == NULL) {
        fprintf(stderr, "replay: out of memory\n");
        exit(1);
    }

    return p;
}


static int
replay_before(const replay_event_t *a, const replay_event_t *b)
{
    if (a->t != b->t) {
        return a->t < b->t;
    }

    if (a->kind != b->kind) {
        return a->kind < b->kind;
    }

    return a->seq < b->seq;
}


static void
replay_push(replay_t *rp, double t, replay_kind_e kind, uint32_t index)
{
    size_t           i;
    replay_event_t   e, *h;

    if (rp->nevents == rp->size) {
        rp->size *= 2;
        rp->events = realloc(rp->events, rp->size * sizeof(replay_event_t));

        if (rp->events == NULL) {
            fprintf(stderr, "replay: out of memory\n");
            exit(1);
        }
    }

    e.t = t;
    e.kind = kind;
    e.index = index;
    e.seq = rp->seq++;

    h = rp->events;

    for (i = rp->nevents++; i > 0 && replay_before(&e, &h[(i - 1) / 2]);
         i = (i - 1) / 2)
    {
        h[i] = h[(i - 1) / 2];
    }

    h[i] = e;
}


static replay_event_t
replay_pop(replay_t *rp)
{
    size_t           i, child;
    replay_event_t   top, e, *h;

    h = rp->events;
    top = h[0];
    e = h[--rp->nevents];

    for (i = 0; (child = 2 * i + 1) < rp->nevents; i = child) {

        if (child + 1 < rp->nevents
            && replay_before(&h[child + 1], &h[child]))
        {
            child++;
        }

        if (!replay_before(&h[child], &e)) {
            break;
        }

        h[i] = h[child];
    }

    h[i] = e;

    return top;
}


static void
replay_token(void *data, engine_request_t *r, unsigned what, double at)
{
    uint32_t   i;
    replay_t  *rp;

    rp = data;
    i = (uint32_t) (r - rp->requests);

    if (what & ENGINE_FIRST) {
        rp->answers[i].first = at;
        rp->answers[i].cached = r->cached;
        replay_push(rp, at, REPLAY_FIRST_BYTE, i);
    }

    if (what & ENGINE_LAST) {
        rp->answers[i].done = at;
        replay_push(rp, at, REPLAY_LAST_BYTE, i);
    }
}


static void
replay_router_init(replay_t *rp, replay_router_t *rt)
{
    int             n;
    char            name[32];
    size_t          size;
    uint32_t        i, peer;
    aibrix_span_t   upstream, span;

    size = REPLAY_ZONE + (size_t) rp->cf->replicas * REPLAY_PER_PEER
           + rp->w->hashes * REPLAY_PER_HASH;
    size &= ~(size_t) 4095;

    rt->mem = replay_zeroed(size + 64, 1);
    rt->zone = aibrix_zone_init((void *) (((uintptr_t) rt->mem + 63)
                                          & ~(uintptr_t) 63),
                                size, 0, REPLAY_TTL);
    rt->row = aibrix_load_attach(aibrix_zone_load(rt->zone), 1);

    upstream.data = "replay";
    upstream.len = 6;

    for (i = 0; i < rp->cf->replicas; i++) {
        n = snprintf(name, sizeof(name), "replica-%u", i);
        span.data = name;
        span.len = (size_t) n;

        peer = aibrix_zone_register(rt->zone, &upstream, &span, &span,
                                    REPLAY_REGISTERED);

        rt->peers[i] = peer;
        rt->among.word[peer / 64] |= 1ULL << peer % 64;
    }

    if (rp->s->core == NULL) {
        rt->books = replay_books(rp->cf->replicas);
    }
}


static void
replay_route_init(replay_t *rp, aibrix_route_t *route, uint32_t request,
    double now)
{
    replay_router_t         *rt;
    const replay_request_t  *q;

    rt = &rp->routers[request % rp->cf->routers];
    q = &rp->w->requests[request];

    memset(route, 0, sizeof(aibrix_route_t));

    route->zone = rt->zone;
    route->row = rt->row;
    route->strategy = rp->strategy;
    route->work = &rp->cf->work;
    route->hashes = q->hashes;
    route->blocks = q->nhashes;
    route->block_size = REPLAY_BLOCK;
    route->prompt = q->bytes;
    route->now_ms = REPLAY_EPOCH + (uint64_t) (now * 1000);
    route->ttl_ms = REPLAY_TTL;
    route->matched = rp->matched;
}


/* The decision, by the same calls as in the module's balancer. */

static uint32_t
replay_decide(replay_t *rp, uint32_t request, double now)
{
    uint32_t             i;
    aibrix_route_t       route;
    replay_view_t        v;
    aibrix_choice_t      choice;
    replay_router_t     *rt;
    aibrix_candidate_t  *chosen;

    rt = &rp->routers[request % rp->cf->routers];

    replay_route_init(rp, &route, request, now);
    aibrix_route_match(&route, rt->peers, rp->cf->replicas, &rt->among);

    memset(&v, 0, sizeof(replay_view_t));

    for (i = 0; i < rp->cf->replicas; i++) {
        rp->candidates[i].peer = rt->peers[i];
        rp->candidates[i].weight = 1;
    }

    v.view.candidates = rp->candidates;
    v.view.n = rp->cf->replicas;
    v.view.imbalance = rp->s->imbalance;
    v.view.stddev_factor = rp->s->stddev_factor;
    v.view.rng = replay_next(&rp->random) | 1;
    v.books = rt->books;
    v.hashes = route.hashes;
    v.bytes = (uint32_t) route.prompt;
    v.now = now;

    aibrix_route_choose(&route, &v.view, &choice);

    chosen = &rp->candidates[choice.index];

    aibrix_route_reserve(&route, chosen, &rp->grants[request]);
    aibrix_route_record(&route, &rp->grants[request]);

    if (rt->books != NULL) {
        replay_books_sent(rt->books, &v, chosen);
    }

    rp->answers[request].selection = choice.selection;
    rp->answers[request].replica = (uint32_t) choice.index;

    return (uint32_t) choice.index;
}


static void
replay_arrive(replay_t *rp, uint32_t i, double now)
{
    int                      idle;
    uint32_t                 replica;
    engine_t                *e;
    engine_request_t        *r;
    const replay_request_t  *q;

    if (i + 1 < rp->w->n) {
        replay_push(rp, rp->w->requests[i + 1].t, REPLAY_ARRIVAL, i + 1);
    }

    replica = replay_decide(rp, i, now);

    q = &rp->w->requests[i];
    r = &rp->requests[i];
    e = rp->engines[replica];

    r->prompt = q->prompt;
    r->output = q->output;
    r->blocks = q->blocks;
    r->nblocks = q->nblocks;

    idle = (engine_next(e) == INFINITY);
    engine_submit(e, r, now);

    if (idle) {
        replay_push(rp, engine_next(e), REPLAY_STEP, replica);
    }

    if (engine_stats(e)->waiting > rp->totals->queue_peak) {
        rp->totals->queue_peak = engine_stats(e)->waiting;
    }
}


static void
replay_step(replay_t *rp, uint32_t replica, double now)
{
    engine_t  *e;

    e = rp->engines[replica];
    engine_advance(e, now);

    if (engine_next(e) != INFINITY) {
        replay_push(rp, engine_next(e), REPLAY_STEP, replica);
    }
}


static void
replay_first_byte(replay_t *rp, uint32_t i, double now)
{
    uint64_t          ms;
    aibrix_route_t    route;
    replay_router_t  *rt;

    replay_route_init(rp, &route, i, now);
    rt = &rp->routers[i % rp->cf->routers];

    ms = (uint64_t) ((now - rp->w->requests[i].t) * 1000 + 0.5);

    aibrix_route_first_byte(&route, &rp->grants[i], ms);

    if (rp->cf->usage == REPLAY_USAGE_FIRST) {
        aibrix_route_usage(&route, &rp->grants[i], rp->w->requests[i].prompt,
                           rp->answers[i].cached);
    }

    if (rt->books != NULL) {
        replay_books_first(rt->books, rp->answers[i].replica);
    }
}


static void
replay_last_byte(replay_t *rp, uint32_t i, double now)
{
    aibrix_route_t    route;
    replay_router_t  *rt;

    replay_route_init(rp, &route, i, now);
    rt = &rp->routers[i % rp->cf->routers];

    if (rp->cf->usage == REPLAY_USAGE_END) {
        aibrix_route_usage(&route, &rp->grants[i], rp->w->requests[i].prompt,
                           rp->answers[i].cached);
    }

    aibrix_route_release(&route, &rp->grants[i]);

    if (rt->books != NULL) {
        replay_books_done(rt->books, rp->answers[i].replica, route.hashes,
                          route.blocks);
    }
}


/* What engines hold and routers know at the start. */

static void
replay_prepare(replay_t *rp)
{
    size_t                i;
    uint32_t              k;
    replay_router_t      *rt;
    const replay_warm_t  *warm;

    for (i = 0; i < rp->w->nwarm; i++) {
        warm = &rp->w->warm[i];

        if (warm->cached) {
            engine_warm(rp->engines[warm->replica], warm->blocks,
                        warm->nblocks);
        }

        for (k = 0; warm->indexed && k < rp->cf->routers; k++) {
            rt = &rp->routers[k];
            aibrix_index_record(aibrix_zone_index(rt->zone), warm->hashes,
                                warm->nhashes, rt->peers[warm->replica],
                                REPLAY_EPOCH, REPLAY_TTL);
        }
    }
}


static void
replay_init(replay_t *rp, uint64_t seed)
{
    uint32_t         i;
    engine_params_t  params;

    replay_seed(&rp->random, seed);

    rp->rival.name = rp->s->name;
    rp->rival.choose = rp->s->rival;
    rp->strategy = &rp->rival;

    if (rp->s->core != NULL) {
        rp->strategy = aibrix_strategy_find(rp->s->core,
                                            strlen(rp->s->core));
    }

    rp->engines = replay_zeroed(rp->cf->replicas, sizeof(engine_t *));
    rp->requests = replay_zeroed(rp->w->n, sizeof(engine_request_t));
    rp->routers = replay_zeroed(rp->cf->routers, sizeof(replay_router_t));
    rp->grants = replay_zeroed(rp->w->n, sizeof(aibrix_grant_t));
    rp->matched = replay_zeroed(AIBRIX_MAX_PEERS, sizeof(uint32_t));
    rp->candidates = replay_zeroed(rp->cf->replicas,
                                   sizeof(aibrix_candidate_t));

    rp->size = 1024;
    rp->events = replay_zeroed(rp->size, sizeof(replay_event_t));

    for (i = 0; i < rp->cf->replicas; i++) {
        params = rp->cf->engine;
        params.speed *= rp->cf->speed[i];

        rp->engines[i] = engine_create(&params, replay_token, rp);

        if (rp->engines[i] == NULL) {
            fprintf(stderr, "replay: out of memory\n");
            exit(1);
        }
    }

    for (i = 0; i < rp->cf->routers; i++) {
        replay_router_init(rp, &rp->routers[i]);
    }
}


static void
replay_finish(replay_t *rp)
{
    uint32_t               i;
    const engine_stats_t  *st;

    for (i = 0; i < rp->cf->replicas; i++) {
        st = engine_stats(rp->engines[i]);
        rp->totals->queries += st->queries;
        rp->totals->hits += st->hits;
        engine_destroy(rp->engines[i]);
    }

    for (i = 0; i < rp->cf->routers; i++) {
        if (rp->routers[i].books != NULL) {
            replay_books_free(rp->routers[i].books);
        }

        free(rp->routers[i].mem);
    }

    free(rp->engines);
    free(rp->requests);
    free(rp->routers);
    free(rp->grants);
    free(rp->matched);
    free(rp->candidates);
    free(rp->events);
}


void
replay_run(const replay_config_t *cf, const replay_workload_t *w,
    const replay_strategy_t *s, uint64_t seed, replay_answer_t *answers,
    replay_totals_t *totals)
{
    replay_t        rp;
    replay_event_t  e;

    memset(&rp, 0, sizeof(replay_t));
    memset(answers, 0, w->n * sizeof(replay_answer_t));
    memset(totals, 0, sizeof(replay_totals_t));

    rp.cf = cf;
    rp.w = w;
    rp.s = s;
    rp.answers = answers;
    rp.totals = totals;

    replay_init(&rp, seed);
    replay_prepare(&rp);
    replay_push(&rp, w->requests[0].t, REPLAY_ARRIVAL, 0);

    while (rp.nevents != 0) {
        e = replay_pop(&rp);

        switch (e.kind) {

        case REPLAY_ARRIVAL:
            replay_arrive(&rp, e.index, e.t);
            break;

        case REPLAY_STEP:
            replay_step(&rp, e.index, e.t);
            break;

        case REPLAY_FIRST_BYTE:
            replay_first_byte(&rp, e.index, e.t);
            break;

        default: /* REPLAY_LAST_BYTE */
            replay_last_byte(&rp, e.index, e.t);
            break;
        }
    }

    replay_finish(&rp);
}
