
#include "ngx_http_engine_sim.h"


ngx_int_t
ngx_http_engine_sim_health(ngx_http_request_t *r)
{
    return ngx_http_engine_sim_reply_buf(r, NGX_HTTP_OK, "", NULL, NULL);
}


ngx_int_t
ngx_http_engine_sim_models(ngx_http_request_t *r)
{
    size_t                  len;
    u_char                 *p, *start;
    ngx_http_engine_sim_t  *sim;

    sim = ngx_http_engine_sim_get(r);

    len = sizeof("{\"object\":\"list\",\"data\":[{\"id\":\"\","
                 "\"object\":\"model\",\"created\":,"
                 "\"owned_by\":\"engine_sim\",\"root\":\"\","
                 "\"parent\":null}]}\n")
          + NGX_TIME_T_LEN + 12 * sim->model.len;

    start = ngx_pnalloc(r->pool, len);
    if (start == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    p = ngx_sprintf(start, "{\"object\":\"list\",\"data\":[{\"id\":\"");
    p = (u_char *) ngx_escape_json(p, sim->model.data, sim->model.len);
    p = ngx_sprintf(p, "\",\"object\":\"model\",\"created\":%T,"
                    "\"owned_by\":\"engine_sim\",\"root\":\"", sim->started);
    p = (u_char *) ngx_escape_json(p, sim->model.data, sim->model.len);
    p = ngx_sprintf(p, "\",\"parent\":null}]}\n");

    return ngx_http_engine_sim_reply_buf(r, NGX_HTTP_OK, "application/json",
                                         start, p);
}


ngx_int_t
ngx_http_engine_sim_reset(ngx_http_request_t *r)
{
    ngx_http_engine_sim_t  *sim;

    sim = ngx_http_engine_sim_get(r);

    if (engine_reset_cache(sim->engine) != ENGINE_OK) {
        return ngx_http_engine_sim_error(r, NGX_HTTP_CONFLICT,
                                         "requests are running");
    }

    return ngx_http_engine_sim_reply_buf(r, NGX_HTTP_OK, "", NULL, NULL);
}


static ngx_int_t
ngx_http_engine_sim_tokens(ngx_http_request_t *r,
    ngx_http_engine_sim_query_t *q)
{
    size_t       len;
    u_char      *p, *start;
    ngx_uint_t   i;

    len = sizeof("{\"count\":,\"tokens\":[]}\n") + NGX_INT_T_LEN
          + q->prompt * (NGX_INT32_LEN + 1);

    start = ngx_pnalloc(r->pool, len);
    if (start == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    p = ngx_sprintf(start, "{\"count\":%ui,\"tokens\":[", q->prompt);

    for (i = 0; i < q->prompt; i++) {

        if (i > 0) {
            *p++ = ',';
        }

        p = ngx_sprintf(p, "%uD", ngx_http_engine_sim_token_id(q, i));
    }

    p = ngx_sprintf(p, "]}\n");

    return ngx_http_engine_sim_reply_buf(r, NGX_HTTP_OK, "application/json",
                                         start, p);
}


void
ngx_http_engine_sim_tokenize(ngx_http_request_t *r)
{
    ngx_int_t                     rc;
    ngx_http_engine_sim_t        *sim;
    ngx_http_engine_sim_query_t   q;

    sim = ngx_http_engine_sim_get(r);

    ngx_memzero(&q, sizeof(ngx_http_engine_sim_query_t));
    q.either = 1;

    rc = ngx_http_engine_sim_parse(r, sim, &q);

    if (rc == NGX_OK) {
        rc = ngx_http_engine_sim_tokens(r, &q);

    } else if (rc == NGX_DECLINED) {
        rc = ngx_http_engine_sim_error(r, NGX_HTTP_BAD_REQUEST, q.error);

    } else {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_finalize_request(r, rc);
}
