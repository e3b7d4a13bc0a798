
/*
 * The built-in workloads: per replica 4 groups that share a long prefix, 48
 * requests, 0.8 of them per second.  The first four come from the published
 * study; the rest is what nobody tuned for.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "prefix.h"
#include "replay.h"


#define REPLAY_GROUPS      4            /* a replica */
#define REPLAY_REQUESTS    48           /* a replica */
#define REPLAY_RATE        0.8          /* a second and replica */
#define REPLAY_PROMPT      5048         /* tokens, +- 8 */
#define REPLAY_OWN         18           /* of them, tokens no one shares */
#define REPLAY_OUTPUT      128          /* tokens */
#define REPLAY_OUTPUT_MAX  4096

#define REPLAY_BURST_TIME  10           /* seconds, mean */
#define REPLAY_BURST_RATE  3            /* times the rate of the calm */

#define REPLAY_TURN_GAP    15           /* seconds between turns, mean */
#define REPLAY_TURNS       4
#define REPLAY_FIRST_TURN  2500         /* tokens, mean */
#define REPLAY_NEXT_TURN   1200         /* tokens added by a turn, mean */
#define REPLAY_SYSTEM      1600         /* of them, a system prompt of all */


/* A text of which requests have a head: its hashes, and engine block ids. */
typedef struct {
    const uint64_t  *hashes;
    uint32_t         nhashes;
    const uint64_t  *blocks;
    uint32_t         nblocks;
} replay_text_t;


const char *const  replay_scenarios[] = {
    "cold", "warm-skewed", "hot-50", "hot-90", "multi-turn", "no-reuse", NULL
};


static uint32_t
replay_bytes(const replay_config_t *cf, uint32_t tokens)
{
    return (uint32_t) ((double) tokens * cf->engine.bytes_per_token + 0.5);
}


/* Text as in the study: a salt, then one sentence over and over. */

static void
replay_text(const replay_config_t *cf, uint64_t salt, uint32_t tokens,
    replay_memory_t *m, replay_text_t *t)
{
    char               *text;
    size_t              i, bytes;
    uint64_t           *hashes, *blocks;
    aibrix_span_t       span;
    static const char   hex[] = "0123456789abcdef";
    static const char   sentence[] =
        "The service tracks request latency, token throughput, cache "
        "utilization, and healthy replicas. ";

    bytes = replay_bytes(cf, tokens);
    text = replay_alloc(m, bytes);

    for (i = 0; i < bytes; i++) {
        text[i] = (i < 256)
                  ? hex[replay_mix(salt, i / 16) >> i % 16 * 4 & 15]
                  : sentence[(i - 256) % (sizeof(sentence) - 1)];
    }

    span.data = text;
    span.len = bytes;

    hashes = replay_alloc(m, (bytes / REPLAY_BLOCK) * sizeof(uint64_t));
    t->nhashes = (uint32_t) aibrix_prefix_hash(&span, 1, REPLAY_BLOCK, 0,
                                               hashes, bytes / REPLAY_BLOCK);
    t->hashes = hashes;

    t->nblocks = tokens / cf->engine.cache_block;
    blocks = replay_alloc(m, t->nblocks * sizeof(uint64_t));

    for (i = 0; i < t->nblocks; i++) {
        blocks[i] = replay_mix(salt, i + 1) >> 1;
    }

    t->blocks = blocks;
}


/* A prompt: the first of its tokens are the head of t, the rest its own. */

static void
replay_ask(const replay_config_t *cf, replay_workload_t *w,
    replay_request_t *r, const replay_text_t *t, uint32_t shared)
{
    uint32_t   i, n;
    uint64_t   own, *hashes;

    r->bytes = replay_bytes(cf, r->prompt);
    r->nhashes = r->bytes / REPLAY_BLOCK;

    n = replay_bytes(cf, shared) / REPLAY_BLOCK;
    n = (n < t->nhashes) ? n : t->nhashes;
    n = (n < r->nhashes) ? n : r->nhashes;

    hashes = replay_alloc(w->memory, r->nhashes * sizeof(uint64_t));

    if (n != 0) {
        memcpy(hashes, t->hashes, n * sizeof(uint64_t));
    }

    own = replay_mix((uint64_t) (r - w->requests), 0xabcd);

    for (i = n; i < r->nhashes; i++) {
        hashes[i] = replay_mix(own, i);
    }

    r->hashes = hashes;
    r->blocks = t->blocks;
    r->nblocks = shared / cf->engine.cache_block;
    r->nblocks = (r->nblocks < t->nblocks) ? r->nblocks : t->nblocks;

    w->hashes += r->nhashes - n;

    if (r->nhashes > w->longest) {
        w->longest = r->nhashes;
    }
}


static void
replay_shuffle(replay_random_t *r, uint32_t *a, size_t n)
{
    size_t    i, j;
    uint32_t  t;

    for (i = n; i > 1; i--) {
        j = replay_below(r, (uint32_t) i);
        t = a[i - 1];
        a[i - 1] = a[j];
        a[j] = t;
    }
}


/* The group of each request: a share for group 0, the rest spread evenly. */

static void
replay_deal(replay_random_t *r, uint32_t *group, size_t n, uint32_t groups,
    double hot)
{
    size_t  i, first;

    first = 0;

    if (hot > 0) {
        first = (size_t) (hot * (double) n + 0.5);
        groups--;
    }

    for (i = 0; i < n; i++) {
        group[i] = (i < first) ? 0
                               : (uint32_t) ((i - first) % groups)
                                 + (first != 0);
    }

    replay_shuffle(r, group, n);
}


void
replay_arrivals(const replay_config_t *cf, replay_random_t *r,
    replay_workload_t *w)
{
    size_t   i;
    double   t, gap, rate, change, sigma, calm;

    t = 0;
    gap = 1 / (REPLAY_RATE * cf->load * cf->replicas);
    sigma = cf->output_sigma;
    calm = 2.0 / (1 + REPLAY_BURST_RATE);
    change = 0;
    rate = REPLAY_BURST_RATE * calm;

    for (i = 0; i < w->n; i++) {

        switch (cf->arrivals) {

        case REPLAY_FIXED:
            t = (double) i * gap;
            break;

        case REPLAY_POISSON:
            t += replay_exponential(r, gap);
            break;

        case REPLAY_BURSTS:
            while (t >= change) {
                change += replay_exponential(r, REPLAY_BURST_TIME);
                rate = (rate == calm) ? REPLAY_BURST_RATE * calm : calm;
            }

            t += replay_exponential(r, gap / rate);
            break;
        }

        w->requests[i].t = t;
        w->requests[i].output = REPLAY_OUTPUT;

        if (sigma > 0) {
            w->requests[i].output = (uint32_t)
                fmin(fmax(REPLAY_OUTPUT
                          * exp(sigma * replay_normal(r) - sigma * sigma / 2),
                          2),
                     REPLAY_OUTPUT_MAX);
        }
    }
}


static void
replay_warm(replay_workload_t *w, uint32_t replica, const replay_text_t *t,
    int cached, int indexed)
{
    replay_warm_t  *warm;

    warm = &w->warm[w->nwarm++];

    warm->replica = replica;
    warm->cached = cached;
    warm->indexed = indexed;
    warm->hashes = t->hashes;
    warm->nhashes = t->nhashes;
    warm->blocks = t->blocks;
    warm->nblocks = t->nblocks;
}


/* Every engine has every group; the first replicas get the credit. */

static void
replay_warm_skewed(const replay_config_t *cf, replay_workload_t *w,
    const replay_text_t *texts, uint32_t groups)
{
    uint32_t  g, i, half, credited, owner;

    half = (cf->replicas + 1) / 2;
    credited = groups * 3 / 4;

    for (g = 0; g < groups; g++) {

        owner = g % half;

        if (g >= credited && cf->replicas > half) {
            owner = half + (g - credited) % (cf->replicas - half);
        }

        for (i = 0; i < cf->replicas; i++) {
            replay_warm(w, i, &texts[g], 1, i == owner);
        }
    }
}


static void
replay_groups(const replay_config_t *cf, uint64_t seed, replay_random_t *r,
    replay_workload_t *w)
{
    double          hot;
    size_t          i;
    uint32_t       *group, groups, g, shared;
    replay_text_t  *texts;

    groups = REPLAY_GROUPS * cf->replicas;
    shared = REPLAY_PROMPT - REPLAY_OWN;
    hot = 0;

    if (strcmp(cf->scenario, "hot-50") == 0) {
        hot = 0.5;

    } else if (strcmp(cf->scenario, "hot-90") == 0) {
        hot = 86.0 / 96;
    }

    texts = replay_alloc(w->memory, groups * sizeof(replay_text_t));
    group = replay_alloc(w->memory, w->n * sizeof(uint32_t));

    for (g = 0; g < groups; g++) {
        replay_text(cf, replay_mix(seed, g), shared, w->memory, &texts[g]);
        w->hashes += texts[g].nhashes;
    }

    w->warm = replay_alloc(w->memory,
                           groups * cf->replicas * sizeof(replay_warm_t));

    if (strcmp(cf->scenario, "warm-skewed") == 0) {
        replay_warm_skewed(cf, w, texts, groups);

    } else if (hot > 0) {
        for (g = 0; g < groups; g++) {
            replay_warm(w, g % cf->replicas, &texts[g], 1, 1);
        }
    }

    replay_deal(r, group, w->n, groups, hot);

    for (i = 0; i < w->n; i++) {
        w->requests[i].prompt = REPLAY_PROMPT - 8 + replay_below(r, 17);
        replay_ask(cf, w, &w->requests[i], &texts[group[i]], shared);
    }
}


static void
replay_no_reuse(const replay_config_t *cf, replay_random_t *r,
    replay_workload_t *w)
{
    size_t         i;
    replay_text_t  none;

    memset(&none, 0, sizeof(none));

    for (i = 0; i < w->n; i++) {
        w->requests[i].prompt = REPLAY_PROMPT / 4
                                + replay_below(r, REPLAY_PROMPT / 4);
        replay_ask(cf, w, &w->requests[i], &none, 0);
    }
}


static int
replay_by_time(const void *a, const void *b)
{
    const replay_request_t  *x = a, *y = b;

    return (x->t > y->t) - (x->t < y->t);
}


/*
 * Conversations: each turn's prompt is the last one's and more, all begin
 * with one system prompt.  A conversation starts with each arrival; its turns
 * follow, so the total rate is that of the other scenarios once it runs.
 */

static void
replay_multi_turn(const replay_config_t *cf, uint64_t seed,
    replay_random_t *r, replay_workload_t *w)
{
    double             t;
    size_t             i, k, talks;
    uint32_t           tokens;
    uint64_t          *hashes, *blocks;
    replay_text_t      text, common;
    replay_request_t  *q;

    talks = w->n / REPLAY_TURNS;
    w->n = talks * REPLAY_TURNS;

    replay_text(cf, seed, REPLAY_SYSTEM, w->memory, &common);
    w->hashes += common.nhashes;

    for (i = talks; i-- > 0; /* void */ ) {
        t = w->requests[i].t * REPLAY_TURNS;
        tokens = REPLAY_FIRST_TURN / 2 + replay_below(r, REPLAY_FIRST_TURN);

        if (tokens < REPLAY_SYSTEM) {
            tokens = REPLAY_SYSTEM;
        }

        replay_text(cf, replay_mix(seed, i + 1),
                    tokens + (REPLAY_TURNS - 1) * 2 * REPLAY_NEXT_TURN,
                    w->memory, &text);

        hashes = (uint64_t *) text.hashes;
        blocks = (uint64_t *) text.blocks;

        memcpy(hashes, common.hashes, common.nhashes * sizeof(uint64_t));
        memcpy(blocks, common.blocks, common.nblocks * sizeof(uint64_t));

        w->hashes += text.nhashes;

        for (k = 0; k < REPLAY_TURNS; k++) {
            q = &w->requests[i * REPLAY_TURNS + k];

            q->output = w->requests[i].output;
            q->prompt = tokens;
            q->t = t;
            replay_ask(cf, w, q, &text, tokens);

            tokens += REPLAY_NEXT_TURN / 2 + replay_below(r, REPLAY_NEXT_TURN);
            t += REPLAY_TURN_GAP / 2 + replay_exponential(r, REPLAY_TURN_GAP
                                                             / 2);
        }
    }

    qsort(w->requests, w->n, sizeof(replay_request_t), replay_by_time);
}


const char *
replay_scenario(const replay_config_t *cf, uint64_t seed,
    replay_workload_t *w)
{
    replay_random_t  r;

    memset(w, 0, sizeof(replay_workload_t));

    w->memory = replay_memory();
    replay_seed(&r, seed);

    if (cf->trace != NULL) {
        return replay_trace(cf, w);
    }

    w->n = (size_t) REPLAY_REQUESTS * cf->replicas;
    w->requests = replay_alloc(w->memory, w->n * sizeof(replay_request_t));

    replay_arrivals(cf, &r, w);

    if (strcmp(cf->scenario, "multi-turn") == 0) {
        replay_multi_turn(cf, seed, &r, w);

    } else if (strcmp(cf->scenario, "no-reuse") == 0) {
        replay_no_reuse(cf, &r, w);

    } else {
        replay_groups(cf, seed, &r, w);
    }

    return NULL;
}


void
replay_workload_free(replay_workload_t *w)
{
    replay_memory_free(w->memory);
}
