
/* a mirror for tests: what came in, as JSON */

#include "ngx_http_engine_sim.h"

#include <openssl/evp.h>


#define NGX_HTTP_ENGINE_SIM_CHUNK  65536


static ngx_int_t ngx_http_engine_sim_digest_handler(ngx_http_request_t *r);
static void ngx_http_engine_sim_digest_body(ngx_http_request_t *r);
static ngx_int_t ngx_http_engine_sim_digest_hash(ngx_http_request_t *r,
    EVP_MD_CTX *md, off_t *size);
static ngx_int_t ngx_http_engine_sim_digest_file(EVP_MD_CTX *md,
    ngx_buf_t *b, u_char *chunk);
static ngx_int_t ngx_http_engine_sim_digest_reply(ngx_http_request_t *r,
    u_char *digest, ngx_uint_t len, off_t size);


char *
ngx_http_engine_sim_digest(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_engine_sim_digest_handler;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_engine_sim_digest_handler(ngx_http_request_t *r)
{
    ngx_int_t  rc;

    rc = ngx_http_read_client_request_body(r, ngx_http_engine_sim_digest_body);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    return NGX_DONE;
}


static void
ngx_http_engine_sim_digest_body(ngx_http_request_t *r)
{
    off_t          size;
    u_char         digest[EVP_MAX_MD_SIZE];
    unsigned       len;
    ngx_int_t      rc;
    EVP_MD_CTX    *md;

    rc = NGX_ERROR;
    md = EVP_MD_CTX_new();

    if (md != NULL && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1
        && ngx_http_engine_sim_digest_hash(r, md, &size) == NGX_OK
        && EVP_DigestFinal_ex(md, digest, &len) == 1)
    {
        rc = ngx_http_engine_sim_digest_reply(r, digest, len, size);

    } else {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    EVP_MD_CTX_free(md);

    ngx_http_finalize_request(r, rc);
}


static ngx_int_t
ngx_http_engine_sim_digest_hash(ngx_http_request_t *r, EVP_MD_CTX *md,
    off_t *size)
{
    u_char       *chunk;
    ngx_int_t     rc;
    ngx_chain_t  *cl;

    *size = 0;

    if (r->request_body == NULL) {
        return NGX_OK;
    }

    chunk = ngx_palloc(r->pool, NGX_HTTP_ENGINE_SIM_CHUNK);
    if (chunk == NULL) {
        return NGX_ERROR;
    }

    for (cl = r->request_body->bufs; cl; cl = cl->next) {

        if (ngx_buf_in_memory(cl->buf)) {
            rc = EVP_DigestUpdate(md, cl->buf->pos,
                                  cl->buf->last - cl->buf->pos) == 1
                 ? NGX_OK : NGX_ERROR;

        } else {
            rc = ngx_http_engine_sim_digest_file(md, cl->buf, chunk);
        }

        if (rc != NGX_OK) {
            return rc;
        }

        *size += ngx_buf_size(cl->buf);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_engine_sim_digest_file(EVP_MD_CTX *md, ngx_buf_t *b, u_char *chunk)
{
    off_t    offset;
    size_t   size;
    ssize_t  n;

    if (!b->in_file) {
        return NGX_OK;
    }

    for (offset = b->file_pos; offset < b->file_last; offset += n) {

        size = ngx_min(b->file_last - offset, NGX_HTTP_ENGINE_SIM_CHUNK);
        n = ngx_read_file(b->file, chunk, size, offset);

        if (n <= 0 || EVP_DigestUpdate(md, chunk, n) != 1) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static size_t
ngx_http_engine_sim_headers_size(ngx_list_t *headers)
{
    size_t            size;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    size = 0;

    for (part = &headers->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            size += 6 * (h[i].key.len + h[i].value.len) + sizeof("\"\":\"\",");
        }
    }

    return size;
}


/* names in lower case; of equal names a JSON reader will take the last */

static u_char *
ngx_http_engine_sim_print_headers(u_char *p, ngx_list_t *headers)
{
    u_char            comma;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    comma = '{';

    for (part = &headers->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            *p++ = comma;
            *p++ = '"';
            p = (u_char *) ngx_escape_json(p, h[i].lowcase_key, h[i].key.len);
            p = ngx_cpymem(p, "\":\"", 3);
            p = (u_char *) ngx_escape_json(p, h[i].value.data, h[i].value.len);
            *p++ = '"';
            comma = ',';
        }
    }

    if (comma == '{') {
        *p++ = comma;
    }

    *p++ = '}';

    return p;
}


static ngx_int_t
ngx_http_engine_sim_digest_reply(ngx_http_request_t *r, u_char *digest,
    ngx_uint_t len, off_t size)
{
    size_t   max;
    u_char  *p, *start;

    max = sizeof("{\"bytes\":,\"sha256\":\"\",\"method\":\"\",\"uri\":\"\","
                 "\"headers\":}\n")
          + NGX_OFF_T_LEN + 2 * len + r->method_name.len
          + 6 * r->unparsed_uri.len
          + ngx_http_engine_sim_headers_size(&r->headers_in.headers);

    start = ngx_pnalloc(r->pool, max);
    if (start == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    p = ngx_sprintf(start, "{\"bytes\":%O,\"sha256\":\"", size);
    p = ngx_hex_dump(p, digest, len);
    p = ngx_sprintf(p, "\",\"method\":\"%V\",\"uri\":\"", &r->method_name);
    p = (u_char *) ngx_escape_json(p, r->unparsed_uri.data,
                                   r->unparsed_uri.len);
    p = ngx_sprintf(p, "\",\"headers\":");
    p = ngx_http_engine_sim_print_headers(p, &r->headers_in.headers);
    p = ngx_sprintf(p, "}\n");

    return ngx_http_engine_sim_reply_buf(r, NGX_HTTP_OK, "application/json",
                                         start, p);
}
