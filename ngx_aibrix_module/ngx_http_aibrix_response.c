
#include "ngx_http_aibrix_module.h"


static ngx_int_t ngx_http_aibrix_header_filter(ngx_http_request_t *r);
static ngx_uint_t ngx_http_aibrix_is_ours(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd);
static void ngx_http_aibrix_scan(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd);
static void ngx_http_aibrix_unbuffer(ngx_http_request_t *r);
static ngx_uint_t ngx_http_aibrix_is(ngx_http_request_t *r, const char *type);
static ngx_int_t ngx_http_aibrix_add_headers(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd);
static ngx_int_t ngx_http_aibrix_add_header(ngx_http_request_t *r,
    ngx_str_t *key, ngx_str_t *value);
static ngx_int_t ngx_http_aibrix_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static void ngx_http_aibrix_content(ngx_http_aibrix_peer_data_t *pd,
    ngx_uint_t n);


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;
static ngx_http_output_body_filter_pt    ngx_http_next_body_filter;


static ngx_str_t  ngx_http_aibrix_target_pod = ngx_string("target-pod");
static ngx_str_t  ngx_http_aibrix_target_pod_ip =
    ngx_string("target-pod-ip");
static ngx_str_t  ngx_http_aibrix_routing_strategy =
    ngx_string("routing-strategy");
static ngx_str_t  ngx_http_aibrix_request_id = ngx_string("request-id");
static ngx_str_t  ngx_http_aibrix_x_explain = ngx_string("x-aibrix-explain");


ngx_int_t
ngx_http_aibrix_response_init(ngx_conf_t *cf)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_aibrix_header_filter;

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_aibrix_body_filter;

    return NGX_OK;
}


static ngx_int_t
ngx_http_aibrix_header_filter(ngx_http_request_t *r)
{
    ngx_http_aibrix_ctx_t        *ctx;
    ngx_http_aibrix_loc_conf_t   *lcf;
    ngx_http_aibrix_peer_data_t  *pd;

    ctx = ngx_http_aibrix_get_ctx(r);

    if (ctx == NULL || ctx->pd == NULL || !ctx->pd->chosen
        || !ngx_http_aibrix_is_ours(r, ctx->pd))
    {
        return ngx_http_next_header_filter(r);
    }

    pd = ctx->pd;
    lcf = ngx_http_get_module_loc_conf(r, ngx_http_aibrix_module);

    /* a stale response from a cache is not what the replica said */

    if (pd->grant.held && !r->cached && ngx_http_aibrix_replica_status(r)) {
        ngx_http_aibrix_answered(r, pd);
        ngx_http_aibrix_scan(r, pd);

        if (lcf->sse) {
            ngx_http_aibrix_unbuffer(r);
        }
    }

    if (r == r->main
        && lcf->headers
        && ngx_http_aibrix_add_headers(r, pd) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (r == r->main
        && pd->explain.len
        && ngx_http_aibrix_add_header(r, &ngx_http_aibrix_x_explain,
                                      &pd->explain)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_next_header_filter(r);
}


/* An error page may have come from another upstream since. */

static ngx_uint_t
ngx_http_aibrix_is_ours(ngx_http_request_t *r, ngx_http_aibrix_peer_data_t *pd)
{
    ngx_http_upstream_srv_conf_t  *uscf;

    uscf = r->upstream ? r->upstream->upstream : NULL;

    return uscf && uscf->srv_conf
           && ngx_http_conf_upstream_srv_conf(uscf, ngx_http_aibrix_module)
              == pd->conf;
}


ngx_uint_t
ngx_http_aibrix_replica_status(ngx_http_request_t *r)
{
    return r->upstream->state ? r->upstream->state->status : 0;
}


void
ngx_http_aibrix_answered(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd)
{
    ngx_uint_t  status;

    pd->answered = 1;

    status = ngx_http_aibrix_replica_status(r);

    pd->refused = (status >= NGX_HTTP_BAD_REQUEST);

    if (status >= NGX_HTTP_INTERNAL_SERVER_ERROR
        || status == NGX_HTTP_TOO_MANY_REQUESTS)
    {
        /* it said itself that it did not compute the prompt */

        aibrix_route_unrecord(&pd->route, &pd->grant);
    }

    if (pd->hashes) {
        ngx_free(pd->hashes);

        pd->hashes = NULL;
        pd->route.hashes = NULL;
        pd->grant.recorded = 0;
    }
}


static void
ngx_http_aibrix_scan(ngx_http_request_t *r, ngx_http_aibrix_peer_data_t *pd)
{
    if (r->headers_out.content_encoding
        && r->headers_out.content_encoding->value.len)
    {
        return;
    }

    if (ngx_http_aibrix_is(r, "text/event-stream")) {
        aibrix_events_init(&pd->events, AIBRIX_BODY_EVENTS);

    } else if (ngx_http_aibrix_is(r, "application/json")) {
        aibrix_events_init(&pd->events, AIBRIX_BODY_JSON);

    } else {
        return;
    }

    pd->scanned = 1;

    /* a buffered response may have been to a temporary file */

    if (r == r->main) {
        r->filter_need_in_memory = 1;
    }
}


/*
 * What "X-Accel-Buffering: no" would do: the upstream module looks at the
 * flag only after the header filters.  A response to be cached or stored is
 * left buffered, or it would be neither.
 */

static void
ngx_http_aibrix_unbuffer(ngx_http_request_t *r)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u->store) {
        return;
    }

#if (NGX_HTTP_CACHE)

    if (u->cacheable) {
        return;
    }

#endif

    if (ngx_http_aibrix_is(r, "text/event-stream")) {
        u->buffering = 0;
    }
}


/* Parameters of the type do not matter. */

static ngx_uint_t
ngx_http_aibrix_is(ngx_http_request_t *r, const char *type)
{
    size_t      len;
    ngx_str_t  *value;

    len = ngx_strlen(type);
    value = &r->headers_out.content_type;

    return value->len >= len
           && ngx_strncasecmp(value->data, (u_char *) type, len) == 0
           && (value->len == len || value->data[len] == ';'
               || value->data[len] == ' ');
}


static ngx_int_t
ngx_http_aibrix_add_headers(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd)
{
    ngx_str_t                     strategy;
    ngx_http_variable_value_t    *id;
    ngx_http_aibrix_main_conf_t  *amcf;

    strategy.data = (u_char *) pd->route.strategy->name;
    strategy.len = ngx_strlen(strategy.data);

    if (ngx_http_aibrix_add_header(r, &ngx_http_aibrix_target_pod,
                                   &pd->server)
        != NGX_OK
        || ngx_http_aibrix_add_header(r, &ngx_http_aibrix_target_pod_ip,
                                      &pd->name)
           != NGX_OK
        || ngx_http_aibrix_add_header(r, &ngx_http_aibrix_routing_strategy,
                                      &strategy)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    amcf = ngx_http_get_module_main_conf(r, ngx_http_aibrix_module);

    id = ngx_http_get_indexed_variable(r, amcf->request_id);

    if (id == NULL || id->not_found) {
        return NGX_OK;
    }

    strategy.data = id->data;
    strategy.len = id->len;

    return ngx_http_aibrix_add_header(r, &ngx_http_aibrix_request_id,
                                      &strategy);
}


/* A header of that name from the replica is not passed on. */

static ngx_int_t
ngx_http_aibrix_add_header(ngx_http_request_t *r, ngx_str_t *key,
    ngx_str_t *value)
{
    ngx_uint_t        n;
    ngx_table_elt_t  *h;

    for (n = 0; /* void */ ; n++) {
        h = ngx_http_aibrix_find_header(&r->headers_out.headers,
                                        (char *) key->data, n);
        if (h == NULL) {
            break;
        }

        h->hash = 0;
    }

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    h->key = *key;
    h->value = *value;
    h->lowcase_key = key->data;
    ngx_http_aibrix_header_last(h);

    return NGX_OK;
}


/* Only looks: nothing is changed, kept back or copied. */

static ngx_int_t
ngx_http_aibrix_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_buf_t                    *b;
    ngx_uint_t                    n;
    ngx_chain_t                  *cl;
    ngx_http_aibrix_ctx_t        *ctx;
    ngx_http_aibrix_peer_data_t  *pd;

    ctx = ngx_http_get_module_ctx(r, ngx_http_aibrix_module);

    if (in == NULL || ctx == NULL || ctx->pd == NULL || !ctx->pd->answered
        || ctx->pd->unused)
    {
        return ngx_http_next_body_filter(r, in);
    }

    pd = ctx->pd;
    n = 0;

    for (cl = in; cl; cl = cl->next) {
        b = cl->buf;

        if (pd->scanned && ngx_buf_in_memory(b)) {
            n += aibrix_events_feed(&pd->events, (char *) b->pos,
                                    b->last - b->pos);

        } else if (!pd->first_seen && ngx_buf_size(b) != 0) {
            n = 1;
        }
    }

    if (n) {
        ngx_http_aibrix_content(pd, n);
    }

    return ngx_http_next_body_filter(r, in);
}


/* n events with content have come at once. */

static void
ngx_http_aibrix_content(ngx_http_aibrix_peer_data_t *pd, ngx_uint_t n)
{
    aibrix_stats_t  *stats;

    stats = aibrix_zone_stats(pd->route.zone);

    /* a quick error is no quick first token */

    if (pd->refused) {
        aibrix_route_answered(&pd->route, &pd->grant);
        return;
    }

    if (!pd->first_seen) {
        pd->first_seen = 1;
        pd->first = ngx_current_msec;

        /* the first byte of what is no stream comes with the last token */

        if (pd->ctx->json && pd->scanned && !pd->events.json) {
            aibrix_route_first_byte(&pd->route, &pd->grant,
                                    pd->first - pd->start);

        } else {
            aibrix_route_answered(&pd->route, &pd->grant);
        }

        /* a list of models or a health check has no first token */

        if (pd->ctx->json) {
            aibrix_stats_first_token(stats, pd->peer, pd->model,
                                     pd->first - pd->start);
        }

    } else {
        aibrix_stats_gap(stats, pd->peer, pd->model,
                         ngx_current_msec - pd->last);
    }

    if (n > 1) {
        aibrix_stats_gaps(stats, pd->peer, pd->model, 0, n - 1);
    }

    pd->last = ngx_current_msec;
}
