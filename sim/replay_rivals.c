
/*
 * The rivals: what other routers do, written anew from their descriptions,
 * for comparison only.  Each sees what the core sees of a request, and books
 * of its own; none is given more than its original has.
 */

#include <math.h>
#include <string.h>

#include "replay_books.h"


typedef double (*replay_cost_pt)(const replay_view_t *v,
    const aibrix_candidate_t *c);


static void replay_cache_aware(aibrix_view_t *v, aibrix_choice_t *c);
static void replay_prefill_decode(aibrix_view_t *v, aibrix_choice_t *c);
static void replay_queue_batch(aibrix_view_t *v, aibrix_choice_t *c);
static void replay_bounded_load(aibrix_view_t *v, aibrix_choice_t *c);
static void replay_load_aware(aibrix_view_t *v, aibrix_choice_t *c);
static void replay_weighted_sum(aibrix_view_t *v, aibrix_choice_t *c);
static void replay_preble(aibrix_view_t *v, aibrix_choice_t *c);
static void replay_min_ttft(aibrix_view_t *v, aibrix_choice_t *c);


static const replay_strategy_t  replay_table[] = {
    { "least-work", "least-work", 0, 0, NULL,
      "this module" },
    { "random", "random", 0, 0, NULL,
      "AIBrix v0.7.0, in this module" },
    { "least-request", "least-request", 0, 0, NULL,
      "AIBrix v0.7.0, in this module" },
    { "prefix-cache", "prefix-cache", 16, 2, NULL,
      "AIBrix v0.7.0, in this module; imbalance 16, factor 2 as shipped" },
    { "prefix-cache-8-1", "prefix-cache", 8, 1, NULL,
      "the same, imbalance 8, factor 1" },
    { "prefix-cache-gap-4", "prefix-cache", 4, 2, NULL,
      "the same, imbalance 4, factor 2" },
    { "cache-aware", NULL, 0, 0, replay_cache_aware,
      "SGLang router, policy cache_aware: abs 64, rel 1.5, match 0.3" },
    { "prefill-decode", NULL, 0, 0, replay_prefill_decode,
      "NVIDIA Dynamo KV router: prefill + decode blocks, temperature 0" },
    { "queue-batch", NULL, 0, 0, replay_queue_batch,
      "LMetric: (queued + new prefill tokens) x (batch + 1)" },
    { "bounded-load", NULL, 0, 0, replay_bounded_load,
      "KubeAI, consistent hashing with bounded loads: factor 1.25" },
    { "load-aware", NULL, 0, 0, replay_load_aware,
      "vLLM production stack: matched / prompt - (load - mean) / mean" },
    { "weighted-sum", NULL, 0, 0, replay_weighted_sum,
      "llm-d, Gateway API inference extension: 3 prefix : 2 queue" },
    { "preble", NULL, 0, 0, replay_preble,
      "Preble, E2: exploit above half, else explore the least work" },
    { "min-ttft", NULL, 0, 0, replay_min_ttft,
      "Mooncake conductor: least predicted TTFT, no slots" }
};


#define REPLAY_STRATEGIES  (sizeof(replay_table) / sizeof(replay_table[0]))


const replay_strategy_t *
replay_strategy(const char *name, size_t len)
{
    size_t  i;

    for (i = 0; i < REPLAY_STRATEGIES; i++) {
        if (strlen(replay_table[i].name) == len
            && memcmp(replay_table[i].name, name, len) == 0)
        {
            return &replay_table[i];
        }
    }

    return NULL;
}


void
replay_strategies(FILE *out)
{
    size_t  i;

    for (i = 0; i < REPLAY_STRATEGIES; i++) {
        fprintf(out, "  %-19s %s\n", replay_table[i].name,
                replay_table[i].source);
    }
}


/* Bytes that this candidate would have to compute. */

static double
replay_new(const replay_view_t *v, const aibrix_candidate_t *c)
{
    double  known;

    known = (double) c->matched * REPLAY_BLOCK;

    return (v->bytes > known) ? v->bytes - known : 0;
}


static double
replay_share(const replay_view_t *v, const aibrix_candidate_t *c)
{
    return (v->view.blocks != 0)
           ? (double) c->matched / (double) v->view.blocks : 0;
}


static const replay_peer_t *
replay_peer(const replay_view_t *v, const aibrix_candidate_t *c)
{
    return &v->books->peers[c->peer];
}


/* What some costs are relative to. */

static replay_view_t *
replay_survey(aibrix_view_t *view)
{
    size_t                i;
    uint32_t              waiting;
    replay_view_t        *v;
    aibrix_candidate_t   *c;

    v = (replay_view_t *) view;

    v->longest = 0;
    v->fewest = UINT32_MAX;
    v->most = 0;
    v->mean = 0;

    for (i = 0; i < view->n; i++) {
        c = &view->candidates[i];
        waiting = replay_peer(v, c)->waiting;

        v->longest = (c->matched > v->longest) ? c->matched : v->longest;
        v->fewest = (waiting < v->fewest) ? waiting : v->fewest;
        v->most = (waiting > v->most) ? waiting : v->most;
        v->mean += c->load / (double) view->n;
    }

    return v;
}


/* The least cost, uniformly among equals; an infinite cost is never taken. */

static void
replay_least(aibrix_view_t *view, aibrix_choice_t *c, replay_cost_pt cost)
{
    double          x, best;
    size_t          i;
    uint32_t        equals;
    replay_view_t  *v;

    v = (replay_view_t *) view;
    best = INFINITY;
    equals = 0;

    for (i = 0; i < view->n; i++) {
        x = cost(v, &view->candidates[i]);

        if (x < best) {
            best = x;
            equals = 1;
            c->index = i;

        } else if (x == best && equals != 0
                   && aibrix_random(view, ++equals) == 0)
        {
            c->index = i;
        }
    }

    c->selection = (view->candidates[c->index].matched != 0)
                   ? AIBRIX_PREFIX_MATCH : AIBRIX_LEAST_REQUEST_FALLBACK;
}


static double
replay_match_cost(const replay_view_t *v, const aibrix_candidate_t *c)
{
    (void) v;

    return -(double) c->matched;
}


static double
replay_tree_cost(const replay_view_t *v, const aibrix_candidate_t *c)
{
    return (double) replay_peer(v, c)->tree;
}


static void
replay_cache_aware(aibrix_view_t *view, aibrix_choice_t *c)
{
    size_t  i;
    double  min, max;

    min = view->candidates[0].load;
    max = min;

    for (i = 1; i < view->n; i++) {
        min = fmin(min, view->candidates[i].load);
        max = fmax(max, view->candidates[i].load);
    }

    if (max - min > 64 && max > 1.5 * min) {
        c->index = aibrix_least_loaded(view);
        c->selection = AIBRIX_LEAST_REQUEST;
        c->imbalanced = 1;
        return;
    }

    if (replay_survey(view)->longest > 0.3 * view->blocks) {
        replay_least(view, c, replay_match_cost);
        return;
    }

    replay_least(view, c, replay_tree_cost);
}


static double
replay_prefill_decode_cost(const replay_view_t *v,
    const aibrix_candidate_t *c)
{
    double  decode;

    decode = (double) replay_peer(v, c)->active + v->view.blocks
             - replay_books_active(v->books, c->peer, v->hashes,
                                   v->view.blocks);

    return ((double) c->queued + replay_new(v, c)) / REPLAY_BLOCK + decode;
}


static void
replay_prefill_decode(aibrix_view_t *view, aibrix_choice_t *c)
{
    replay_least(view, c, replay_prefill_decode_cost);
}


static double
replay_queue_batch_cost(const replay_view_t *v, const aibrix_candidate_t *c)
{
    return ((double) c->queued + replay_new(v, c)) * (c->load + 1);
}


static void
replay_queue_batch(aibrix_view_t *view, aibrix_choice_t *c)
{
    replay_least(view, c, replay_queue_batch_cost);
}


/* Clockwise from the key, the first replica that is below its bound. */

static void
replay_bounded_load(aibrix_view_t *view, aibrix_choice_t *c)
{
    double                bound;
    size_t                low, high, mid, i, k, n;
    uint64_t              key;
    const replay_view_t  *v;

    v = replay_survey(view);
    n = v->books->npoints;

    key = (view->blocks != 0) ? v->hashes[0] : v->bytes;
    key = replay_mix(key, 0x6b65);
    bound = 1.25 * (v->mean + 1.0 / (double) view->n);

    low = 0;
    high = n;

    while (low < high) {
        mid = low + (high - low) / 2;

        if (v->books->points[mid].hash < key) {
            low = mid + 1;

        } else {
            high = mid;
        }
    }

    for (k = 0; k < n; k++) {
        i = v->books->points[(low + k) % n].peer;

        if (view->candidates[i].load + 1 <= bound) {
            c->index = i;
            c->selection = (k == 0) ? AIBRIX_PREFIX_MATCH
                                    : AIBRIX_PREFIX_MATCH_SKIPPED;
            return;
        }
    }

    c->index = aibrix_least_loaded(view);
    c->selection = AIBRIX_LEAST_REQUEST_FALLBACK;
}


static double
replay_load_aware_cost(const replay_view_t *v, const aibrix_candidate_t *c)
{
    return (c->load - v->mean) / fmax(1, v->mean) - replay_share(v, c);
}


static void
replay_load_aware(aibrix_view_t *view, aibrix_choice_t *c)
{
    (void) replay_survey(view);
    replay_least(view, c, replay_load_aware_cost);
}


static double
replay_weighted_sum_cost(const replay_view_t *v, const aibrix_candidate_t *c)
{
    double  queue;

    queue = 1;

    if (v->most > v->fewest) {
        queue = (double) (v->most - replay_peer(v, c)->waiting)
                / (double) (v->most - v->fewest);
    }

    return -3 * replay_share(v, c) - 2 * queue;
}


static void
replay_weighted_sum(aibrix_view_t *view, aibrix_choice_t *c)
{
    (void) replay_survey(view);
    replay_least(view, c, replay_weighted_sum_cost);
}


static double
replay_exploit_cost(const replay_view_t *v, const aibrix_candidate_t *c)
{
    if (c->matched < v->longest) {
        return INFINITY;
    }

    return replay_books_load(v->books, c->peer, v->now);
}


static double
replay_explore_cost(const replay_view_t *v, const aibrix_candidate_t *c)
{
    return replay_books_load(v->books, c->peer, v->now)
           + replay_books_prefill((uint64_t) replay_new(v, c));
}


static void
replay_preble(aibrix_view_t *view, aibrix_choice_t *c)
{
    const replay_view_t  *v;

    v = replay_survey(view);

    replay_least(view, c, (v->longest > 0.5 * view->blocks)
                          ? replay_exploit_cost : replay_explore_cost);
}


static double
replay_min_ttft_cost(const replay_view_t *v, const aibrix_candidate_t *c)
{
    return (double) c->queued + replay_new(v, c);
}


static void
replay_min_ttft(aibrix_view_t *view, aibrix_choice_t *c)
{
    replay_least(view, c, replay_min_ttft_cost);
}
