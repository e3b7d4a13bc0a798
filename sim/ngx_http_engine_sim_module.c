
#include "ngx_http_engine_sim.h"


typedef struct {
    ngx_flag_t                     engine;
} ngx_http_engine_sim_srv_conf_t;


typedef struct {
    ngx_http_engine_sim_t         *sim;
} ngx_http_engine_sim_loc_conf_t;


/* a route has a handler of its own, or one for when the body was read */

typedef struct {
    ngx_str_t                      suffix;
    ngx_uint_t                     methods;
    ngx_int_t                    (*handler)(ngx_http_request_t *r);
    ngx_http_client_body_handler_pt  body_handler;
} ngx_http_engine_sim_route_t;


static ngx_int_t ngx_http_engine_sim_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_engine_sim_refuse(ngx_http_request_t *r,
    ngx_uint_t status, const char *message);
static void *ngx_http_engine_sim_create_srv_conf(ngx_conf_t *cf);
static void *ngx_http_engine_sim_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_engine_sim_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static char *ngx_http_engine_sim(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_engine_sim_set(ngx_conf_t *cf,
    ngx_http_engine_sim_t *sim, ngx_str_t *setting);
static ngx_int_t ngx_http_engine_sim_init_process(ngx_cycle_t *cycle);
static ngx_uint_t ngx_http_engine_sim_listens(ngx_listening_t *ls);


static ngx_http_engine_sim_route_t  ngx_http_engine_sim_routes[] = {

    { ngx_string("/v1/completions"), NGX_HTTP_POST,
      NULL, ngx_http_engine_sim_completions },

    { ngx_string("/v1/chat/completions"), NGX_HTTP_POST,
      NULL, ngx_http_engine_sim_chat },

    { ngx_string("/tokenize"), NGX_HTTP_POST,
      NULL, ngx_http_engine_sim_tokenize },

    { ngx_string("/v1/models"), NGX_HTTP_GET|NGX_HTTP_HEAD,
      ngx_http_engine_sim_models, NULL },

    { ngx_string("/health"), NGX_HTTP_GET|NGX_HTTP_HEAD,
      ngx_http_engine_sim_health, NULL },

    { ngx_string("/metrics"), NGX_HTTP_GET|NGX_HTTP_HEAD,
      ngx_http_engine_sim_metrics, NULL },

    { ngx_string("/reset_prefix_cache"), NGX_HTTP_POST,
      ngx_http_engine_sim_reset, NULL },

    { ngx_null_string, 0, NULL, NULL }
};


static ngx_command_t  ngx_http_engine_sim_commands[] = {

    { ngx_string("engine_sim"),
      NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_engine_sim,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("engine_sim_digest"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_engine_sim_digest,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_engine_sim_module_ctx = {
    NULL,                                  /* preconfiguration */
    NULL,                                  /* postconfiguration */

    NULL,                                  /* create main configuration */
    NULL,                                  /* init main configuration */

    ngx_http_engine_sim_create_srv_conf,   /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_engine_sim_create_loc_conf,   /* create location configuration */
    ngx_http_engine_sim_merge_loc_conf     /* merge location configuration */
};


ngx_module_t  ngx_http_engine_sim_module = {
    NGX_MODULE_V1,
    &ngx_http_engine_sim_module_ctx,       /* module context */
    ngx_http_engine_sim_commands,          /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    ngx_http_engine_sim_init_process,      /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    NULL,                                  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_http_engine_sim_route_t *
ngx_http_engine_sim_route(ngx_str_t *uri)
{
    ngx_http_engine_sim_route_t  *route;

    for (route = ngx_http_engine_sim_routes; route->suffix.len; route++) {

        if (uri->len >= route->suffix.len
            && ngx_memcmp(uri->data + uri->len - route->suffix.len,
                          route->suffix.data, route->suffix.len)
               == 0)
        {
            return route;
        }
    }

    return NULL;
}


static ngx_int_t
ngx_http_engine_sim_handler(ngx_http_request_t *r)
{
    ngx_int_t                     rc;
    ngx_http_engine_sim_t        *sim;
    ngx_http_engine_sim_route_t  *route;

    sim = ngx_http_engine_sim_get(r);

    if (ngx_worker != 0) {
        return ngx_http_engine_sim_refuse(r, NGX_HTTP_SERVICE_UNAVAILABLE,
                          "engine_sim lives in worker 0, this is another one: "
                          "give it a listening port of its own, without "
                          "reuseport and accept_mutex");
    }

    if (ngx_http_engine_sim_start(sim) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (sim->status) {
        return ngx_http_engine_sim_refuse(r, sim->status,
                                          "engine_sim was told to answer so");
    }

    route = ngx_http_engine_sim_route(&r->uri);

    if (route == NULL) {
        return ngx_http_engine_sim_refuse(r, NGX_HTTP_NOT_FOUND, "Not Found");
    }

    if (!(r->method & route->methods)) {
        return ngx_http_engine_sim_refuse(r, NGX_HTTP_NOT_ALLOWED,
                                          "Method Not Allowed");
    }

    if (route->handler) {
        rc = ngx_http_discard_request_body(r);

        return rc == NGX_OK ? route->handler(r) : rc;
    }

    rc = ngx_http_read_client_request_body(r, route->body_handler);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_engine_sim_refuse(ngx_http_request_t *r, ngx_uint_t status,
    const char *message)
{
    ngx_int_t  rc;

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    return ngx_http_engine_sim_error(r, status, message);
}


ngx_int_t
ngx_http_engine_sim_error(ngx_http_request_t *r, ngx_uint_t status,
    const char *message)
{
    size_t       len;
    u_char      *p, *start;
    const char  *type;

    switch (status) {

    case NGX_HTTP_BAD_REQUEST:
        type = "BadRequestError";
        break;

    case NGX_HTTP_NOT_FOUND:
        type = "NotFoundError";
        break;

    case NGX_HTTP_TOO_MANY_REQUESTS:
        type = "RateLimitError";
        break;

    default:
        type = status < 500 ? "InvalidRequestError" : "InternalServerError";
    }

    len = ngx_strlen(message);

    start = ngx_pnalloc(r->pool, len * 6 + 256);
    if (start == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(start, "{\"error\":{\"message\":\"");
    p = (u_char *) ngx_escape_json(p, (u_char *) message, len);
    p = ngx_sprintf(p, "\",\"type\":\"%s\",\"param\":null,\"code\":%ui}}\n",
                    type, status);

    return ngx_http_engine_sim_reply_buf(r, status, "application/json",
                                         start, p);
}


ngx_int_t
ngx_http_engine_sim_reply_buf(ngx_http_request_t *r, ngx_uint_t status,
    const char *type, u_char *start, u_char *last)
{
    ngx_buf_t    *b;
    ngx_chain_t   out;

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_ERROR;
    }

    b->start = start;
    b->pos = start;
    b->last = last;
    b->end = last;
    b->memory = (start != last);
    b->last_buf = (r == r->main);
    b->last_in_chain = 1;
    b->sync = (start == last && r != r->main);

    out.buf = b;
    out.next = NULL;

    return ngx_http_engine_sim_reply(r, status, type, &out);
}


ngx_int_t
ngx_http_engine_sim_reply(ngx_http_request_t *r, ngx_uint_t status,
    const char *type, ngx_chain_t *body)
{
    off_t         len;
    ngx_int_t     rc;
    ngx_chain_t  *cl;

    len = 0;

    for (cl = body; cl; cl = cl->next) {
        len += ngx_buf_size(cl->buf);
    }

    r->headers_out.status = status;
    r->headers_out.content_length_n = len;

    if (len) {
        r->headers_out.content_type.len = ngx_strlen(type);
        r->headers_out.content_type.data = (u_char *) type;
        r->headers_out.content_type_len = r->headers_out.content_type.len;
    }

    if (ngx_http_engine_sim_add_name(r, ngx_http_engine_sim_get(r)) != NGX_OK)
    {
        return NGX_ERROR;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, body);
}


ngx_int_t
ngx_http_engine_sim_add_name(ngx_http_request_t *r,
    ngx_http_engine_sim_t *sim)
{
    ngx_table_elt_t  *h;

    if (sim == NULL || sim->name.len == 0) {
        return NGX_OK;
    }

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    /* the list's memory is not zeroed, and newer nginx has more fields */
    ngx_memzero(h, sizeof(ngx_table_elt_t));

    h->hash = 1;
    ngx_str_set(&h->key, "x-engine");
    h->value = sim->name;

    return NGX_OK;
}


ngx_http_engine_sim_t *
ngx_http_engine_sim_get(ngx_http_request_t *r)
{
    ngx_http_engine_sim_loc_conf_t  *lcf;

    lcf = ngx_http_get_module_loc_conf(r, ngx_http_engine_sim_module);

    return lcf->sim;
}


static void *
ngx_http_engine_sim_create_srv_conf(ngx_conf_t *cf)
{
    return ngx_pcalloc(cf->pool, sizeof(ngx_http_engine_sim_srv_conf_t));
}


static void *
ngx_http_engine_sim_create_loc_conf(ngx_conf_t *cf)
{
    return ngx_pcalloc(cf->pool, sizeof(ngx_http_engine_sim_loc_conf_t));
}


/* only an "if" or "limit_except" block shares the engine around it */

static char *
ngx_http_engine_sim_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_engine_sim_loc_conf_t  *prev = parent;
    ngx_http_engine_sim_loc_conf_t  *conf = child;

    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if ((clcf->noname || clcf->lmt_excpt) && clcf->handler == NULL
        && prev->sim)
    {
        conf->sim = prev->sim;
        clcf->handler = ngx_http_engine_sim_handler;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_engine_sim(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_engine_sim_loc_conf_t *lcf = conf;

    char                            *rv;
    ngx_str_t                       *value;
    ngx_uint_t                       i;
    ngx_pool_cleanup_t              *cln;
    ngx_http_engine_sim_t           *sim;
    ngx_http_core_loc_conf_t        *clcf;
    ngx_http_engine_sim_srv_conf_t  *scf;

    if (lcf->sim) {
        return "is duplicate";
    }

    cln = ngx_pool_cleanup_add(cf->pool, sizeof(ngx_http_engine_sim_t));
    if (cln == NULL) {
        return NGX_CONF_ERROR;
    }

    sim = cln->data;
    ngx_memzero(sim, sizeof(ngx_http_engine_sim_t));

    cln->handler = ngx_http_engine_sim_stop;

    sim->pool = cf->pool;
    sim->max_tokens = 16;
    ngx_str_set(&sim->model, "sim");

    engine_params_init(&sim->params);

    value = cf->args->elts;

    /* a profile sets all parameters, so it goes first wherever it stands */

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "profile=", 8) == 0) {
            rv = ngx_http_engine_sim_set(cf, sim, &value[i]);

            if (rv != NGX_CONF_OK) {
                return rv;
            }
        }
    }

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "profile=", 8) != 0) {
            rv = ngx_http_engine_sim_set(cf, sim, &value[i]);

            if (rv != NGX_CONF_OK) {
                return rv;
            }
        }
    }

    rv = (char *) engine_params_check(&sim->params);

    if (rv != NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\": %s",
                           &cmd->name, rv);
        return NGX_CONF_ERROR;
    }

    lcf->sim = sim;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_engine_sim_handler;

    scf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_engine_sim_module);
    scf->engine = 1;

    return NGX_CONF_OK;
}


static char *
ngx_http_engine_sim_set(ngx_conf_t *cf, ngx_http_engine_sim_t *sim,
    ngx_str_t *setting)
{
    ngx_int_t  n;

    if (ngx_strncmp(setting->data, "name=", 5) == 0) {
        sim->name.len = setting->len - 5;
        sim->name.data = setting->data + 5;

        return NGX_CONF_OK;
    }

    if (ngx_strncmp(setting->data, "model=", 6) == 0) {
        sim->model.len = setting->len - 6;
        sim->model.data = setting->data + 6;
        sim->model_only = 1;

        return NGX_CONF_OK;
    }

    if (ngx_strncmp(setting->data, "status=", 7) == 0) {
        n = ngx_atoi(setting->data + 7, setting->len - 7);

        if (n < 400 || n > 599) {
            goto invalid;
        }

        sim->status = n;

        return NGX_CONF_OK;
    }

    if (ngx_strncmp(setting->data, "max_tokens=", 11) == 0) {
        n = ngx_atoi(setting->data + 11, setting->len - 11);

        if (n < 1 || n > 1000000) {
            goto invalid;
        }

        sim->max_tokens = n;

        return NGX_CONF_OK;
    }

    switch (engine_params_set(&sim->params, (char *) setting->data)) {

    case ENGINE_OK:
        return NGX_CONF_OK;

    case ENGINE_UNKNOWN:
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown parameter \"%V\"", setting);
        return NGX_CONF_ERROR;

    default: /* ENGINE_INVALID */
        break;
    }

invalid:

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value in \"%V\"", setting);

    return NGX_CONF_ERROR;
}


/* An engine's state is one worker's, so only worker 0 accepts for it. */

static ngx_int_t
ngx_http_engine_sim_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t        i;
    ngx_listening_t  *ls;

    if (ngx_process != NGX_PROCESS_WORKER || ngx_worker == 0) {
        return NGX_OK;
    }

    ls = cycle->listening.elts;

    for (i = 0; i < cycle->listening.nelts; i++) {

        if (ls[i].connection == NULL
            || !ls[i].connection->read->active
            || !ngx_http_engine_sim_listens(&ls[i]))
        {
            continue;
        }

        if (ngx_del_event(ls[i].connection->read, NGX_READ_EVENT,
                          NGX_DISABLE_EVENT)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_engine_sim_listens(ngx_listening_t *ls)
{
    ngx_uint_t                       i;
    ngx_http_port_t                 *port;
    ngx_http_in_addr_t              *addr;
    ngx_http_addr_conf_t            *conf;
    ngx_http_core_srv_conf_t        *cscf;
    ngx_http_engine_sim_srv_conf_t  *scf;
#if (NGX_HAVE_INET6)
    ngx_http_in6_addr_t             *addr6;
#endif

    if (ls->handler != ngx_http_init_connection || ls->servers == NULL) {
        return 0;
    }

#if (NGX_HAVE_REUSEPORT)
    if (ls->reuseport) {
        return 0;
    }
#endif

    port = ls->servers;

    for (i = 0; i < port->naddrs; i++) {

#if (NGX_HAVE_INET6)
        if (ls->sockaddr->sa_family == AF_INET6) {
            addr6 = port->addrs;
            conf = &addr6[i].conf;

        } else
#endif
        {
            addr = port->addrs;
            conf = &addr[i].conf;
        }

        cscf = conf->default_server;
        scf = cscf->ctx->srv_conf[ngx_http_engine_sim_module.ctx_index];

        if (scf->engine) {
            return 1;
        }
    }

    return 0;
}
