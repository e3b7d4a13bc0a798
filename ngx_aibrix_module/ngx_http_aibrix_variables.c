
#include "ngx_http_aibrix_module.h"


enum {
    NGX_HTTP_AIBRIX_STRATEGY = 0,
    NGX_HTTP_AIBRIX_SELECTION,
    NGX_HTTP_AIBRIX_MATCH_PERCENT,
    NGX_HTTP_AIBRIX_BLOCKS,
    NGX_HTTP_AIBRIX_TARGET_POD,
    NGX_HTTP_AIBRIX_TARGET_POD_IP,
    NGX_HTTP_AIBRIX_TTFT,
    NGX_HTTP_AIBRIX_DECISION_TIME,
    NGX_HTTP_AIBRIX_PROMPT_TOKENS,
    NGX_HTTP_AIBRIX_COMPLETION_TOKENS,
    NGX_HTTP_AIBRIX_CACHED_TOKENS
};


static ngx_int_t ngx_http_aibrix_request_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_aibrix_set_model(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, ngx_str_t *model);
static ngx_int_t ngx_http_aibrix_peer_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_aibrix_set_tokens(ngx_http_variable_value_t *v,
    u_char *p, ngx_http_aibrix_peer_data_t *pd, uint32_t known, uint64_t n);
static ngx_int_t ngx_http_aibrix_set_string(ngx_http_variable_value_t *v,
    const void *data, size_t len);


static ngx_http_variable_t  ngx_http_aibrix_vars[] = {

    { ngx_string("aibrix_model"), NULL, ngx_http_aibrix_request_variable,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_stream"), NULL, ngx_http_aibrix_request_variable,
      1, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_strategy"), NULL, ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_STRATEGY, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_selection"), NULL, ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_SELECTION, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_match_percent"), NULL, ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_MATCH_PERCENT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_blocks"), NULL, ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_BLOCKS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_target_pod"), NULL, ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_TARGET_POD, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_target_pod_ip"), NULL, ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_TARGET_POD_IP, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_ttft"), NULL, ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_TTFT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_decision_time"), NULL, ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_DECISION_TIME, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_prompt_tokens"), NULL, ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_PROMPT_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_completion_tokens"), NULL,
      ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_COMPLETION_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("aibrix_cached_tokens"), NULL, ngx_http_aibrix_peer_variable,
      NGX_HTTP_AIBRIX_CACHED_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


ngx_int_t
ngx_http_aibrix_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_aibrix_vars; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_aibrix_request_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_aibrix_ctx_t  *ctx;

    ctx = ngx_http_aibrix_get_ctx(r);

    if (ctx == NULL) {
        ctx = ngx_http_aibrix_get_ctx(r->main);
    }

    if (ctx == NULL || !ctx->json) {
        v->not_found = 1;
        return NGX_OK;
    }

    if (data) {
        return ngx_http_aibrix_set_string(v, ctx->stream ? "1" : "0", 1);
    }

    return ngx_http_aibrix_set_model(r, v, &ctx->model);
}


/* Control characters would end the header that the variable is put in. */

static ngx_int_t
ngx_http_aibrix_set_model(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    ngx_str_t *model)
{
    size_t   i;
    u_char  *p;

    p = model->data;

    for (i = 0; i < model->len; i++) {

        if (model->data[i] >= 0x20 && model->data[i] != 0x7f) {
            continue;
        }

        if (p == model->data) {
            p = ngx_pnalloc(r->pool, model->len);
            if (p == NULL) {
                return NGX_ERROR;
            }

            ngx_memcpy(p, model->data, model->len);
        }

        p[i] = '?';
    }

    return ngx_http_aibrix_set_string(v, p, model->len);
}


static ngx_int_t
ngx_http_aibrix_peer_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char                       *p;
    ngx_msec_t                    ms;
    const char                   *name;
    ngx_http_aibrix_ctx_t        *ctx;
    ngx_http_aibrix_peer_data_t  *pd;

    ctx = ngx_http_aibrix_get_ctx(r);

    if (ctx == NULL || ctx->pd == NULL || !ctx->pd->chosen) {
        v->not_found = 1;
        return NGX_OK;
    }

    pd = ctx->pd;

    switch (data) {

    case NGX_HTTP_AIBRIX_STRATEGY:
        name = pd->route.strategy->name;
        return ngx_http_aibrix_set_string(v, name, ngx_strlen(name));

    case NGX_HTTP_AIBRIX_SELECTION:
        name = aibrix_selection_name(pd->selection);
        return ngx_http_aibrix_set_string(v, name, ngx_strlen(name));

    case NGX_HTTP_AIBRIX_TARGET_POD:
        return ngx_http_aibrix_set_string(v, pd->server.data, pd->server.len);

    case NGX_HTTP_AIBRIX_TARGET_POD_IP:
        return ngx_http_aibrix_set_string(v, pd->name.data, pd->name.len);
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof(".000000"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    switch (data) {

    case NGX_HTTP_AIBRIX_MATCH_PERCENT:
        return ngx_http_aibrix_set_string(v, p,
                                      ngx_sprintf(p, "%ui", pd->percent) - p);

    case NGX_HTTP_AIBRIX_BLOCKS:
        return ngx_http_aibrix_set_string(v, p,
                                 ngx_sprintf(p, "%uD", pd->route.blocks) - p);

    case NGX_HTTP_AIBRIX_DECISION_TIME:
        return ngx_http_aibrix_set_string(v, p,
                   ngx_sprintf(p, "%uL.%06uL", pd->ns / 1000000000,
                               pd->ns / 1000 % 1000000)
                   - p);

    case NGX_HTTP_AIBRIX_PROMPT_TOKENS:
        return ngx_http_aibrix_set_tokens(v, p, pd, AIBRIX_USAGE_PROMPT,
                                          pd->events.usage.prompt);

    case NGX_HTTP_AIBRIX_COMPLETION_TOKENS:
        return ngx_http_aibrix_set_tokens(v, p, pd, AIBRIX_USAGE_COMPLETION,
                                          pd->events.usage.completion);

    case NGX_HTTP_AIBRIX_CACHED_TOKENS:
        return ngx_http_aibrix_set_tokens(v, p, pd, AIBRIX_USAGE_CACHED,
                                          pd->events.usage.cached);

    default: /* NGX_HTTP_AIBRIX_TTFT */

        if (!pd->first_seen) {
            v->not_found = 1;
            return NGX_OK;
        }

        ms = pd->first - pd->start;

        return ngx_http_aibrix_set_string(v, p,
                   ngx_sprintf(p, "%T.%03M", (time_t) ms / 1000, ms % 1000)
                   - p);
    }
}


static ngx_int_t
ngx_http_aibrix_set_tokens(ngx_http_variable_value_t *v, u_char *p,
    ngx_http_aibrix_peer_data_t *pd, uint32_t known, uint64_t n)
{
    if (!pd->scanned || !(pd->events.usage.known & known)) {
        v->not_found = 1;
        return NGX_OK;
    }

    return ngx_http_aibrix_set_string(v, p, ngx_sprintf(p, "%uL", n) - p);
}


static ngx_int_t
ngx_http_aibrix_set_string(ngx_http_variable_value_t *v, const void *data,
    size_t len)
{
    v->data = (u_char *) data;
    v->len = (unsigned) len;
    v->valid = 1;
    v->no_cacheable = 1;
    v->not_found = 0;

    return NGX_OK;
}
