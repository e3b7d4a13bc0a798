
#include "ngx_http_aibrix_module.h"


static ngx_int_t ngx_http_aibrix_send_error(ngx_http_request_t *r,
    ngx_uint_t status, ngx_str_t *message);


static ngx_str_t  ngx_http_aibrix_json = ngx_string("application/json");


/*
 * A balancer has no answer of its own but 500 and 502.  So the upstream is
 * ended first, as ngx_http_upstream_create() ends one that another replaces
 * (a cache's lock goes with it), and the request is finalized here.  What the
 * upstream module then finalizes is only the reference taken for it.
 */

void
ngx_http_aibrix_refuse(ngx_http_request_t *r, ngx_uint_t status,
    ngx_str_t *message)
{
    ngx_int_t  rc;

    r->main->count++;
    (*r->upstream->cleanup)(r);

    r->write_event_handler = ngx_http_request_empty_handler;

    r->main->count++;

    rc = ngx_http_aibrix_send_error(r, status, message);

    ngx_http_finalize_request(r, rc);
}


static ngx_int_t
ngx_http_aibrix_send_error(ngx_http_request_t *r, ngx_uint_t status,
    ngx_str_t *message)
{
    size_t            len;
    u_char           *p;
    ngx_int_t         rc;
    ngx_buf_t        *b;
    ngx_chain_t       out;
    ngx_table_elt_t  *h;

    len = sizeof("{\"error\":{\"message\":\"\","
                 "\"type\":\"invalid_request_error\","
                 "\"code\":null,\"param\":null}}\n") - 1
          + message->len
          + ngx_escape_json(NULL, message->data, message->len);

    p = ngx_pnalloc(r->pool, len);
    b = ngx_calloc_buf(r->pool);
    h = ngx_list_push(&r->headers_out.headers);

    if (p == NULL || b == NULL || h == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->pos = p;

    p = ngx_cpymem(p, "{\"error\":{\"message\":\"",
                   sizeof("{\"error\":{\"message\":\"") - 1);
    p = (u_char *) ngx_escape_json(p, message->data, message->len);
    p = ngx_cpymem(p, "\",\"type\":\"invalid_request_error\","
                   "\"code\":null,\"param\":null}}\n",
                   sizeof("\",\"type\":\"invalid_request_error\","
                          "\"code\":null,\"param\":null}}\n") - 1);

    b->last = p;
    b->memory = 1;
    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    h->hash = 1;
    ngx_str_set(&h->key, "x-error-routing");
    ngx_str_set(&h->value, "true");
    ngx_http_aibrix_header_last(h);

    r->headers_out.status = status;
    r->headers_out.content_type = ngx_http_aibrix_json;
    r->headers_out.content_type_len = ngx_http_aibrix_json.len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.content_length_n = b->last - b->pos;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}
