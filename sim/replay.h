
/*
 * Replay: the module's own core and strategies in front of the engine model,
 * in virtual time.  A workload says who asks what and when, a run sends it
 * through a router, a report says what became of it.
 */

#ifndef REPLAY_H_INCLUDED_
#define REPLAY_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine.h"
#include "route.h"


#define REPLAY_BLOCK         128        /* bytes, of the router's blocks */
#define REPLAY_TTL           1200000    /* ms */
#define REPLAY_MAX_REPLICAS  1024
#define REPLAY_MAX_ROUTERS   64


typedef enum {
    REPLAY_FIXED = 0,
    REPLAY_POISSON,
    REPLAY_BURSTS
} replay_arrivals_e;


/* What the proxy learns of a request's cache hit, and when. */
typedef enum {
    REPLAY_USAGE_NEVER = 0,
    REPLAY_USAGE_END,
    REPLAY_USAGE_FIRST
} replay_usage_e;


typedef struct {
    const char           *scenario;
    const char           *trace;        /* file, or NULL */
    double                trace_speed;
    uint32_t              replicas;
    uint32_t              routers;
    replay_arrivals_e     arrivals;
    replay_usage_e        usage;
    double                output_sigma; /* of the logarithm; 0: all equal */
    double                load;         /* times the scenario's rate */
    engine_params_t       engine;
    double                speed[REPLAY_MAX_REPLICAS];
    aibrix_work_t         work;
} replay_config_t;


/*
 * The router sees leading hashes that others share, then hashes of its own;
 * the engine sees the ids of its leading shared blocks.
 */
typedef struct {
    double                t;            /* arrival, seconds */
    uint32_t              prompt;       /* tokens */
    uint32_t              output;       /* tokens */
    uint32_t              bytes;
    uint32_t              nhashes;
    uint32_t              nblocks;
    const uint64_t       *hashes;
    const uint64_t       *blocks;
} replay_request_t;


/* What a replica holds, or is believed to hold, before the start. */
typedef struct {
    uint32_t              replica;
    unsigned              cached:1;     /* the engine has it */
    unsigned              indexed:1;    /* the router says so */
    uint32_t              nhashes;
    uint32_t              nblocks;
    const uint64_t       *hashes;
    const uint64_t       *blocks;
} replay_warm_t;


typedef struct replay_memory_s  replay_memory_t;


typedef struct {
    replay_request_t     *requests;     /* in order of t */
    size_t                n;
    replay_warm_t        *warm;
    size_t                nwarm;
    uint64_t              hashes;       /* distinct ones, at most */
    uint32_t              longest;      /* prompt, router's blocks */
    replay_memory_t      *memory;
} replay_workload_t;


typedef struct {
    double                first;        /* seconds, as t */
    double                done;
    uint32_t              replica;
    uint32_t              cached;       /* tokens */
    aibrix_selection_e    selection;
} replay_answer_t;


typedef struct {
    uint32_t              queue_peak;   /* waiting at any one replica */
    uint64_t              queries;      /* tokens */
    uint64_t              hits;         /* tokens */
} replay_totals_t;


typedef struct {
    double                ttft_p50;     /* seconds */
    double                ttft_p95;
    double                ttft_p99;
    double                tpot_p95;
    double                e2e_p95;
    double                slo_pass;     /* share of requests */
    double                hit_rate;     /* share of prompt tokens */
    double                misses;       /* requests with nothing cached */
    double                queue_peak;
    double                throughput;   /* output tokens per second */
    double                split[REPLAY_MAX_REPLICAS];   /* requests */
    double                selections[AIBRIX_SELECTIONS];
} replay_result_t;


/* A way to choose: one of the core's, with constants, or a rival. */
typedef struct {
    const char           *name;
    const char           *core;         /* name of the core's strategy */
    double                imbalance;
    double                stddev_factor;
    void                (*rival)(aibrix_view_t *v, aibrix_choice_t *c);
    const char           *source;
} replay_strategy_t;


/* What rivals know that the core does not count. */
typedef struct replay_books_s  replay_books_t;


/* The view that rivals get: the core's is its first member. */
typedef struct {
    aibrix_view_t         view;
    replay_books_t       *books;
    const uint64_t       *hashes;
    uint32_t              bytes;
    uint32_t              longest;      /* match, blocks */
    uint32_t              fewest;       /* waiting for a first byte */
    uint32_t              most;
    double                mean;         /* load */
    double                now;
} replay_view_t;


typedef struct {
    uint64_t              state;
} replay_random_t;


/* replay_random.c: the same numbers on every machine */

void replay_seed(replay_random_t *r, uint64_t seed);
uint64_t replay_next(replay_random_t *r);
double replay_uniform(replay_random_t *r);              /* in [0, 1) */
uint32_t replay_below(replay_random_t *r, uint32_t n);
double replay_exponential(replay_random_t *r, double mean);
double replay_normal(replay_random_t *r);
uint64_t replay_mix(uint64_t a, uint64_t b);


/* replay_memory.c: taken in pieces, given back at once; exits when out */

replay_memory_t *replay_memory(void);
void *replay_alloc(replay_memory_t *m, size_t size);
void replay_memory_free(replay_memory_t *m);


/* replay_scenario.c */

extern const char *const  replay_scenarios[];

/* Returns NULL, or what is wrong with the configuration. */
const char *replay_scenario(const replay_config_t *cf, uint64_t seed,
    replay_workload_t *w);
void replay_workload_free(replay_workload_t *w);

/* Arrival times and output lengths, as the configuration wants them. */
void replay_arrivals(const replay_config_t *cf, replay_random_t *r,
    replay_workload_t *w);


/* replay_trace.c: returns NULL, or what is wrong with the file */

const char *replay_trace(const replay_config_t *cf, replay_workload_t *w);


/* replay_rivals.c */

const replay_strategy_t *replay_strategy(const char *name, size_t len);
void replay_strategies(FILE *out);


/* replay_books.c */

replay_books_t *replay_books(uint32_t replicas);
void replay_books_free(replay_books_t *b);
void replay_books_sent(replay_books_t *b, const replay_view_t *v,
    const aibrix_candidate_t *c);
void replay_books_first(replay_books_t *b, uint32_t peer);
void replay_books_done(replay_books_t *b, uint32_t peer,
    const uint64_t *hashes, uint32_t n);


/* replay_run.c */

void replay_run(const replay_config_t *cf, const replay_workload_t *w,
    const replay_strategy_t *s, uint64_t seed, replay_answer_t *answers,
    replay_totals_t *totals);


/* replay_report.c */

void replay_measure(const replay_config_t *cf, const replay_workload_t *w,
    const replay_answer_t *answers, const replay_totals_t *totals,
    replay_result_t *result);
void replay_median(const replay_result_t *results, size_t n,
    replay_result_t *median);
void replay_print_table(const replay_config_t *cf,
    const replay_strategy_t *const *s, const replay_result_t *results,
    size_t n);
void replay_print_json(const replay_config_t *cf,
    const replay_strategy_t *const *s, const replay_result_t *results,
    size_t n);

/* In the input format of the model's independent implementations. */
int replay_dump(const char *file, const replay_workload_t *w,
    const replay_answer_t *answers);


#endif /* REPLAY_H_INCLUDED_ */
