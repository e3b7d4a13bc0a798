
/*
 * What a strategy sees and what it answers.  A strategy holds no state: it
 * chooses from the view alone, so it can be run in a worker, in virtual time
 * and under a fuzzer alike.
 */

#ifndef AIBRIX_STRATEGY_H_INCLUDED_
#define AIBRIX_STRATEGY_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>

#include "learn.h"
#include "stats.h"


typedef struct {
    uint32_t              peer;         /* number in the zone */
    uint32_t              weight;       /* of the server line, at least 1 */
    uint32_t              inflight;     /* requests */
    uint32_t              matched;      /* leading blocks it knows */
    uint64_t              queued;       /* prompt bytes not yet answered */
    double                load;         /* inflight / weight */
    uint64_t              used;         /* the larger, the later chosen */
    uint32_t              longest;      /* match of any candidate */
    double                cost;         /* told by strategies that have one */
} aibrix_candidate_t;


/* The constants of least-work; all lengths are bytes of prompt. */
typedef struct {
    double                guard;        /* requests above the mean, at most */
    double                guard_share;  /* or this share of the mean */
    double                request;      /* the price of one in flight */
    double                crowd;        /* own work that doubles its price */
    double                queue;        /* the price of a queued byte */
    double                copy;         /* bytes a request per second */
    double                copy_min;     /* requests before a copy pays */
    double                belief;       /* of a peer nothing is known of */
} aibrix_work_t;


typedef struct {
    aibrix_candidate_t   *candidates;   /* eligible peers, at least 1 */
    size_t                n;
    uint32_t              blocks;       /* full blocks of the prompt */
    double                imbalance;    /* AIBrix: ABS_COUNT */
    double                stddev_factor;
    uint64_t              rng;          /* xorshift state, not 0 */
    uint64_t              prompt;       /* bytes */
    uint32_t              block_size;
    uint32_t              longest;      /* match of any candidate */
    uint32_t              asked;        /* recent requests for that match */
    double                rate;         /* of them, per second */
    aibrix_learned_t      learned;
    const aibrix_work_t  *work;
} aibrix_view_t;


typedef struct {
    size_t                index;        /* of candidates */
    aibrix_selection_e    selection;
    unsigned              imbalanced:1;
} aibrix_choice_t;


typedef struct {
    const char           *name;
    void                (*choose)(aibrix_view_t *v, aibrix_choice_t *c);
    unsigned              wants_prompt; /* without one it is least-request */
} aibrix_strategy_t;


/* Ends with a NULL name; a strategy's number is its place here. */
extern const aibrix_strategy_t  aibrix_strategies[];

extern const aibrix_work_t  aibrix_work_default;

#define AIBRIX_STRATEGY_DEFAULT  "least-work"

/* The strategy of that name (case-sensitive), or NULL. */
const aibrix_strategy_t *aibrix_strategy_find(const char *name, size_t len);

/* The name of a strategy's number; "other" for what is out of range. */
const char *aibrix_strategy_name(uint32_t strategy);

/* The label of a reason, as AIBrix v0.7.0 has it where it has one. */
const char *aibrix_selection_name(aibrix_selection_e selection);

/* Uniform in 0 .. n - 1. */
uint32_t aibrix_random(aibrix_view_t *v, uint32_t n);

/* floor(matched * 100 / blocks), 0 for a prompt without a full block. */
uint32_t aibrix_percent(uint32_t matched, uint32_t blocks);

/* The candidate of the least load, uniformly among equals. */
size_t aibrix_least_loaded(aibrix_view_t *v);


void aibrix_choose_random(aibrix_view_t *v, aibrix_choice_t *c);
void aibrix_choose_least_request(aibrix_view_t *v, aibrix_choice_t *c);
void aibrix_choose_prefix_cache(aibrix_view_t *v, aibrix_choice_t *c);
void aibrix_choose_least_work(aibrix_view_t *v, aibrix_choice_t *c);


#endif /* AIBRIX_STRATEGY_H_INCLUDED_ */
