
/*
 * An engine in real time.  The model's clock is exact: it is told the time,
 * and a late timer only makes its tokens late, never its steps.
 */

#include "ngx_http_engine_sim.h"

#include <math.h>


/* a token that left the engine and is due at the client */

typedef struct {
    ngx_queue_t                    queue;      /* of the engine, by time */
    ngx_queue_t                    own;        /* of the request */
    ngx_http_engine_sim_ctx_t     *ctx;
    double                         at;
    ngx_uint_t                     what;
} ngx_http_engine_sim_token_t;


static void ngx_http_engine_sim_leave(void *data);
static void ngx_http_engine_sim_emitted(void *data, engine_request_t *r,
    unsigned what, double at);
static void ngx_http_engine_sim_timer_handler(ngx_event_t *ev);
static void ngx_http_engine_sim_set_timer(ngx_http_engine_sim_t *sim);


static double
ngx_http_engine_sim_monotonic(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (double) ts.tv_sec + ts.tv_nsec / 1e9;
}


ngx_int_t
ngx_http_engine_sim_start(ngx_http_engine_sim_t *sim)
{
    if (sim->engine) {
        return NGX_OK;
    }

    sim->engine = engine_create(&sim->params, ngx_http_engine_sim_emitted,
                                sim);
    if (sim->engine == NULL) {
        return NGX_ERROR;
    }

    sim->epoch = ngx_http_engine_sim_monotonic();
    sim->started = ngx_time();

    ngx_queue_init(&sim->tokens);
    ngx_queue_init(&sim->spare);

    sim->dummy.fd = (ngx_socket_t) -1;
    sim->timer.handler = ngx_http_engine_sim_timer_handler;
    sim->timer.data = &sim->dummy;
    sim->timer.log = ngx_cycle->log;
    sim->dummy.data = sim;

    ngx_http_engine_sim_metrics_init(sim);

    return NGX_OK;
}


void
ngx_http_engine_sim_stop(void *data)
{
    ngx_http_engine_sim_t  *sim = data;

    if (sim->engine == NULL) {
        return;
    }

    if (sim->timer.timer_set) {
        ngx_del_timer(&sim->timer);
    }

    engine_destroy(sim->engine);
    sim->engine = NULL;
}


double
ngx_http_engine_sim_now(ngx_http_engine_sim_t *sim)
{
    return ngx_http_engine_sim_monotonic() - sim->epoch;
}


ngx_int_t
ngx_http_engine_sim_submit(ngx_http_engine_sim_ctx_t *ctx)
{
    ngx_http_cleanup_t  *cln;

    cln = ngx_http_cleanup_add(ctx->r, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    cln->handler = ngx_http_engine_sim_leave;
    cln->data = ctx;

    ngx_queue_init(&ctx->tokens);

    ctx->arrived = ngx_http_engine_sim_now(ctx->sim);

    engine_submit(ctx->sim->engine, &ctx->request, ctx->arrived);

    ngx_http_engine_sim_set_timer(ctx->sim);

    return NGX_OK;
}


static void
ngx_http_engine_sim_spare(ngx_http_engine_sim_t *sim,
    ngx_http_engine_sim_token_t *token)
{
    ngx_queue_remove(&token->queue);
    ngx_queue_remove(&token->own);
    ngx_queue_insert_head(&sim->spare, &token->queue);
}


/* takes the request out of the engine and its tokens off their way */

static void
ngx_http_engine_sim_leave(void *data)
{
    ngx_http_engine_sim_ctx_t  *ctx = data;

    ngx_queue_t                  *q;
    ngx_http_engine_sim_t        *sim;
    ngx_http_engine_sim_token_t  *token;

    sim = ctx->sim;

    if (sim->engine == NULL) {
        return;
    }

    engine_abort(sim->engine, &ctx->request);

    while (!ngx_queue_empty(&ctx->tokens)) {
        q = ngx_queue_head(&ctx->tokens);
        token = ngx_queue_data(q, ngx_http_engine_sim_token_t, own);
        ngx_http_engine_sim_spare(sim, token);
    }

    ngx_http_engine_sim_set_timer(sim);
}


static void
ngx_http_engine_sim_emitted(void *data, engine_request_t *r, unsigned what,
    double at)
{
    ngx_http_engine_sim_t  *sim = data;

    ngx_queue_t                  *q;
    ngx_http_engine_sim_ctx_t    *ctx;
    ngx_http_engine_sim_token_t  *token;

    ctx = r->data;

    if (!ctx->stream && what == 0) {
        return;
    }

    if (ngx_queue_empty(&sim->spare)) {

        token = ngx_palloc(sim->pool, sizeof(ngx_http_engine_sim_token_t));
        if (token == NULL) {
            ctx->failed = 1;
            ngx_post_event(ctx->r->connection->write, &ngx_posted_events);
            return;
        }

    } else {
        q = ngx_queue_head(&sim->spare);
        ngx_queue_remove(q);
        token = ngx_queue_data(q, ngx_http_engine_sim_token_t, queue);
    }

    token->ctx = ctx;
    token->at = at;
    token->what = what;

    ngx_queue_insert_tail(&sim->tokens, &token->queue);
    ngx_queue_insert_tail(&ctx->tokens, &token->own);
}


static void
ngx_http_engine_sim_timer_handler(ngx_event_t *ev)
{
    double                        now;
    ngx_queue_t                  *q;
    ngx_connection_t             *c;
    ngx_http_engine_sim_t        *sim;
    ngx_http_engine_sim_ctx_t    *ctx;
    ngx_http_engine_sim_token_t  *token;

    c = ev->data;
    sim = c->data;

    now = ngx_http_engine_sim_now(sim);

    engine_advance(sim->engine, now);

    while (!ngx_queue_empty(&sim->tokens)) {

        q = ngx_queue_head(&sim->tokens);
        token = ngx_queue_data(q, ngx_http_engine_sim_token_t, queue);

        if (token->at > now) {
            break;
        }

        ctx = token->ctx;
        c = ctx->r->connection;

        ngx_http_engine_sim_spare(sim, token);

        ngx_http_set_log_request(c->log, ctx->r);

        ngx_http_engine_sim_token(ctx, token->what);

        ngx_http_run_posted_requests(c);
    }

    ngx_http_engine_sim_set_timer(sim);
}


/* an engine without requests has no timer: it neither works nor lingers */

static void
ngx_http_engine_sim_set_timer(ngx_http_engine_sim_t *sim)
{
    double                        due, delay;
    ngx_queue_t                  *q;
    const engine_stats_t         *stats;
    ngx_http_engine_sim_token_t  *token;

    due = INFINITY;
    stats = engine_stats(sim->engine);

    if (stats->running + stats->waiting > 0) {
        due = engine_next(sim->engine);
    }

    if (!ngx_queue_empty(&sim->tokens)) {
        q = ngx_queue_head(&sim->tokens);
        token = ngx_queue_data(q, ngx_http_engine_sim_token_t, queue);
        due = ngx_min(due, token->at);
    }

    /* a timer that is set would not be moved by less than 300 ms */

    if (sim->timer.timer_set) {
        ngx_del_timer(&sim->timer);
    }

    if (due == INFINITY) {
        return;
    }

    /* nginx's milliseconds are of the same clock, rounded down */

    delay = ceil((due + sim->epoch) * 1000) - ngx_current_msec;

    ngx_add_timer(&sim->timer, (ngx_msec_t) ngx_max(delay, 0));
}
