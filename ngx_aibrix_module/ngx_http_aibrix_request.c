
#include "ngx_http_aibrix_module.h"


#define NGX_HTTP_AIBRIX_FILE_PIECE  65536


static ngx_int_t ngx_http_aibrix_body_handler(ngx_http_request_t *r);
static void ngx_http_aibrix_body_ready(ngx_http_request_t *r);
static ngx_int_t ngx_http_aibrix_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_http_aibrix_ctx_t *ngx_http_aibrix_body_ctx(ngx_http_request_t *r);
static ngx_uint_t ngx_http_aibrix_open(ngx_http_request_t *r,
    ngx_http_aibrix_ctx_t *ctx);
static void ngx_http_aibrix_feed(ngx_http_aibrix_ctx_t *ctx, u_char *p,
    size_t len);
static void ngx_http_aibrix_walk(ngx_http_request_t *r,
    ngx_http_aibrix_ctx_t *ctx);
static void ngx_http_aibrix_feed_file(ngx_http_request_t *r,
    ngx_http_aibrix_ctx_t *ctx, ngx_buf_t *b);
static void *ngx_http_aibrix_alloc(void *data, size_t size);
static void ngx_http_aibrix_free(void *data, void *p);
static void ngx_http_aibrix_cleanup_ctx(void *data);


static ngx_http_request_body_filter_pt  ngx_http_next_request_body_filter;


ngx_int_t
ngx_http_aibrix_request_init(ngx_conf_t *cf)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_REWRITE_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_aibrix_body_handler;

    ngx_http_next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = ngx_http_aibrix_body_filter;

    return NGX_OK;
}


/* aibrix_read_body: the same course as in ngx_http_mirror_module. */

static ngx_int_t
ngx_http_aibrix_body_handler(ngx_http_request_t *r)
{
    ngx_int_t                     rc;
    ngx_http_aibrix_ctx_t        *ctx;
    ngx_http_aibrix_loc_conf_t   *lcf;
    ngx_http_aibrix_main_conf_t  *amcf;

    lcf = ngx_http_get_module_loc_conf(r, ngx_http_aibrix_module);

    if (!lcf->read_body || r != r->main || r->error_page) {
        return NGX_DECLINED;
    }

    if (r->headers_in.content_length_n <= 0 && !r->headers_in.chunked) {
        return NGX_DECLINED;
    }

    amcf = ngx_http_get_module_main_conf(r, ngx_http_aibrix_module);

    ctx = ngx_http_aibrix_make_ctx(r, amcf->max_prompt);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* also after an error of the reading that an error_page has sent on */

    if (ctx->begun) {
        return NGX_DECLINED;
    }

    ctx->begun = 1;

    rc = ngx_http_read_client_request_body(r, ngx_http_aibrix_body_ready);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    ngx_http_finalize_request(r, NGX_DONE);

    return NGX_DONE;
}


static void
ngx_http_aibrix_body_ready(ngx_http_request_t *r)
{
    ngx_http_aibrix_ctx_t  *ctx;

    ctx = ngx_http_aibrix_get_ctx(r);

    ngx_http_aibrix_parse(r, ctx);

    r->preserve_body = 1;

    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}


/* Sees every byte of the body once, before it may go to a file. */

static ngx_int_t
ngx_http_aibrix_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_buf_t              *b;
    ngx_chain_t            *cl;
    ngx_http_aibrix_ctx_t  *ctx;

    if (in == NULL) {
        return ngx_http_next_request_body_filter(r, in);
    }

    ctx = ngx_http_aibrix_body_ctx(r);

    if (ctx == NULL || ctx->parsed || !ngx_http_aibrix_open(r, ctx)) {
        return ngx_http_next_request_body_filter(r, in);
    }

    ctx->fed = 1;

    for (cl = in; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            ngx_http_aibrix_feed(ctx, b->pos, b->last - b->pos);
        }

        if (b->last_buf) {
            ctx->ended = 1;
        }
    }

    return ngx_http_next_request_body_filter(r, in);
}


/* The context of a request whose body is of use, else NULL. */

static ngx_http_aibrix_ctx_t *
ngx_http_aibrix_body_ctx(ngx_http_request_t *r)
{
    ngx_http_aibrix_ctx_t       *ctx;
    ngx_http_aibrix_srv_conf_t  *conf;

    ctx = ngx_http_aibrix_get_ctx(r);

    if (ctx) {
        return ctx;
    }

    conf = ngx_http_aibrix_target(r);

    return conf ? ngx_http_aibrix_make_ctx(r, conf->max_prompt) : NULL;
}


ngx_http_aibrix_srv_conf_t *
ngx_http_aibrix_target(ngx_http_request_t *r)
{
    ngx_str_t                       *host;
    ngx_uint_t                       i;
    ngx_http_upstream_t             *u;
    ngx_http_aibrix_srv_conf_t      *conf;
    ngx_http_upstream_srv_conf_t    *uscf, **uscfp;
    ngx_http_upstream_main_conf_t   *umcf;

    u = r->upstream;

    if (u == NULL || u->conf == NULL) {
        return NULL;
    }

    uscf = NULL;

    if (u->resolved == NULL) {
        uscf = u->conf->upstream;

    } else {
        host = &u->resolved->host;

        umcf = ngx_http_get_module_main_conf(r, ngx_http_upstream_module);
        uscfp = umcf->upstreams.elts;

        for (i = 0; i < umcf->upstreams.nelts; i++) {

            if (uscfp[i]->host.len == host->len
                && ((uscfp[i]->port == 0 && u->resolved->no_port)
                     || uscfp[i]->port == u->resolved->port)
                && ngx_strncasecmp(uscfp[i]->host.data, host->data, host->len)
                   == 0)
            {
                uscf = uscfp[i];
                break;
            }
        }
    }

    if (uscf == NULL || uscf->srv_conf == NULL) {
        return NULL;
    }

    conf = ngx_http_conf_upstream_srv_conf(uscf, ngx_http_aibrix_module);

    return conf->enabled ? conf : NULL;
}


ngx_http_aibrix_ctx_t *
ngx_http_aibrix_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t     *cln;
    ngx_http_aibrix_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_aibrix_module);

    if (ctx || r != r->main || !(r->internal || r->filter_finalize)) {
        return ctx;
    }

    for (cln = r->pool->cleanup; cln; cln = cln->next) {

        if (cln->handler == ngx_http_aibrix_cleanup_ctx) {
            ctx = cln->data;

            /* subrequests share the pool */

            if (ctx->request == r) {
                ngx_http_set_ctx(r, ctx, ngx_http_aibrix_module);
                return ctx;
            }
        }
    }

    return NULL;
}


ngx_http_aibrix_ctx_t *
ngx_http_aibrix_make_ctx(ngx_http_request_t *r, size_t max_prompt)
{
    ngx_pool_cleanup_t     *cln;
    ngx_http_aibrix_ctx_t  *ctx;

    ctx = ngx_http_aibrix_get_ctx(r);

    if (ctx) {
        return ctx;
    }

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_aibrix_ctx_t));
    if (cln == NULL) {
        return NULL;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_aibrix_ctx_t));

    cln->handler = ngx_http_aibrix_cleanup_ctx;

    ctx->request = r;
    ctx->max_prompt = max_prompt;

    ngx_http_set_ctx(r, ctx, ngx_http_aibrix_module);

    return ctx;
}


static void
ngx_http_aibrix_cleanup_ctx(void *data)
{
    ngx_http_aibrix_drop_prompt(data);
}


void
ngx_http_aibrix_drop_prompt(ngx_http_aibrix_ctx_t *ctx)
{
    if (ctx->prompt) {
        aibrix_prompt_destroy(ctx->prompt);
        ctx->prompt = NULL;
    }
}


static void *
ngx_http_aibrix_alloc(void *data, size_t size)
{
    return ngx_alloc(size, ngx_cycle->log);
}


static void
ngx_http_aibrix_free(void *data, void *p)
{
    ngx_free(p);
}


/* Non-zero when the scanner is there and wants more. */

static ngx_uint_t
ngx_http_aibrix_open(ngx_http_request_t *r, ngx_http_aibrix_ctx_t *ctx)
{
    static const aibrix_alloc_t  alloc = {
        ngx_http_aibrix_alloc, ngx_http_aibrix_free, NULL
    };

    aibrix_api_e  api;

    if (ctx->prompt || ctx->deaf) {
        return !ctx->deaf;
    }

    api = aibrix_prompt_api((char *) r->uri.data, r->uri.len);

    ctx->prompt = aibrix_prompt_create(api, ctx->max_prompt, &alloc);

    if (ctx->prompt == NULL) {
        ctx->deaf = 1;
    }

    return !ctx->deaf;
}


static void
ngx_http_aibrix_feed(ngx_http_aibrix_ctx_t *ctx, u_char *p, size_t len)
{
    if (len && !ctx->deaf && !aibrix_prompt_feed(ctx->prompt, (char *) p, len))
    {
        ctx->deaf = 1;
    }
}


void
ngx_http_aibrix_parse(ngx_http_request_t *r, ngx_http_aibrix_ctx_t *ctx)
{
    aibrix_span_t  model;

    if (ctx->parsed) {
        return;
    }

    if (!ctx->fed) {
        ngx_http_aibrix_walk(r, ctx);
    }

    ctx->parsed = 1;

    if (ctx->prompt == NULL) {
        return;
    }

    if (!aibrix_prompt_finish(ctx->prompt, ctx->ended)) {
        ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                       "aibrix: no JSON request");
        ngx_http_aibrix_drop_prompt(ctx);
        return;
    }

    ctx->json = 1;
    ctx->stream = aibrix_prompt_stream(ctx->prompt);

    model = aibrix_prompt_model(ctx->prompt);

    ctx->model.data = ngx_pnalloc(r->pool, model.len);

    if (ctx->model.data) {
        ngx_memcpy(ctx->model.data, model.data, model.len);
        ctx->model.len = model.len;
    }
}


/*
 * An internal redirect may lead to another of our upstreams, after the text
 * was dropped.
 */

void
ngx_http_aibrix_parse_again(ngx_http_request_t *r, ngx_http_aibrix_ctx_t *ctx,
    size_t max_prompt)
{
    ngx_http_aibrix_drop_prompt(ctx);

    if (!ctx->ended) {
        /* unbuffered: the body is gone, what it has told stays true */
        return;
    }

    ctx->max_prompt = max_prompt;
    ctx->fed = 0;
    ctx->deaf = 0;
    ctx->ended = 0;
    ctx->parsed = 0;
    ctx->json = 0;

    ngx_http_aibrix_parse(r, ctx);
}


/* A body that was read before the request was known to be ours. */

static void
ngx_http_aibrix_walk(ngx_http_request_t *r, ngx_http_aibrix_ctx_t *ctx)
{
    ngx_buf_t                *b;
    ngx_chain_t              *cl;
    ngx_http_request_body_t  *rb;

    rb = r->request_body;

    if (rb == NULL || rb->bufs == NULL || !ngx_http_aibrix_open(r, ctx)) {
        return;
    }

    for (cl = rb->bufs; cl && !ctx->deaf; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            ngx_http_aibrix_feed(ctx, b->pos, b->last - b->pos);

        } else if (b->in_file && b->file->fd != NGX_INVALID_FILE) {
            ngx_http_aibrix_feed_file(r, ctx, b);
        }
    }

    ctx->ended = (rb->rest == 0 || !r->request_body_no_buffering);
}


static void
ngx_http_aibrix_feed_file(ngx_http_request_t *r, ngx_http_aibrix_ctx_t *ctx,
    ngx_buf_t *b)
{
    off_t    offset;
    size_t   size;
    u_char  *piece;
    ssize_t  n;

    piece = ngx_alloc(NGX_HTTP_AIBRIX_FILE_PIECE, r->connection->log);

    if (piece == NULL) {
        ctx->deaf = 1;
        return;
    }

    offset = b->file_pos;

    while (offset < b->file_last && !ctx->deaf) {
        size = (size_t) ngx_min(b->file_last - offset,
                                NGX_HTTP_AIBRIX_FILE_PIECE);

        n = ngx_read_file(b->file, piece, size, offset);

        if (n <= 0) {
            ctx->deaf = 1;
            break;
        }

        ngx_http_aibrix_feed(ctx, piece, n);
        offset += n;
    }

    ngx_free(piece);
}
