
#include "ngx_http_engine_sim.h"


#define NGX_HTTP_ENGINE_SIM_WORD       12
#define NGX_HTTP_ENGINE_SIM_EVENT      256
#define NGX_HTTP_ENGINE_SIM_USAGE_LEN                                         \
    (sizeof("\"usage\":{\"prompt_tokens\":,\"total_tokens\":,"                \
            "\"completion_tokens\":,"                                         \
            "\"prompt_tokens_details\":{\"cached_tokens\":}}") - 1            \
     + 4 * NGX_INT_T_LEN)


static void ngx_http_engine_sim_generate(ngx_http_request_t *r,
    ngx_uint_t chat);
static ngx_int_t ngx_http_engine_sim_accept(ngx_http_request_t *r,
    ngx_http_engine_sim_t *sim, ngx_http_engine_sim_query_t *q);
static ngx_int_t ngx_http_engine_sim_head(ngx_http_engine_sim_ctx_t *ctx,
    ngx_str_t *model);
static ngx_int_t ngx_http_engine_sim_wait(ngx_http_engine_sim_ctx_t *ctx);
static ngx_int_t ngx_http_engine_sim_stream_header(
    ngx_http_engine_sim_ctx_t *ctx);
static void ngx_http_engine_sim_write_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_engine_sim_stream_token(
    ngx_http_engine_sim_ctx_t *ctx, ngx_uint_t what);
static ngx_int_t ngx_http_engine_sim_stream_role(
    ngx_http_engine_sim_ctx_t *ctx);
static ngx_int_t ngx_http_engine_sim_stream_end(
    ngx_http_engine_sim_ctx_t *ctx);
static ngx_int_t ngx_http_engine_sim_send(ngx_http_engine_sim_ctx_t *ctx,
    ngx_chain_t *event);
static ngx_int_t ngx_http_engine_sim_push(ngx_http_engine_sim_ctx_t *ctx);
static ngx_int_t ngx_http_engine_sim_flushed(ngx_http_request_t *r);
static ngx_int_t ngx_http_engine_sim_json(ngx_http_engine_sim_ctx_t *ctx);


/* each with the space before it is one token */

static ngx_str_t  ngx_http_engine_sim_words[] = {
    ngx_string(" the"), ngx_string(" of"), ngx_string(" a"),
    ngx_string(" engine"), ngx_string(" token"), ngx_string(" stream"),
    ngx_string(" and"), ngx_string(" batch"), ngx_string(" queue"),
    ngx_string(" is"), ngx_string(" prompt"), ngx_string(" cache"),
    ngx_string(" in"), ngx_string(" block"), ngx_string(" prefix"),
    ngx_string(" to")
};

#define NGX_HTTP_ENGINE_SIM_NWORDS                                            \
    (sizeof(ngx_http_engine_sim_words) / sizeof(ngx_str_t))


/* equal prompts have equal answers, whichever engine gives them */

static ngx_str_t *
ngx_http_engine_sim_word(ngx_http_engine_sim_ctx_t *ctx, ngx_uint_t n)
{
    uint64_t  x;

    x = (ctx->hash + n) * 0x9e3779b97f4a7c15ULL;

    return &ngx_http_engine_sim_words[(x >> 32) % NGX_HTTP_ENGINE_SIM_NWORDS];
}


void
ngx_http_engine_sim_completions(ngx_http_request_t *r)
{
    ngx_http_engine_sim_generate(r, 0);
}


void
ngx_http_engine_sim_chat(ngx_http_request_t *r)
{
    ngx_http_engine_sim_generate(r, 1);
}


static void
ngx_http_engine_sim_generate(ngx_http_request_t *r, ngx_uint_t chat)
{
    ngx_int_t                     rc;
    ngx_http_engine_sim_t        *sim;
    ngx_http_engine_sim_query_t   q;

    sim = ngx_http_engine_sim_get(r);

    ngx_memzero(&q, sizeof(ngx_http_engine_sim_query_t));
    q.chat = chat;

    rc = ngx_http_engine_sim_parse(r, sim, &q);

    if (rc == NGX_OK && sim->model_only
        && (q.model.len != sim->model.len
            || ngx_memcmp(q.model.data, sim->model.data, q.model.len) != 0))
    {
        rc = ngx_http_engine_sim_error(r, NGX_HTTP_NOT_FOUND,
                                       "The model does not exist.");

    } else if (rc == NGX_OK) {
        rc = ngx_http_engine_sim_accept(r, sim, &q);

    } else if (rc == NGX_DECLINED) {
        rc = ngx_http_engine_sim_error(r, NGX_HTTP_BAD_REQUEST, q.error);

    } else {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc != NGX_DONE) {
        ngx_http_finalize_request(r, rc);
    }
}


/* NGX_DONE: the request waits for its tokens */

static ngx_int_t
ngx_http_engine_sim_accept(ngx_http_request_t *r, ngx_http_engine_sim_t *sim,
    ngx_http_engine_sim_query_t *q)
{
    uint64_t                   *blocks;
    ngx_uint_t                  n;
    ngx_http_engine_sim_ctx_t  *ctx;

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_engine_sim_ctx_t));
    blocks = ngx_http_engine_sim_blocks(r, sim, q, &n);

    if (ctx == NULL || blocks == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_set_ctx(r, ctx, ngx_http_engine_sim_module);

    ctx->r = r;
    ctx->sim = sim;
    ctx->hash = ngx_http_engine_sim_hash(q);
    ctx->chat = q->chat;
    ctx->stream = q->stream;
    ctx->usage = q->usage;
    ctx->last = &ctx->out;

    ctx->request.prompt = q->prompt;
    ctx->request.output = q->output;
    ctx->request.blocks = blocks;
    ctx->request.nblocks = n;
    ctx->request.data = ctx;

    if (ngx_http_engine_sim_head(ctx, &q->model) != NGX_OK
        || ngx_http_engine_sim_submit(ctx) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_engine_sim_wait(ctx);
}


/* what all objects of an answer begin with */

static ngx_int_t
ngx_http_engine_sim_head(ngx_http_engine_sim_ctx_t *ctx, ngx_str_t *model)
{
    u_char     *p;
    size_t      len;
    ngx_str_t  *name;

    name = &ctx->sim->name;

    len = sizeof("{\"id\":\"chatcmpl-\",\"object\":\"chat.completion.chunk\","
                 "\"created\":,\"model\":\"\",\"system_fingerprint\":\"\",")
          + 16 + NGX_TIME_T_LEN + 6 * (model->len + name->len);

    p = ngx_pnalloc(ctx->r->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ctx->head.data = p;

    p = ngx_sprintf(p, "{\"id\":\"%s-%08xD%08xD\",\"object\":\"%s%s\","
                    "\"created\":%T,\"model\":\"",
                    ctx->chat ? "chatcmpl" : "cmpl",
                    (uint32_t) ngx_random(), (uint32_t) ngx_random(),
                    ctx->chat ? "chat.completion" : "text_completion",
                    ctx->chat && ctx->stream ? ".chunk" : "", ngx_time());

    p = (u_char *) ngx_escape_json(p, model->data, model->len);
    *p++ = '"';

    if (name->len) {
        p = ngx_sprintf(p, ",\"system_fingerprint\":\"");
        p = (u_char *) ngx_escape_json(p, name->data, name->len);
        *p++ = '"';
    }

    *p++ = ',';

    ctx->head.len = p - ctx->head.data;
    ctx->size = ctx->head.len + NGX_HTTP_ENGINE_SIM_EVENT
                + NGX_HTTP_ENGINE_SIM_USAGE_LEN;

    return NGX_OK;
}


static ngx_int_t
ngx_http_engine_sim_wait(ngx_http_engine_sim_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ctx->r;
    c = r->connection;

    if (ctx->stream) {
        rc = ngx_http_engine_sim_stream_header(ctx);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    /* to see the client go, as soon as it goes */

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_engine_sim_write_handler;

    if (c->read->ready) {
        ngx_post_event(c->read, &ngx_posted_events);

    } else if (ngx_handle_read_event(c->read, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_engine_sim_stream_header(ngx_http_engine_sim_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->r;

    r->headers_out.status = NGX_HTTP_OK;
    ngx_str_set(&r->headers_out.content_type,
                "text/event-stream; charset=utf-8");
    r->headers_out.content_type_len = sizeof("text/event-stream") - 1;

    ngx_http_clear_content_length(r);

    if (ngx_http_engine_sim_add_name(r, ctx->sim) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK) {
        return rc;
    }

    if (ngx_http_send_special(r, NGX_HTTP_FLUSH) == NGX_ERROR) {
        return NGX_ERROR;
    }

    return ngx_http_engine_sim_flushed(r);
}


static void
ngx_http_engine_sim_write_handler(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    ngx_event_t                *wev;
    ngx_http_engine_sim_ctx_t  *ctx;

    wev = r->connection->write;
    ctx = ngx_http_get_module_ctx(r, ngx_http_engine_sim_module);

    if (ctx->failed) {
        ngx_http_finalize_request(r, NGX_ERROR);
        return;
    }

    if (wev->timedout) {
        ngx_log_error(NGX_LOG_INFO, r->connection->log, NGX_ETIMEDOUT,
                      "client timed out");
        r->connection->timedout = 1;
        ngx_http_finalize_request(r, NGX_HTTP_REQUEST_TIME_OUT);
        return;
    }

    if (!ctx->stream) {
        return;
    }

    rc = ngx_http_output_filter(r, NULL);

    if (rc != NGX_ERROR) {
        rc = ngx_http_engine_sim_push(ctx);
    }

    if (rc != NGX_AGAIN) {
        ngx_http_finalize_request(r, rc);
    }
}


/* a token of the request reached the client's side; may end the request */

void
ngx_http_engine_sim_token(ngx_http_engine_sim_ctx_t *ctx, ngx_uint_t what)
{
    double                  elapsed;
    ngx_int_t               rc;
    ngx_http_request_t     *r;
    ngx_http_engine_sim_t  *sim;

    r = ctx->r;
    sim = ctx->sim;

    elapsed = ngx_http_engine_sim_now(sim) - ctx->arrived;

    if (what & ENGINE_FIRST) {
        ngx_http_engine_sim_observe(&sim->ttft, elapsed);
    }

    if (what & ENGINE_LAST) {
        ngx_http_engine_sim_observe(&sim->e2e, elapsed);
    }

    if (ctx->stream) {
        rc = ngx_http_engine_sim_stream_token(ctx, what);

    } else if (what & ENGINE_LAST) {
        rc = ngx_http_engine_sim_json(ctx);

    } else {
        return;
    }

    if (!ctx->stream || rc != NGX_AGAIN) {
        ngx_http_finalize_request(r, rc);
    }
}


static ngx_chain_t *
ngx_http_engine_sim_event(ngx_http_engine_sim_ctx_t *ctx)
{
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    cl = ngx_chain_get_free_buf(ctx->r->pool, &ctx->free);
    if (cl == NULL) {
        return NULL;
    }

    b = cl->buf;

    if (b->start == NULL) {
        b->start = ngx_pnalloc(ctx->r->pool, ctx->size);
        if (b->start == NULL) {
            return NULL;
        }

        b->end = b->start + ctx->size;
        b->temporary = 1;
        b->flush = 1;
        b->tag = (ngx_buf_tag_t) &ngx_http_engine_sim_module;
    }

    b->pos = b->start;
    b->last = ngx_sprintf(b->start, "data: %V", &ctx->head);

    return cl;
}


static ngx_int_t
ngx_http_engine_sim_stream_token(ngx_http_engine_sim_ctx_t *ctx,
    ngx_uint_t what)
{
    ngx_buf_t    *b;
    ngx_str_t    *word;
    ngx_int_t     rc;
    ngx_chain_t  *cl;

    if (ctx->chat && (what & ENGINE_FIRST)) {
        rc = ngx_http_engine_sim_stream_role(ctx);

        if (rc != NGX_AGAIN) {
            return rc;
        }
    }

    cl = ngx_http_engine_sim_event(ctx);
    if (cl == NULL) {
        return NGX_ERROR;
    }

    b = cl->buf;
    word = ngx_http_engine_sim_word(ctx, ctx->sent++);

    b->last = ngx_sprintf(b->last,
                          ctx->chat
                          ? "\"choices\":[{\"index\":0,\"delta\":"
                            "{\"content\":\"%V\"},\"logprobs\":null,"
                            "\"finish_reason\":%s}]}\n\n"
                          : "\"choices\":[{\"index\":0,\"text\":\"%V\","
                            "\"logprobs\":null,\"finish_reason\":%s}]}\n\n",
                          word, what & ENGINE_LAST ? "\"length\"" : "null");

    rc = ngx_http_engine_sim_send(ctx, cl);

    if (rc != NGX_AGAIN || !(what & ENGINE_LAST)) {
        return rc;
    }

    return ngx_http_engine_sim_stream_end(ctx);
}


/* as vLLM does, the role comes with the first token, not before it */

static ngx_int_t
ngx_http_engine_sim_stream_role(ngx_http_engine_sim_ctx_t *ctx)
{
    ngx_chain_t  *cl;

    cl = ngx_http_engine_sim_event(ctx);
    if (cl == NULL) {
        return NGX_ERROR;
    }

    cl->buf->last = ngx_sprintf(cl->buf->last,
                                "\"choices\":[{\"index\":0,\"delta\":"
                                "{\"role\":\"assistant\",\"content\":\"\"},"
                                "\"logprobs\":null,"
                                "\"finish_reason\":null}]}\n\n");

    return ngx_http_engine_sim_send(ctx, cl);
}


static u_char *
ngx_http_engine_sim_usage(ngx_http_engine_sim_ctx_t *ctx, u_char *p)
{
    return ngx_sprintf(p, "\"usage\":{\"prompt_tokens\":%uD,"
                       "\"total_tokens\":%uL,\"completion_tokens\":%uD,"
                       "\"prompt_tokens_details\":{\"cached_tokens\":%uD}}",
                       ctx->request.prompt,
                       (uint64_t) ctx->request.prompt + ctx->request.output,
                       ctx->request.output, ctx->request.cached);
}


static ngx_int_t
ngx_http_engine_sim_stream_end(ngx_http_engine_sim_ctx_t *ctx)
{
    ngx_int_t     rc;
    ngx_chain_t  *cl;

    if (ctx->usage) {

        cl = ngx_http_engine_sim_event(ctx);
        if (cl == NULL) {
            return NGX_ERROR;
        }

        cl->buf->last = ngx_sprintf(cl->buf->last, "\"choices\":[],");
        cl->buf->last = ngx_http_engine_sim_usage(ctx, cl->buf->last);
        cl->buf->last = ngx_sprintf(cl->buf->last, "}\n\n");

        rc = ngx_http_engine_sim_send(ctx, cl);

        if (rc != NGX_AGAIN) {
            return rc;
        }
    }

    cl = ngx_http_engine_sim_event(ctx);
    if (cl == NULL) {
        return NGX_ERROR;
    }

    cl->buf->last = ngx_sprintf(cl->buf->start, "data: [DONE]\n\n");

    ctx->done = 1;

    return ngx_http_engine_sim_send(ctx, cl);
}


/* NGX_AGAIN: the request goes on; NGX_OK: all is handed over */

static ngx_int_t
ngx_http_engine_sim_send(ngx_http_engine_sim_ctx_t *ctx, ngx_chain_t *event)
{
    *ctx->last = event;
    ctx->last = &event->next;

    return ngx_http_engine_sim_push(ctx);
}


/*
 * What the client does not take yet stays here: the write filter walks
 * through all that it was given, each time it is given more.
 */

static ngx_int_t
ngx_http_engine_sim_push(ngx_http_engine_sim_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_chain_t         *out;
    ngx_http_request_t  *r;

    r = ctx->r;

    if (ctx->out && !r->buffered && !r->connection->buffered) {
        out = ctx->out;

        ctx->out = NULL;
        ctx->last = &ctx->out;

        rc = ngx_http_output_filter(r, out);

        ngx_chain_update_chains(r->pool, &ctx->free, &ctx->busy, &out,
                                (ngx_buf_tag_t) &ngx_http_engine_sim_module);

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_engine_sim_flushed(r) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->out || !ctx->done) {
        return NGX_AGAIN;
    }

    rc = ngx_http_send_special(r, NGX_HTTP_LAST);

    return rc == NGX_ERROR ? NGX_ERROR : NGX_OK;
}


static ngx_int_t
ngx_http_engine_sim_flushed(ngx_http_request_t *r)
{
    ngx_event_t               *wev;
    ngx_http_core_loc_conf_t  *clcf;

    wev = r->connection->write;

    if (!r->buffered && !r->postponed && !r->connection->buffered) {

        if (wev->timer_set && !wev->delayed) {
            ngx_del_timer(wev);
        }

        return NGX_OK;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (!wev->delayed && !wev->timer_set) {
        ngx_add_timer(wev, clcf->send_timeout);
    }

    return ngx_handle_write_event(wev, clcf->send_lowat);
}


static ngx_int_t
ngx_http_engine_sim_json(ngx_http_engine_sim_ctx_t *ctx)
{
    size_t       len;
    u_char      *p, *start;
    ngx_str_t   *word;
    ngx_uint_t   i;

    len = ctx->size + ctx->request.output * NGX_HTTP_ENGINE_SIM_WORD;

    start = ngx_pnalloc(ctx->r->pool, len);
    if (start == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    p = ngx_sprintf(start, "%V\"choices\":[{\"index\":0,%s\"",
                    &ctx->head,
                    ctx->chat ? "\"message\":{\"role\":\"assistant\","
                                "\"content\":"
                              : "\"text\":");

    for (i = 0; i < ctx->request.output; i++) {
        word = ngx_http_engine_sim_word(ctx, i);
        p = ngx_cpymem(p, word->data, word->len);
    }

    p = ngx_sprintf(p, "\"%s,\"logprobs\":null,"
                    "\"finish_reason\":\"length\"}],",
                    ctx->chat ? "}" : "");

    p = ngx_http_engine_sim_usage(ctx, p);
    *p++ = '}';

    return ngx_http_engine_sim_reply_buf(ctx->r, NGX_HTTP_OK,
                                         "application/json", start, p);
}
