
/*
 * A vLLM-like inference engine as a model: continuous batching in steps, a
 * first-come first-served queue, chunked prefill, a prefix cache.  It knows
 * neither HTTP nor the time of day: the caller says what time it is.
 *
 * Times are seconds as double, summed in the order in which the model's
 * independent implementation sums them, so that even an arrival at the very
 * instant at which a step ends is resolved in the same way in both.
 */

#ifndef ENGINE_H_INCLUDED_
#define ENGINE_H_INCLUDED_

#include <stdint.h>

#include "engine_cache.h"


#define ENGINE_UNLIMITED   ENGINE_CACHE_UNLIMITED

/* what a token is besides being a token */
#define ENGINE_FIRST       1
#define ENGINE_LAST        2


typedef enum {
    ENGINE_OK = 0,
    ENGINE_BUSY,
    ENGINE_UNKNOWN,
    ENGINE_INVALID
} engine_rc_t;


typedef struct {
    uint32_t                  max_num_seqs;
    uint32_t                  max_num_batched_tokens;
    uint32_t                  cache_block;      /* tokens */
    uint32_t                  align_chunks;     /* 0 or 1 */
    uint64_t                  kv_blocks;        /* or ENGINE_UNLIMITED */
    double                    step_base;        /* seconds */
    double                    decode_seq;       /* seconds */
    double                    prefill_token;    /* seconds */
    double                    overhead;         /* seconds */
    double                    bytes_per_token;
    double                    speed;            /* divides all times */
} engine_params_t;


typedef enum {
    ENGINE_OUT = 0,
    ENGINE_WAITING,
    ENGINE_RUNNING
} engine_state_t;


typedef struct engine_s          engine_t;
typedef struct engine_request_s  engine_request_t;


/*
 * The caller's own memory, valid (blocks too) until the last token or the
 * abort.  The caller sets prompt, output, blocks, nblocks and data.
 */

struct engine_request_s {
    engine_request_t         *prev;
    engine_request_t         *next;
    engine_state_t            state;
    uint32_t                  plan;
    uint32_t                  prompt;           /* tokens, at least 1 */
    uint32_t                  output;           /* tokens, at least 1 */
    uint32_t                  computed;         /* prompt tokens */
    uint32_t                  cached;           /* prompt tokens */
    uint32_t                  generated;        /* tokens */
    uint32_t                  nblocks;
    const uint64_t           *blocks;           /* leading full blocks */
    void                     *data;
};


/*
 * Called for every token; "at" is when it reaches the client (the end of the
 * step and the overhead), never earlier than that of the call before.  With
 * ENGINE_LAST the request has left the engine.  It may abort requests, but
 * must not submit any.
 */

typedef void (*engine_token_pt)(void *data, engine_request_t *r,
    unsigned what, double at);


typedef struct {
    uint64_t                  queries;          /* prompt tokens admitted */
    uint64_t                  hits;             /* of these, cached */
    uint64_t                  prefilled;        /* prompt tokens computed */
    uint64_t                  prompts;          /* tokens of whole prompts */
    uint64_t                  generated;        /* tokens */
    uint64_t                  finished;         /* requests */
    uint64_t                  aborted;          /* requests */
    uint64_t                  steps;
    uint32_t                  running;          /* requests, now */
    uint32_t                  waiting;          /* requests, now */
} engine_stats_t;


/* sets all parameters to those of profile "l20-27b" */
void engine_params_init(engine_params_t *p);

/*
 * Applies one "name=value"; "profile=NAME" sets all parameters.  A time is
 * seconds, or has a unit: us, ms, s, m.  Returns ENGINE_UNKNOWN if there is
 * no parameter of that name and ENGINE_INVALID if the value is not one.
 */
engine_rc_t engine_params_set(engine_params_t *p, const char *setting);

/* returns what is wrong with the parameters as a whole, or NULL */
const char *engine_params_check(const engine_params_t *p);


/* the parameters must have passed the check; NULL: there is no memory */
engine_t *engine_create(const engine_params_t *p, engine_token_pt token,
    void *data);
void engine_destroy(engine_t *e);

/*
 * Queues a request that arrives now: steps that ended before now are done
 * first, one that ends right now is not.
 */
void engine_submit(engine_t *e, engine_request_t *r, double now);

/* drops a request wherever it is; the step under way keeps its length */
void engine_abort(engine_t *e, engine_request_t *r);

/* does all step ends up to and including now */
void engine_advance(engine_t *e, double now);

/* when the step under way ends; INFINITY if the engine is idle */
double engine_next(const engine_t *e);

/* puts blocks into the cache, as if they had just been computed */
void engine_warm(engine_t *e, const uint64_t *blocks, uint32_t n);

/* empties the prefix cache; ENGINE_BUSY if there are requests */
engine_rc_t engine_reset_cache(engine_t *e);

const engine_stats_t *engine_stats(const engine_t *e);

/* blocks in the prefix cache, and those that running requests fill */
uint32_t engine_cached_blocks(const engine_t *e);
uint64_t engine_held_blocks(const engine_t *e);


#endif /* ENGINE_H_INCLUDED_ */
