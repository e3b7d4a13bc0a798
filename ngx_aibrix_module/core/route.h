
/*
 * The decision, from block hashes to one reserved peer: match -> load ->
 * strategy -> record.  Its caller (a worker, the replay tool, a test) says
 * who is eligible and what time it is.
 */

#ifndef AIBRIX_ROUTE_H_INCLUDED_
#define AIBRIX_ROUTE_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>

#include "strategy.h"
#include "zone.h"


typedef struct {
    aibrix_zone_t             *zone;
    uint32_t                   row;     /* of aibrix_load_attach() */
    const aibrix_strategy_t   *strategy;
    const uint64_t            *hashes;
    uint32_t                   blocks;  /* number of hashes */
    uint32_t                   block_size;
    uint64_t                   prompt;  /* bytes of prompt text */
    uint64_t                   now_ms;
    uint64_t                   ttl_ms;
    uint32_t                  *matched; /* AIBRIX_MAX_PEERS, by peer number */
    const aibrix_work_t       *work;    /* NULL: aibrix_work_default */
} aibrix_route_t;


/* What a request holds of a peer; zeroed before its first use. */
typedef struct {
    uint32_t                   peer;
    uint32_t                   matched; /* blocks known when it was chosen */
    uint32_t                   longest; /* blocks that any candidate knew */
    uint64_t                   queued;
    unsigned                   held:1;
    unsigned                   waiting:1;       /* for the first byte */
    unsigned                   recorded:1;
    aibrix_learn_sent_t        sent;
} aibrix_grant_t;


/*
 * Fills rt->matched for the peers in among, which may be more than the
 * eligible ones.  Takes no lock; may be called well before choose().
 */
void aibrix_route_match(aibrix_route_t *rt, const uint32_t *peers, size_t n,
    const aibrix_peerset_t *among);

/*
 * v->candidates: peer and weight are set by the caller, the rest by this.
 * At least one candidate.
 */
void aibrix_route_choose(const aibrix_route_t *rt, aibrix_view_t *v,
    aibrix_choice_t *choice);

/* Reserves the load: call it where choose() was called, under one lock. */
void aibrix_route_reserve(const aibrix_route_t *rt,
    const aibrix_candidate_t *chosen, aibrix_grant_t *g);

/* Records the prefix, for every strategy alike. */
void aibrix_route_record(const aibrix_route_t *rt, aibrix_grant_t *g);

/* The first byte of the answer is here. */
void aibrix_route_answered(const aibrix_route_t *rt, aibrix_grant_t *g);

/* The same, and what its time tells of the peer; ms since the request. */
void aibrix_route_first_byte(const aibrix_route_t *rt, aibrix_grant_t *g,
    uint64_t ms);

/*
 * The engine says how much of the prompt it had cached.  Before release();
 * 0 tokens tell nothing.
 */
void aibrix_route_usage(const aibrix_route_t *rt, aibrix_grant_t *g,
    uint64_t tokens, uint64_t cached);

/* Releases the load; does nothing when there is nothing to release. */
void aibrix_route_release(const aibrix_route_t *rt, aibrix_grant_t *g);

/*
 * The peer did not compute the prompt: what this request said of it is taken
 * back, what was known before stays.
 */
void aibrix_route_unrecord(const aibrix_route_t *rt, aibrix_grant_t *g);


#endif /* AIBRIX_ROUTE_H_INCLUDED_ */
