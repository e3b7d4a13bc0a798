
/* Text that grows in a chain of buffers, for metrics and status. */

#ifndef _NGX_HTTP_AIBRIX_OUTPUT_H_INCLUDED_
#define _NGX_HTTP_AIBRIX_OUTPUT_H_INCLUDED_


#include "ngx_http_aibrix_module.h"


#define NGX_HTTP_AIBRIX_LINE  4096      /* the longest piece at once */


typedef struct {
    ngx_pool_t     *pool;
    ngx_chain_t    *chain;
    ngx_chain_t   **last;
    ngx_buf_t      *buf;
    off_t           size;
    unsigned        failed:1;           /* no memory: all else is dropped */
} ngx_http_aibrix_output_t;


/* What a peer is called: as in the server line, if that names only one. */

typedef struct {
    aibrix_span_t   upstream;
    aibrix_span_t   pod;
    unsigned        used:1;
} ngx_http_aibrix_label_t;


void ngx_http_aibrix_output_init(ngx_http_aibrix_output_t *out,
    ngx_pool_t *pool);

/* A place with room for NGX_HTTP_AIBRIX_LINE bytes, or NULL; what was written
 * there up to last counts from then on. */
u_char *ngx_http_aibrix_room(ngx_http_aibrix_output_t *out);
void ngx_http_aibrix_wrote(ngx_http_aibrix_output_t *out, u_char *last);

/* As ngx_sprintf(); a piece longer than NGX_HTTP_AIBRIX_LINE is cut. */
void ngx_cdecl ngx_http_aibrix_printf(ngx_http_aibrix_output_t *out,
    const char *fmt, ...);

/* The inside of a JSON string. */
void ngx_http_aibrix_print_json(ngx_http_aibrix_output_t *out,
    const aibrix_span_t *s);

/* Sends all of it as a response of that type. */
ngx_int_t ngx_http_aibrix_send(ngx_http_request_t *r,
    ngx_http_aibrix_output_t *out, ngx_str_t *type);

/* max_peers of them, by peer number; NULL without memory. */
ngx_http_aibrix_label_t *ngx_http_aibrix_labels(ngx_pool_t *pool,
    aibrix_zone_t *z);


#endif /* _NGX_HTTP_AIBRIX_OUTPUT_H_INCLUDED_ */
