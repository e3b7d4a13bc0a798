
#include "ngx_http_aibrix_output.h"

#define XXH_INLINE_ALL
#include <xxhash.h>


#define NGX_HTTP_AIBRIX_PIECE  65536


void
ngx_http_aibrix_output_init(ngx_http_aibrix_output_t *out, ngx_pool_t *pool)
{
    ngx_memzero(out, sizeof(ngx_http_aibrix_output_t));

    out->pool = pool;
    out->last = &out->chain;
}


u_char *
ngx_http_aibrix_room(ngx_http_aibrix_output_t *out)
{
    ngx_chain_t  *cl;

    if (out->failed) {
        return NULL;
    }

    if (out->buf && out->buf->end - out->buf->last >= NGX_HTTP_AIBRIX_LINE) {
        return out->buf->last;
    }

    out->buf = ngx_create_temp_buf(out->pool, NGX_HTTP_AIBRIX_PIECE);
    cl = ngx_alloc_chain_link(out->pool);

    if (out->buf == NULL || cl == NULL) {
        out->failed = 1;
        return NULL;
    }

    cl->buf = out->buf;
    cl->next = NULL;

    *out->last = cl;
    out->last = &cl->next;

    return out->buf->last;
}


void
ngx_http_aibrix_wrote(ngx_http_aibrix_output_t *out, u_char *last)
{
    out->size += last - out->buf->last;
    out->buf->last = last;
}


void ngx_cdecl
ngx_http_aibrix_printf(ngx_http_aibrix_output_t *out, const char *fmt, ...)
{
    u_char   *p;
    va_list   args;

    p = ngx_http_aibrix_room(out);
    if (p == NULL) {
        return;
    }

    va_start(args, fmt);
    p = ngx_vslprintf(p, p + NGX_HTTP_AIBRIX_LINE, fmt, args);
    va_end(args);

    ngx_http_aibrix_wrote(out, p);
}


void
ngx_http_aibrix_print_json(ngx_http_aibrix_output_t *out,
    const aibrix_span_t *s)
{
    size_t   n;
    u_char  *p;

    p = ngx_http_aibrix_room(out);
    if (p == NULL) {
        return;
    }

    n = aibrix_escape_json((char *) p, NGX_HTTP_AIBRIX_LINE, s);

    ngx_http_aibrix_wrote(out, p + n);
}


ngx_int_t
ngx_http_aibrix_send(ngx_http_request_t *r, ngx_http_aibrix_output_t *out,
    ngx_str_t *type)
{
    ngx_int_t  rc;

    if (out->failed || out->buf == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_type = *type;
    r->headers_out.content_type_len = type->len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.content_length_n = out->size;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    out->buf->last_buf = (r == r->main) ? 1 : 0;
    out->buf->last_in_chain = 1;

    return ngx_http_output_filter(r, out->chain);
}


static ngx_uint_t
ngx_http_aibrix_same(const aibrix_peer_t *a, const aibrix_peer_t *b)
{
    return a->upstream_len == b->upstream_len
           && a->server_len == b->server_len
           && ngx_memcmp(a->upstream, b->upstream, a->upstream_len) == 0
           && ngx_memcmp(a->server, b->server, a->server_len) == 0;
}


static uint64_t
ngx_http_aibrix_server_hash(const aibrix_peer_t *p)
{
    return XXH64(p->server, p->server_len,
                 XXH64(p->upstream, p->upstream_len, 0));
}


ngx_http_aibrix_label_t *
ngx_http_aibrix_labels(ngx_pool_t *pool, aibrix_zone_t *z)
{
    uint32_t                  i, n, h, *table;
    const aibrix_peer_t      *peer, *other;
    ngx_http_aibrix_label_t  *labels;

    n = 2 * z->max_peers;

    labels = ngx_pcalloc(pool, z->max_peers * sizeof(*labels));
    table = ngx_pcalloc(pool, n * sizeof(uint32_t));

    if (labels == NULL || table == NULL) {
        return NULL;
    }

    for (i = 0; i < z->max_peers; i++) {

        if (!aibrix_zone_peer_used(z, i)) {
            continue;
        }

        peer = aibrix_zone_peer(z, i);

        labels[i].used = 1;
        labels[i].upstream.data = peer->upstream;
        labels[i].upstream.len = peer->upstream_len;
        labels[i].pod.data = peer->server;
        labels[i].pod.len = peer->server_len;

        /* a host of several addresses is several peers */

        for (h = ngx_http_aibrix_server_hash(peer) % n;
             table[h];
             h = (h + 1) % n)
        {
            other = aibrix_zone_peer(z, table[h] - 1);

            if (ngx_http_aibrix_same(peer, other)) {
                labels[i].pod.data = peer->name;
                labels[i].pod.len = peer->name_len;

                labels[table[h] - 1].pod.data = other->name;
                labels[table[h] - 1].pod.len = other->name_len;
                break;
            }
        }

        if (table[h] == 0) {
            table[h] = i + 1;
        }
    }

    return labels;
}
