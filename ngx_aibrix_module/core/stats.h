
/*
 * Counters and histograms in shared memory: fixed size, lock-free, monotonic
 * over reloads, one value whatever process counted.  Label sets are bounded.
 *
 * A process may be killed anywhere in here: what can be lost is what it was
 * just counting.  A peer number outside 0 .. max_peers - 1 is counted too, in
 * one row for all such peers that readers see as peer UINT32_MAX.
 */

#ifndef AIBRIX_STATS_H_INCLUDED_
#define AIBRIX_STATS_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>

#include "prompt.h"


#define AIBRIX_MODELS        64         /* further ones count as "other" */
#define AIBRIX_MODEL_OTHER   AIBRIX_MODELS
#define AIBRIX_MODEL_MAX     128        /* bytes kept of a name */

#define AIBRIX_STRATEGIES      32       /* that are counted apart */
#define AIBRIX_STRATEGY_OTHER  (AIBRIX_STRATEGIES - 1)

#define AIBRIX_CLASSES   6              /* 1xx .. 5xx; 0 is all else */
#define AIBRIX_RECENT    128            /* decisions remembered */
#define AIBRIX_BUCKETS   19             /* the most that a histogram has */


/* Why a peer was chosen; the first three are AIBrix v0.7.0's labels. */
typedef enum {
    AIBRIX_PREFIX_MATCH = 0,
    AIBRIX_PREFIX_MATCH_SKIPPED,
    AIBRIX_LEAST_REQUEST_FALLBACK,
    AIBRIX_LEAST_REQUEST,
    AIBRIX_RANDOM,
    AIBRIX_SINGLE_CANDIDATE,
    AIBRIX_LEAST_WORK_HIT,
    AIBRIX_LEAST_WORK_MISS,
    AIBRIX_LEAST_WORK_COPY,
    AIBRIX_LEAST_WORK_GUARD,
    AIBRIX_SELECTIONS
} aibrix_selection_e;


/* How a request that had a peer ended. */
typedef enum {
    AIBRIX_FINISHED = 0,
    AIBRIX_CLIENT_GONE,
    AIBRIX_REPLICA_GONE,
    AIBRIX_ERROR_STATUS,
    AIBRIX_OUTCOMES
} aibrix_outcome_e;


/* The prefix match of a decision, in AIBrix's steps. */
typedef enum {
    AIBRIX_PERCENT_0 = 0,
    AIBRIX_PERCENT_25,
    AIBRIX_PERCENT_50,
    AIBRIX_PERCENT_75,
    AIBRIX_PERCENT_100,
    AIBRIX_PERCENTS
} aibrix_percent_e;


/* Why there was no decision: AIBrix v0.7.0's labels of its local index. */
typedef enum {
    AIBRIX_ERROR_TOKENIZE = 0,
    AIBRIX_ERROR_IMBALANCE_NO_TARGET,
    AIBRIX_ERROR_NO_TARGET,
    AIBRIX_ERROR_POST_ROUTE,
    AIBRIX_ERRORS
} aibrix_error_e;


/* Why a decision was made without the prompt, or left to round robin. */
typedef enum {
    AIBRIX_FALLBACK_NO_BODY = 0,
    AIBRIX_FALLBACK_NOT_JSON,
    AIBRIX_FALLBACK_NO_PROMPT,          /* none, or shorter than a block */
    AIBRIX_FALLBACK_NO_MEMORY,
    AIBRIX_FALLBACK_NO_PEER,            /* no candidate has a number */
    AIBRIX_FALLBACKS
} aibrix_fallback_e;


typedef struct aibrix_stats_s  aibrix_stats_t;


typedef struct {
    uint32_t             model;         /* of aibrix_stats_model() */
    uint32_t             peer;
    uint32_t             strategy;      /* number in the table */
    aibrix_selection_e   selection;
    uint32_t             percent;       /* matched, 0 .. 100 */
    uint32_t             blocks;        /* of the prompt */
    uint32_t             matched;       /* blocks */
    uint32_t             imbalanced;    /* the load gate had closed */
    uint64_t             ns;            /* what the decision took */
    uint64_t             at;            /* unix time, ms */
} aibrix_decision_t;


typedef struct {
    uint32_t             model;
    uint32_t             peer;
    uint32_t             strategy;
    uint32_t             status;        /* HTTP */
    aibrix_outcome_e     outcome;
    uint64_t             duration_ms;
    uint64_t             prompt_tokens; /* of usage; 0 when unknown */
    uint64_t             completion_tokens;
    uint64_t             cached_tokens;
} aibrix_done_t;


/* A snapshot: count is the sum of the buckets as they were read. */
typedef struct {
    const uint64_t      *bounds;        /* upper and inclusive, n of them */
    uint32_t             n;             /* bucket[n] is what is above all */
    uint32_t             per_second;    /* units: 1000 is ms */
    uint64_t             bucket[AIBRIX_BUCKETS];
    uint64_t             count;
    uint64_t             sum;           /* units */
} aibrix_hist_t;


/* What is counted by peer and model. */
typedef struct {
    uint32_t             peer;
    uint32_t             model;
    uint64_t             outcomes[AIBRIX_OUTCOMES];
    uint64_t             prompt_tokens;
    uint64_t             completion_tokens;
    uint64_t             cached_tokens;
    aibrix_hist_t        ttft;          /* ms */
    aibrix_hist_t        gap;           /* ms */
    aibrix_hist_t        duration;      /* ms */
} aibrix_series_t;


typedef struct {
    uint32_t             peer;
    uint32_t             model;
    uint32_t             strategy;
    uint32_t             status;        /* class, 0 .. 5 */
    uint64_t             count;
} aibrix_requests_t;


typedef struct {
    uint64_t             selections[AIBRIX_SELECTIONS];
    uint64_t             percents[AIBRIX_PERCENTS];
    uint64_t             errors[AIBRIX_ERRORS];
    uint64_t             imbalances;
    uint64_t             blocks;        /* of all prompts */
    uint64_t             matched;       /* of them */
    aibrix_hist_t        latency;       /* ns */
} aibrix_model_stats_t;


typedef struct {
    uint64_t             decisions;
    uint64_t             fails;
    uint64_t             blocks;        /* of the prompts sent there */
    uint64_t             matched;       /* of them */
    aibrix_series_t      all;           /* over all models */
} aibrix_peer_stats_t;


/* max_peers: 1 .. 4096. */
size_t aibrix_stats_size(uint32_t max_peers);

/* In zeroed memory of aibrix_stats_size() bytes, 64-byte aligned. */
aibrix_stats_t *aibrix_stats_init(void *mem, uint32_t max_peers);

/*
 * The number of a model's name; AIBRIX_MODEL_OTHER when the table is full.
 * The name is cut at AIBRIX_MODEL_MAX bytes, with what is not printable UTF-8
 * replaced, before it is compared: two numbers never share a label.
 */
uint32_t aibrix_stats_model(aibrix_stats_t *st, const aibrix_span_t *name);

void aibrix_stats_decision(aibrix_stats_t *st, const aibrix_decision_t *d);
void aibrix_stats_first_token(aibrix_stats_t *st, uint32_t peer,
    uint32_t model, uint64_t ms);
void aibrix_stats_gap(aibrix_stats_t *st, uint32_t peer, uint32_t model,
    uint64_t ms);
/* n gaps of ms each: events that came in one piece have gaps of 0. */
void aibrix_stats_gaps(aibrix_stats_t *st, uint32_t peer, uint32_t model,
    uint64_t ms, uint64_t n);
void aibrix_stats_done(aibrix_stats_t *st, const aibrix_done_t *d);
/* An attempt at that peer that failed; done() does not count these. */
void aibrix_stats_fail(aibrix_stats_t *st, uint32_t peer);
/* No decision could be made; reason is of aibrix_error_e. */
void aibrix_stats_error(aibrix_stats_t *st, uint32_t model, uint32_t reason);
/*
 * A decision that could not be made, or made without its prompt; reason is of
 * aibrix_fallback_e.
 */
void aibrix_stats_fallback(aibrix_stats_t *st, uint32_t strategy,
    uint32_t reason);

/*
 * Everything counted for a peer number is dropped: it has a new owner.  The
 * caller holds a lock that excludes other callers (not those who count); one
 * that is killed in here has its work done by the next call for that peer,
 * and until then the peer is not shown.
 *
 * A series' key holds the incarnation of its peer, so no series of the old
 * owner is ever continued: it stops to exist at once, and its memory is used
 * again only after it was zeroed out of sight.
 */
void aibrix_stats_reset_peer(aibrix_stats_t *st, uint32_t peer);

/*
 * Readers.  None of them waits or changes anything.  A counter that was seen
 * by one is never seen smaller later, but for the peers that were reset.
 */

/* The name as stored; data is NULL while that number has none. */
aibrix_span_t aibrix_stats_model_name(const aibrix_stats_t *st,
    uint32_t model);

/* Returns 0 when nothing can have been counted under that number. */
int aibrix_stats_model_read(const aibrix_stats_t *st, uint32_t model,
    aibrix_model_stats_t *out);

/*
 * Each call with the same *at, 0 at first, gives the next series; 0 after the
 * last one.  A series comes once, in no order; one that has counted nothing
 * does not come; one of a peer that is reset meanwhile may come for its old
 * and its new owner.
 */
int aibrix_stats_series(const aibrix_stats_t *st, uint32_t *at,
    aibrix_series_t *out);
int aibrix_stats_requests(const aibrix_stats_t *st, uint32_t *at,
    aibrix_requests_t *out);

/* Returns 0 while the peer is being reset. */
int aibrix_stats_peer_read(const aibrix_stats_t *st, uint32_t peer,
    aibrix_peer_stats_t *out);

uint64_t aibrix_stats_fallbacks(const aibrix_stats_t *st, uint32_t strategy,
    uint32_t reason);

/* The last decisions, latest first; returns how many were written. */
size_t aibrix_stats_recent(const aibrix_stats_t *st, aibrix_decision_t *out,
    size_t max);

/*
 * The q-quantile in the histogram's unit, as histogram_quantile() of
 * Prometheus: linear within a bucket, the highest bound when it is above it,
 * 0 when nothing was counted.
 */
double aibrix_hist_quantile(const aibrix_hist_t *h, double q);

/* Adds from, of the same bounds, to h. */
void aibrix_hist_merge(aibrix_hist_t *h, const aibrix_hist_t *from);

/* Label values; "other" for what is out of range. (Selections: strategy.h.) */
const char *aibrix_outcome_label(uint32_t outcome);
const char *aibrix_percent_label(uint32_t percent);
const char *aibrix_error_label(uint32_t error);
const char *aibrix_fallback_label(uint32_t fallback);

/*
 * Write src to dst as the inside of a quoted label value or JSON string, at
 * most size bytes and never a part of a character or escape; return the bytes
 * written.  What is not UTF-8 becomes U+FFFD, and so do control characters in
 * labels but for the newline, which has an escape.
 */
size_t aibrix_escape_label(char *dst, size_t size, const aibrix_span_t *src);
size_t aibrix_escape_json(char *dst, size_t size, const aibrix_span_t *src);


#endif /* AIBRIX_STATS_H_INCLUDED_ */
