
#include <math.h>
#include <stdlib.h>

#include "engine.h"


/* a chunk of prompt, or a token to decode if tokens is 0 */

typedef struct {
    engine_request_t         *request;
    uint32_t                  tokens;
} engine_plan_t;


typedef struct {
    engine_request_t         *first;
    engine_request_t         *last;
} engine_list_t;


struct engine_s {
    uint32_t                  max_num_seqs;
    uint32_t                  max_num_batched_tokens;
    uint32_t                  cache_block;
    uint32_t                  align_chunks;
    double                    step_base;
    double                    decode_seq;
    double                    prefill_token;
    double                    overhead;

    double                    end;
    engine_list_t             waiting;
    engine_list_t             running;
    engine_stats_t            stats;
    engine_cache_t            cache;

    engine_token_pt           token;
    void                     *data;

    uint32_t                  nplan;
    engine_plan_t             plan[];
};


static void engine_step_start(engine_t *e, double now);
static void engine_step_finish(engine_t *e);
static uint32_t engine_plan_running(engine_t *e, uint32_t budget);
static void engine_plan_waiting(engine_t *e, uint32_t budget);
static uint32_t engine_chunk(const engine_t *e, const engine_request_t *r,
    uint32_t start, uint32_t budget);
static uint32_t engine_cached_prefix(engine_t *e, const engine_request_t *r);
static void engine_chunk_done(engine_t *e, engine_request_t *r,
    uint32_t tokens);
static void engine_emit(engine_t *e, engine_request_t *r, double at);


static void
engine_list_append(engine_list_t *list, engine_request_t *r)
{
    r->next = NULL;
    r->prev = list->last;

    if (list->last != NULL) {
        list->last->next = r;

    } else {
        list->first = r;
    }

    list->last = r;
}


static void
engine_list_remove(engine_list_t *list, engine_request_t *r)
{
    if (r->prev != NULL) {
        r->prev->next = r->next;

    } else {
        list->first = r->next;
    }

    if (r->next != NULL) {
        r->next->prev = r->prev;

    } else {
        list->last = r->prev;
    }
}


engine_t *
engine_create(const engine_params_t *p, engine_token_pt token, void *data)
{
    engine_t  *e;

    e = calloc(1, sizeof(engine_t) + p->max_num_seqs * sizeof(engine_plan_t));
    if (e == NULL) {
        return NULL;
    }

    if (engine_cache_init(&e->cache, p->kv_blocks) != 0) {
        engine_cache_free(&e->cache);
        free(e);
        return NULL;
    }

    e->max_num_seqs = p->max_num_seqs;
    e->max_num_batched_tokens = p->max_num_batched_tokens;
    e->cache_block = p->cache_block;
    e->align_chunks = p->align_chunks;
    e->step_base = p->step_base / p->speed;
    e->decode_seq = p->decode_seq / p->speed;
    e->prefill_token = p->prefill_token / p->speed;
    e->overhead = p->overhead / p->speed;
    e->end = INFINITY;
    e->token = token;
    e->data = data;

    return e;
}


void
engine_destroy(engine_t *e)
{
    engine_cache_free(&e->cache);
    free(e);
}


void
engine_submit(engine_t *e, engine_request_t *r, double now)
{
    while (e->end < now) {
        engine_step_finish(e);
    }

    r->state = ENGINE_WAITING;
    r->plan = UINT32_MAX;
    r->computed = 0;
    r->cached = 0;
    r->generated = 0;

    engine_list_append(&e->waiting, r);
    e->stats.waiting++;

    if (e->end == INFINITY) {
        engine_step_start(e, now);
    }
}


void
engine_abort(engine_t *e, engine_request_t *r)
{
    switch (r->state) {

    case ENGINE_WAITING:
        engine_list_remove(&e->waiting, r);
        e->stats.waiting--;
        break;

    case ENGINE_RUNNING:
        engine_list_remove(&e->running, r);
        e->stats.running--;

        if (r->plan != UINT32_MAX) {
            e->plan[r->plan].request = NULL;
        }

        break;

    default: /* ENGINE_OUT */
        return;
    }

    r->state = ENGINE_OUT;
    e->stats.aborted++;
}


void
engine_advance(engine_t *e, double now)
{
    while (e->end <= now) {
        engine_step_finish(e);
    }
}


double
engine_next(const engine_t *e)
{
    return e->end;
}


void
engine_warm(engine_t *e, const uint64_t *blocks, uint32_t n)
{
    uint32_t  i;

    for (i = 0; i < n; i++) {
        engine_cache_insert(&e->cache, blocks[i]);
    }
}


engine_rc_t
engine_reset_cache(engine_t *e)
{
    if (e->stats.running + e->stats.waiting > 0) {
        return ENGINE_BUSY;
    }

    engine_cache_clear(&e->cache);

    return ENGINE_OK;
}


const engine_stats_t *
engine_stats(const engine_t *e)
{
    return &e->stats;
}


uint32_t
engine_cached_blocks(const engine_t *e)
{
    return e->cache.count;
}


uint64_t
engine_held_blocks(const engine_t *e)
{
    uint64_t           n, tokens;
    engine_request_t  *r;

    n = 0;

    for (r = e->running.first; r != NULL; r = r->next) {
        tokens = (uint64_t) r->computed + r->generated;
        n += (tokens + e->cache_block - 1) / e->cache_block;
    }

    return n;
}


static void
engine_step_start(engine_t *e, double now)
{
    double    tokens;
    uint32_t  i, budget, decoding;

    e->nplan = 0;

    budget = engine_plan_running(e, e->max_num_batched_tokens);

    engine_plan_waiting(e, budget);

    if (e->nplan == 0) {
        e->end = INFINITY;
        return;
    }

    tokens = 0;
    decoding = 0;

    for (i = 0; i < e->nplan; i++) {

        if (e->plan[i].tokens == 0) {
            decoding++;
        }

        tokens += e->plan[i].tokens;
    }

    e->end = now + e->step_base + e->decode_seq * decoding
             + e->prefill_token * tokens;

    e->stats.steps++;
}


/* does the end of the step under way, and starts the next one */

static void
engine_step_finish(engine_t *e)
{
    double             now;
    uint32_t           i;
    engine_plan_t     *plan;
    engine_request_t  *r;

    now = e->end;

    for (i = 0; i < e->nplan; i++) {

        plan = &e->plan[i];
        r = plan->request;

        if (r == NULL) {
            continue;
        }

        r->plan = UINT32_MAX;

        if (plan->tokens != 0) {
            engine_chunk_done(e, r, plan->tokens);

            if (r->computed < r->prompt) {
                continue;
            }
        }

        engine_emit(e, r, now + e->overhead);
    }

    engine_step_start(e, now);
}


static void
engine_plan_add(engine_t *e, engine_request_t *r, uint32_t tokens)
{
    r->plan = e->nplan;

    e->plan[e->nplan].request = r;
    e->plan[e->nplan].tokens = tokens;
    e->nplan++;
}


static uint32_t
engine_plan_running(engine_t *e, uint32_t budget)
{
    uint32_t           n;
    engine_request_t  *r;

    for (r = e->running.first; r != NULL && budget > 0; r = r->next) {

        if (r->computed == r->prompt) {
            engine_plan_add(e, r, 0);
            budget--;
            continue;
        }

        n = engine_chunk(e, r, r->computed, budget);

        if (n > 0) {
            engine_plan_add(e, r, n);
            budget -= n;
        }
    }

    return budget;
}


static void
engine_plan_waiting(engine_t *e, uint32_t budget)
{
    uint32_t           n, cached;
    engine_request_t  *r;

    while (budget > 0 && e->stats.running < e->max_num_seqs) {

        r = e->waiting.first;

        if (r == NULL) {
            return;
        }

        cached = engine_cached_prefix(e, r);
        n = engine_chunk(e, r, cached, budget);

        if (n == 0) {
            return;
        }

        engine_list_remove(&e->waiting, r);
        engine_list_append(&e->running, r);

        r->state = ENGINE_RUNNING;
        r->computed = cached;
        r->cached = cached;

        e->stats.waiting--;
        e->stats.running++;
        e->stats.queries += r->prompt;
        e->stats.hits += cached;

        engine_plan_add(e, r, n);
        budget -= n;
    }
}


static uint32_t
engine_chunk(const engine_t *e, const engine_request_t *r, uint32_t start,
    uint32_t budget)
{
    uint32_t  end, rest, boundary;

    rest = r->prompt - start;
    end = start + (rest < budget ? rest : budget);

    if (!e->align_chunks) {
        return end - start;
    }

    boundary = r->prompt - r->prompt % e->cache_block;

    if (end < r->prompt) {
        end -= end % e->cache_block;

    } else if (start < boundary && boundary < end) {
        end = boundary;
    }

    return end > start ? end - start : 0;
}


/* the last token of a prompt is always computed */

static uint32_t
engine_cached_prefix(engine_t *e, const engine_request_t *r)
{
    uint32_t  n, limit;

    limit = (r->prompt - 1) / e->cache_block;

    if (limit > r->nblocks) {
        limit = r->nblocks;
    }

    for (n = 0; n < limit; n++) {

        if (!engine_cache_refresh(&e->cache, r->blocks[n])) {
            break;
        }
    }

    return n * e->cache_block;
}


static void
engine_chunk_done(engine_t *e, engine_request_t *r, uint32_t tokens)
{
    uint32_t  i, n;

    /* blocks of earlier chunks are still there if none can be evicted */

    i = (e->cache.capacity == ENGINE_UNLIMITED)
        ? r->computed / e->cache_block : 0;

    r->computed += tokens;
    e->stats.prefilled += tokens;

    n = r->computed / e->cache_block;

    if (n > r->nblocks) {
        n = r->nblocks;
    }

    if (i < n) {
        engine_warm(e, r->blocks + i, n - i);
    }
}


static void
engine_emit(engine_t *e, engine_request_t *r, double at)
{
    unsigned  what;

    what = 0;

    r->generated++;
    e->stats.generated++;

    if (r->generated == 1) {
        what |= ENGINE_FIRST;
        e->stats.prompts += r->prompt;
    }

    if (r->generated >= r->output) {
        what |= ENGINE_LAST;
        engine_list_remove(&e->running, r);
        r->state = ENGINE_OUT;
        e->stats.running--;
        e->stats.finished++;
    }

    e->token(e->data, r, what, at);
}
