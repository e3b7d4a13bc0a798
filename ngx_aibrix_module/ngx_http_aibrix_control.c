
#include "ngx_http_aibrix_output.h"


enum {
    NGX_HTTP_AIBRIX_DRAIN = 0,
    NGX_HTTP_AIBRIX_UNDRAIN,
    NGX_HTTP_AIBRIX_FORGET,
    NGX_HTTP_AIBRIX_ACTIONS
};


typedef struct {
    ngx_uint_t   action;
    ngx_str_t    name;          /* of the action */
    ngx_str_t    upstream;
    ngx_str_t    server;
} ngx_http_aibrix_order_t;


static ngx_uint_t ngx_http_aibrix_is_foreign(ngx_http_request_t *r);
static ngx_int_t ngx_http_aibrix_order(ngx_http_request_t *r,
    ngx_http_aibrix_order_t *order);
static ngx_int_t ngx_http_aibrix_argument(ngx_http_request_t *r,
    const char *name, ngx_str_t *value);
static ngx_uint_t ngx_http_aibrix_obey(aibrix_zone_t *z,
    ngx_http_aibrix_order_t *order);
static ngx_uint_t ngx_http_aibrix_is_meant(const aibrix_peer_t *peer,
    ngx_http_aibrix_order_t *order);
static ngx_uint_t ngx_http_aibrix_is_name(ngx_str_t *s, const char *name,
    size_t len);


static const char *const  ngx_http_aibrix_actions[] = {
    "drain", "undrain", "forget"
};


static ngx_str_t  ngx_http_aibrix_done_type = ngx_string("application/json");


/* POST ?action=drain|undrain|forget&upstream=name&server=name-or-address */

ngx_int_t
ngx_http_aibrix_control(ngx_http_request_t *r)
{
    ngx_uint_t                     i, n;
    ngx_http_aibrix_zone_t       **zones;
    ngx_http_aibrix_order_t        order;
    ngx_http_aibrix_output_t       out;
    ngx_http_aibrix_main_conf_t   *amcf;

    if (ngx_http_aibrix_is_foreign(r)) {
        return NGX_HTTP_FORBIDDEN;
    }

    if (ngx_http_aibrix_order(r, &order) != NGX_OK) {
        return NGX_HTTP_BAD_REQUEST;
    }

    amcf = ngx_http_get_module_main_conf(r, ngx_http_aibrix_module);
    zones = amcf->zones.elts;
    n = 0;

    for (i = 0; i < amcf->zones.nelts; i++) {
        n += ngx_http_aibrix_obey(zones[i]->z, &order);
    }

    if (n == 0) {
        return NGX_HTTP_NOT_FOUND;
    }

    ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                  "aibrix: %V of server \"%V\" in upstream \"%V\"",
                  &order.name, &order.server, &order.upstream);

    ngx_http_aibrix_output_init(&out, r->pool);
    ngx_http_aibrix_printf(&out, "{\"action\":\"%V\",\"peers\":%ui}\n",
                           &order.name, n);

    return ngx_http_aibrix_send(r, &out, &ngx_http_aibrix_done_type);
}


/*
 * A page of another site can make a browser that is let in here send a POST;
 * the browser then says whose page it was.
 */

static ngx_uint_t
ngx_http_aibrix_is_foreign(ngx_http_request_t *r)
{
    u_char           *p;
    ngx_str_t         origin;
    ngx_table_elt_t  *h;

    h = ngx_http_aibrix_find_header(&r->headers_in.headers, "Origin", 0);

    if (h == NULL) {
        return 0;
    }

    origin = h->value;
    p = ngx_strlcasestrn(origin.data, origin.data + origin.len,
                         (u_char *) "://", 3 - 1);

    if (p == NULL || r->headers_in.host == NULL) {
        return 1;
    }

    origin.len -= p + 3 - origin.data;
    origin.data = p + 3;

    return origin.len != r->headers_in.host->value.len
           || ngx_strncasecmp(origin.data, r->headers_in.host->value.data,
                              origin.len)
              != 0;
}


static ngx_int_t
ngx_http_aibrix_order(ngx_http_request_t *r, ngx_http_aibrix_order_t *order)
{
    ngx_uint_t  i;

    if (ngx_http_aibrix_argument(r, "action", &order->name) != NGX_OK
        || ngx_http_aibrix_argument(r, "upstream", &order->upstream) != NGX_OK
        || ngx_http_aibrix_argument(r, "server", &order->server) != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < NGX_HTTP_AIBRIX_ACTIONS; i++) {

        if (ngx_http_aibrix_is_name(&order->name, ngx_http_aibrix_actions[i],
                                    ngx_strlen(ngx_http_aibrix_actions[i])))
        {
            order->action = i;
            return NGX_OK;
        }
    }

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_aibrix_argument(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    u_char     *dst, *src;
    ngx_str_t   escaped;

    if (ngx_http_arg(r, (u_char *) name, ngx_strlen(name), &escaped) != NGX_OK
        || escaped.len == 0)
    {
        return NGX_ERROR;
    }

    value->data = ngx_pnalloc(r->pool, escaped.len);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    dst = value->data;
    src = escaped.data;

    ngx_unescape_uri(&dst, &src, escaped.len, 0);

    value->len = dst - value->data;

    return NGX_OK;
}


/* Returns how many peers were meant. */

static ngx_uint_t
ngx_http_aibrix_obey(aibrix_zone_t *z, ngx_http_aibrix_order_t *order)
{
    uint32_t    id;
    ngx_uint_t  n;

    n = 0;

    for (id = 0; id < z->max_peers; id++) {

        if (!aibrix_zone_peer_used(z, id)
            || !ngx_http_aibrix_is_meant(aibrix_zone_peer(z, id), order))
        {
            continue;
        }

        if (order->action == NGX_HTTP_AIBRIX_FORGET) {
            aibrix_zone_forget(z, id, ngx_current_msec);

        } else {
            aibrix_zone_drain(z, id, order->action == NGX_HTTP_AIBRIX_DRAIN);
        }

        n++;
    }

    return n;
}


static ngx_uint_t
ngx_http_aibrix_is_meant(const aibrix_peer_t *peer,
    ngx_http_aibrix_order_t *order)
{
    return ngx_http_aibrix_is_name(&order->upstream, peer->upstream,
                                   peer->upstream_len)
           && (ngx_http_aibrix_is_name(&order->server, peer->name,
                                       peer->name_len)
               || ngx_http_aibrix_is_name(&order->server, peer->server,
                                          peer->server_len));
}


/* name is kept of the zone's peers, cut at AIBRIX_NAME_MAX. */

static ngx_uint_t
ngx_http_aibrix_is_name(ngx_str_t *s, const char *name, size_t len)
{
    return ngx_min(s->len, AIBRIX_NAME_MAX) == len
           && ngx_memcmp(s->data, name, len) == 0;
}
