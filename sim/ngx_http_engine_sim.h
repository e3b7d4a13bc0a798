
#ifndef NGX_HTTP_ENGINE_SIM_H_INCLUDED_
#define NGX_HTTP_ENGINE_SIM_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "engine.h"


#define NGX_HTTP_ENGINE_SIM_NBUCKETS  22


typedef struct {
    const double                  *bounds;
    ngx_uint_t                     nbounds;
    uint64_t                       counts[NGX_HTTP_ENGINE_SIM_NBUCKETS];
    uint64_t                       count;
    double                         sum;
} ngx_http_engine_sim_histogram_t;


/* one engine: a location's, in this worker */

typedef struct {
    engine_params_t                params;
    ngx_str_t                      name;
    ngx_str_t                      model;
    ngx_uint_t                     status;
    ngx_uint_t                     max_tokens;
    unsigned                       model_only:1;

    engine_t                      *engine;
    double                         epoch;
    time_t                         started;

    /* tokens on their way to the clients, and spare ones */
    ngx_queue_t                    tokens;
    ngx_queue_t                    spare;
    ngx_pool_t                    *pool;

    ngx_event_t                    timer;
    ngx_connection_t               dummy;

    ngx_http_engine_sim_histogram_t  ttft;
    ngx_http_engine_sim_histogram_t  e2e;
} ngx_http_engine_sim_t;


/* what a request asks for */

typedef struct {
    const char                    *error;
    ngx_str_t                      model;
    ngx_array_t                    text;       /* of u_char */
    double                         unit;       /* bytes of text per token */
    uint64_t                       seed;
    ngx_uint_t                     prompt;     /* tokens */
    ngx_uint_t                     output;     /* tokens */
    unsigned                       chat:1;     /* messages */
    unsigned                       either:1;   /* prompt or messages */
    unsigned                       stream:1;
    unsigned                       usage:1;
} ngx_http_engine_sim_query_t;


typedef struct {
    engine_request_t               request;
    ngx_http_request_t            *r;
    ngx_http_engine_sim_t         *sim;
    ngx_queue_t                    tokens;

    uint64_t                       hash;
    double                         arrived;
    ngx_str_t                      head;
    ngx_uint_t                     sent;       /* tokens */
    size_t                         size;       /* of an event, at most */
    ngx_chain_t                   *free;
    ngx_chain_t                   *busy;
    ngx_chain_t                   *out;        /* not handed over */
    ngx_chain_t                  **last;

    unsigned                       chat:1;
    unsigned                       stream:1;
    unsigned                       usage:1;
    unsigned                       done:1;
    unsigned                       failed:1;
} ngx_http_engine_sim_ctx_t;


/* ngx_http_engine_sim_module.c */

ngx_int_t ngx_http_engine_sim_reply(ngx_http_request_t *r, ngx_uint_t status,
    const char *type, ngx_chain_t *body);
ngx_int_t ngx_http_engine_sim_reply_buf(ngx_http_request_t *r,
    ngx_uint_t status, const char *type, u_char *start, u_char *last);
ngx_int_t ngx_http_engine_sim_error(ngx_http_request_t *r, ngx_uint_t status,
    const char *message);
ngx_int_t ngx_http_engine_sim_add_name(ngx_http_request_t *r,
    ngx_http_engine_sim_t *sim);
ngx_http_engine_sim_t *ngx_http_engine_sim_get(ngx_http_request_t *r);


/* ngx_http_engine_sim_request.c */

/*
 * Reads what the body asks for; returns NGX_OK, NGX_ERROR, or NGX_DECLINED
 * with the sentence to answer with 400 in q->error.
 */
ngx_int_t ngx_http_engine_sim_parse(ngx_http_request_t *r,
    ngx_http_engine_sim_t *sim, ngx_http_engine_sim_query_t *q);


/* ngx_http_engine_sim_prompt.c */

/* blocks of different models or salts are different ones */
void ngx_http_engine_sim_seed(ngx_http_engine_sim_query_t *q,
    const char *salt);

/* the hash chain of the leading full blocks; NULL: no memory */
uint64_t *ngx_http_engine_sim_blocks(ngx_http_request_t *r,
    ngx_http_engine_sim_t *sim, ngx_http_engine_sim_query_t *q,
    ngx_uint_t *n);

uint64_t ngx_http_engine_sim_hash(ngx_http_engine_sim_query_t *q);
uint32_t ngx_http_engine_sim_token_id(ngx_http_engine_sim_query_t *q,
    ngx_uint_t n);


/* ngx_http_engine_sim_clock.c */

ngx_int_t ngx_http_engine_sim_start(ngx_http_engine_sim_t *sim);
void ngx_http_engine_sim_stop(void *data);
double ngx_http_engine_sim_now(ngx_http_engine_sim_t *sim);

/* queues the request, and takes it out again when the HTTP request ends */
ngx_int_t ngx_http_engine_sim_submit(ngx_http_engine_sim_ctx_t *ctx);


/* ngx_http_engine_sim_answer.c */

void ngx_http_engine_sim_completions(ngx_http_request_t *r);
void ngx_http_engine_sim_chat(ngx_http_request_t *r);
void ngx_http_engine_sim_token(ngx_http_engine_sim_ctx_t *ctx,
    ngx_uint_t what);


/* ngx_http_engine_sim_info.c */

ngx_int_t ngx_http_engine_sim_health(ngx_http_request_t *r);
ngx_int_t ngx_http_engine_sim_models(ngx_http_request_t *r);
ngx_int_t ngx_http_engine_sim_reset(ngx_http_request_t *r);
void ngx_http_engine_sim_tokenize(ngx_http_request_t *r);


/* ngx_http_engine_sim_metrics.c */

void ngx_http_engine_sim_metrics_init(ngx_http_engine_sim_t *sim);
void ngx_http_engine_sim_observe(ngx_http_engine_sim_histogram_t *h,
    double value);
ngx_int_t ngx_http_engine_sim_metrics(ngx_http_request_t *r);


/* ngx_http_engine_sim_digest.c */

char *ngx_http_engine_sim_digest(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


extern ngx_module_t  ngx_http_engine_sim_module;


#endif /* NGX_HTTP_ENGINE_SIM_H_INCLUDED_ */
