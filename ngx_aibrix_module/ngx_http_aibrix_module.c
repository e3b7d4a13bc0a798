
#include "ngx_http_aibrix_module.h"



static void *ngx_http_aibrix_create_main_conf(ngx_conf_t *cf);
static void *ngx_http_aibrix_create_srv_conf(ngx_conf_t *cf);
static void *ngx_http_aibrix_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_aibrix_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static char *ngx_http_aibrix(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *ngx_http_aibrix_zone(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static ngx_int_t ngx_http_aibrix_parse_seed(ngx_str_t *s, uint64_t *seed);
static char *ngx_http_aibrix_number(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_aibrix_size(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_aibrix_factor(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static ngx_int_t ngx_http_aibrix_preconfiguration(ngx_conf_t *cf);
static ngx_int_t ngx_http_aibrix_postconfiguration(ngx_conf_t *cf);
static ngx_int_t ngx_http_aibrix_init_process(ngx_cycle_t *cycle);
static void ngx_http_aibrix_exit_process(ngx_cycle_t *cycle);


static ngx_conf_num_bounds_t  ngx_http_aibrix_block_size_bounds = {
    NULL, 1, 65536
};

static ngx_conf_num_bounds_t  ngx_http_aibrix_imbalance_bounds = {
    NULL, 0, 1000000
};


static ngx_command_t  ngx_http_aibrix_commands[] = {

    { ngx_string("aibrix_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_2MORE,
      ngx_http_aibrix_zone,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("aibrix"),
      NGX_HTTP_UPS_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE12,
      ngx_http_aibrix,
      NGX_HTTP_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("aibrix_override"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_UPS_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_SRV_CONF_OFFSET,
      offsetof(ngx_http_aibrix_srv_conf_t, override),
      NULL },

    { ngx_string("aibrix_block_size"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_UPS_CONF|NGX_CONF_TAKE1,
      ngx_http_aibrix_number,
      NGX_HTTP_SRV_CONF_OFFSET,
      offsetof(ngx_http_aibrix_srv_conf_t, block_size),
      &ngx_http_aibrix_block_size_bounds },

    { ngx_string("aibrix_imbalance"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_UPS_CONF|NGX_CONF_TAKE1,
      ngx_http_aibrix_number,
      NGX_HTTP_SRV_CONF_OFFSET,
      offsetof(ngx_http_aibrix_srv_conf_t, imbalance),
      &ngx_http_aibrix_imbalance_bounds },

    { ngx_string("aibrix_stddev_factor"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_UPS_CONF|NGX_CONF_TAKE1,
      ngx_http_aibrix_factor,
      NGX_HTTP_SRV_CONF_OFFSET,
      offsetof(ngx_http_aibrix_srv_conf_t, stddev_factor),
      NULL },

    { ngx_string("aibrix_max_prompt"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_UPS_CONF|NGX_CONF_TAKE1,
      ngx_http_aibrix_size,
      NGX_HTTP_SRV_CONF_OFFSET,
      offsetof(ngx_http_aibrix_srv_conf_t, max_prompt),
      NULL },

    { ngx_string("aibrix_read_body"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_aibrix_loc_conf_t, read_body),
      NULL },

    { ngx_string("aibrix_headers"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_aibrix_loc_conf_t, headers),
      NULL },

    { ngx_string("aibrix_sse"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_aibrix_loc_conf_t, sse),
      NULL },

    { ngx_string("aibrix_explain"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_aibrix_loc_conf_t, explain),
      NULL },

    { ngx_string("aibrix_metrics"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_aibrix_metrics,
      0,
      0,
      NULL },

    { ngx_string("aibrix_status"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE1,
      ngx_http_aibrix_status,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_aibrix_module_ctx = {
    ngx_http_aibrix_preconfiguration,      /* preconfiguration */
    ngx_http_aibrix_postconfiguration,     /* postconfiguration */

    ngx_http_aibrix_create_main_conf,      /* create main configuration */
    NULL,                                  /* init main configuration */

    ngx_http_aibrix_create_srv_conf,       /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_aibrix_create_loc_conf,       /* create location configuration */
    ngx_http_aibrix_merge_loc_conf         /* merge location configuration */
};


ngx_module_t  ngx_http_aibrix_module = {
    NGX_MODULE_V1,
    &ngx_http_aibrix_module_ctx,           /* module context */
    ngx_http_aibrix_commands,              /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    ngx_http_aibrix_init_process,          /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_aibrix_exit_process,          /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_int_t
ngx_http_aibrix_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                     i;
    ngx_http_aibrix_zone_t       **zones;
    ngx_http_aibrix_main_conf_t   *amcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    amcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_aibrix_module);

    if (amcf == NULL) {
        return NGX_OK;
    }

    zones = amcf->zones.elts;

    for (i = 0; i < amcf->zones.nelts; i++) {
        (void) ngx_http_aibrix_row(zones[i]);
        ngx_http_aibrix_sweep(zones[i], 1);
    }

    return NGX_OK;
}


static void
ngx_http_aibrix_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                       i, n;
    ngx_http_aibrix_zone_t         **zones;
    ngx_http_aibrix_srv_conf_t      *conf;
    ngx_http_aibrix_main_conf_t     *amcf;
    ngx_http_upstream_srv_conf_t   **uscfp;
    ngx_http_upstream_main_conf_t   *umcf;

    amcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_aibrix_module);

    if (amcf == NULL) {
        return;
    }

    zones = amcf->zones.elts;

    for (i = 0; i < amcf->zones.nelts; i++) {
        ngx_http_aibrix_detach(zones[i]);
    }

    umcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_upstream_module);
    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->srv_conf == NULL) {
            continue;
        }

        conf = ngx_http_conf_upstream_srv_conf(uscfp[i],
                                               ngx_http_aibrix_module);

        for (n = 0; n < 2; n++) {
            ngx_http_aibrix_free_map(&conf->map[n]);
        }
    }
}


static void *
ngx_http_aibrix_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_aibrix_main_conf_t  *amcf;

    amcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_aibrix_main_conf_t));
    if (amcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&amcf->zones, cf->pool, 1,
                       sizeof(ngx_http_aibrix_zone_t *))
        != NGX_OK)
    {
        return NULL;
    }

    return amcf;
}


static void *
ngx_http_aibrix_create_srv_conf(ngx_conf_t *cf)
{
    ngx_http_aibrix_srv_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_aibrix_srv_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->override = NGX_CONF_UNSET;
    conf->block_size = NGX_CONF_UNSET;
    conf->imbalance = NGX_CONF_UNSET;
    conf->stddev_factor = NGX_CONF_UNSET;
    conf->max_prompt = NGX_CONF_UNSET_SIZE;

    return conf;
}


static void *
ngx_http_aibrix_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_aibrix_loc_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_aibrix_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    /* set by ngx_pcalloc(): control = 0 */

    conf->read_body = NGX_CONF_UNSET;
    conf->headers = NGX_CONF_UNSET;
    conf->sse = NGX_CONF_UNSET;
    conf->explain = NGX_CONF_UNSET;

    return conf;
}


static char *
ngx_http_aibrix_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_aibrix_loc_conf_t  *prev = parent;
    ngx_http_aibrix_loc_conf_t  *conf = child;

    ngx_conf_merge_value(conf->read_body, prev->read_body, 0);
    ngx_conf_merge_value(conf->headers, prev->headers, 1);
    ngx_conf_merge_value(conf->sse, prev->sse, 1);
    ngx_conf_merge_value(conf->explain, prev->explain, 0);

    return NGX_CONF_OK;
}


static char *
ngx_http_aibrix(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_aibrix_srv_conf_t  *ascf = conf;

    ngx_str_t                         *value, names;
    ngx_uint_t                         i;
    const aibrix_strategy_t           *s;
    ngx_http_upstream_srv_conf_t      *uscf;
    ngx_http_compile_complex_value_t   ccv;

    if (ascf->enabled) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "zone=", 5) == 0) {

            if (ascf->zone_name.len) {
                return "has two zone parameters; keep one";
            }

            ascf->zone_name.len = value[i].len - 5;
            ascf->zone_name.data = value[i].data + 5;

            if (ascf->zone_name.len == 0) {
                return "has an empty zone name; name a zone that "
                       "\"aibrix_zone\" declares";
            }

            continue;
        }

        if (ascf->strategy) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\": one strategy and "
                               "\"zone=name\" are all that \"aibrix\" takes",
                               &value[i]);
            return NGX_CONF_ERROR;
        }

        ascf->strategy = ngx_pcalloc(cf->pool,
                                     sizeof(ngx_http_complex_value_t));
        if (ascf->strategy == NULL) {
            return NGX_CONF_ERROR;
        }

        ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

        ccv.cf = cf;
        ccv.value = &value[i];
        ccv.complex_value = ascf->strategy;

        if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
            return NGX_CONF_ERROR;
        }

        if (ascf->strategy->lengths == NULL
            && aibrix_strategy_find((char *) value[i].data, value[i].len)
               == NULL)
        {
            names.data = ngx_pnalloc(cf->pool, 256);
            if (names.data == NULL) {
                return NGX_CONF_ERROR;
            }

            names.len = 0;

            for (s = aibrix_strategies; s->name != NULL; s++) {
                names.len = ngx_snprintf(names.data + names.len,
                                         256 - names.len, "%s\"%s\"",
                                         names.len ? ", " : "", s->name)
                            - names.data;
            }

            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "unknown strategy \"%V\", use one of %V",
                               &value[i], &names);
            return NGX_CONF_ERROR;
        }
    }

    uscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_upstream_module);

    if (uscf->peer.init_upstream) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "load balancing method redefined");
    }

    uscf->peer.init_upstream = ngx_http_aibrix_init_upstream;

    uscf->flags = NGX_HTTP_UPSTREAM_CREATE
                  |NGX_HTTP_UPSTREAM_MODIFY
                  |NGX_HTTP_UPSTREAM_WEIGHT
                  |NGX_HTTP_UPSTREAM_MAX_CONNS
                  |NGX_HTTP_UPSTREAM_MAX_FAILS
                  |NGX_HTTP_UPSTREAM_FAIL_TIMEOUT
                  |NGX_HTTP_UPSTREAM_DOWN
                  |NGX_HTTP_UPSTREAM_BACKUP;

    ascf->enabled = 1;
    ascf->upstream = uscf->host;

    return NGX_CONF_OK;
}


static char *
ngx_http_aibrix_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ssize_t                  size;
    ngx_int_t                ttl;
    ngx_str_t               *value, s;
    ngx_uint_t               i, ttl_set;
    ngx_http_aibrix_zone_t  *zone;

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "has an empty name; name the zone";
    }

    size = ngx_parse_size(&value[2]);

    if (size == NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone size \"%V\", write it as in \"64m\"",
                           &value[2]);
        return NGX_CONF_ERROR;
    }

    zone = ngx_http_aibrix_add_zone(cf, &value[1], size);
    if (zone == NULL) {
        return NGX_CONF_ERROR;
    }

    ttl_set = 0;

    for (i = 3; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "ttl=", 4) == 0) {

            if (ttl_set) {
                return "has two ttl parameters; keep one";
            }

            s.len = value[i].len - 4;
            s.data = value[i].data + 4;

            ttl = ngx_parse_time(&s, 0);

            if (ttl == NGX_ERROR || ttl == 0 || ttl > NGX_HTTP_AIBRIX_MAX_TTL)
            {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "invalid ttl \"%V\", write a time such as "
                                   "\"20m\", at most \"10000d\"", &s);
                return NGX_CONF_ERROR;
            }

            zone->ttl = ttl;
            ttl_set = 1;
            continue;
        }

        if (ngx_strncmp(value[i].data, "seed=", 5) == 0) {

            if (zone->seed_set) {
                return "has two seed parameters; keep one";
            }

            s.len = value[i].len - 5;
            s.data = value[i].data + 5;

            if (ngx_http_aibrix_parse_seed(&s, &zone->seed) != NGX_OK) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "invalid seed \"%V\", write a decimal "
                                   "number from 0 to 18446744073709551615",
                                   &s);
                return NGX_CONF_ERROR;
            }

            zone->seed_set = 1;
            continue;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\", \"aibrix_zone\" takes "
                           "a name, a size, \"ttl=time\" and \"seed=number\"",
                           &value[i]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* ngx_atoi() stops at half of the range. */

static ngx_int_t
ngx_http_aibrix_parse_seed(ngx_str_t *s, uint64_t *seed)
{
    size_t    i;
    uint64_t  n, d;

    n = 0;

    for (i = 0; i < s->len; i++) {
        d = s->data[i] - '0';

        if (d > 9 || n > (UINT64_MAX - d) / 10) {
            return NGX_ERROR;
        }

        n = n * 10 + d;
    }

    *seed = n;

    return s->len ? NGX_OK : NGX_ERROR;
}


/* As ngx_conf_set_num_slot(), but the message says what is allowed. */

static char *
ngx_http_aibrix_number(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_int_t              *np;
    ngx_str_t              *value;
    ngx_conf_num_bounds_t  *bounds;

    np = (ngx_int_t *) (p + cmd->offset);
    bounds = cmd->post;

    if (*np != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;

    *np = ngx_atoi(value[1].data, value[1].len);

    if (*np == NGX_ERROR || *np < bounds->low || *np > bounds->high) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive, it "
                           "must be a number from %i to %i",
                           &value[1], &cmd->name, bounds->low, bounds->high);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_aibrix_size(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    size_t     *sp;
    ssize_t     size;
    ngx_str_t  *value;

    sp = (size_t *) (p + cmd->offset);

    if (*sp != NGX_CONF_UNSET_SIZE) {
        return "is duplicate";
    }

    value = cf->args->elts;

    size = ngx_parse_size(&value[1]);

    if (size == NGX_ERROR || size == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive, it "
                           "must be a size above 0 such as \"64k\" or \"1m\"",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    *sp = size;

    return NGX_CONF_OK;
}


static char *
ngx_http_aibrix_factor(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_int_t  *np;
    ngx_str_t  *value;

    np = (ngx_int_t *) (p + cmd->offset);

    if (*np != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;

    *np = ngx_atofp(value[1].data, value[1].len, 2);

    if (*np == NGX_ERROR || (value[1].len == 1 && value[1].data[0] == '.')) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid factor \"%V\", write a number such as "
                           "\"2\" or \"1.5\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_aibrix_preconfiguration(ngx_conf_t *cf)
{
    return ngx_http_aibrix_add_variables(cf);
}


/* Parameters of a method that an upstream does not use would be lost. */

static ngx_int_t
ngx_http_aibrix_check_upstreams(ngx_conf_t *cf)
{
    ngx_uint_t                       i;
    ngx_http_aibrix_srv_conf_t      *conf;
    ngx_http_upstream_srv_conf_t   **uscfp;
    ngx_http_upstream_main_conf_t   *umcf;

    umcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_upstream_module);
    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->srv_conf == NULL) {
            continue;
        }

        conf = ngx_http_conf_upstream_srv_conf(uscfp[i],
                                               ngx_http_aibrix_module);

        if (conf->enabled) {

            if (conf->zone == NULL) {
                ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                              "\"aibrix\" in upstream \"%V\" in %s:%ui is "
                              "overridden by a later load balancing method; "
                              "keep one of them",
                              &uscfp[i]->host, uscfp[i]->file_name,
                              uscfp[i]->line);
                return NGX_ERROR;
            }

            continue;
        }

        if (conf->override != NGX_CONF_UNSET
            || conf->block_size != NGX_CONF_UNSET
            || conf->imbalance != NGX_CONF_UNSET
            || conf->stddev_factor != NGX_CONF_UNSET
            || conf->max_prompt != NGX_CONF_UNSET_SIZE)
        {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "upstream \"%V\" in %s:%ui sets \"aibrix_...\" "
                          "parameters without \"aibrix;\"; add it or remove "
                          "them",
                          &uscfp[i]->host, uscfp[i]->file_name,
                          uscfp[i]->line);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_aibrix_postconfiguration(ngx_conf_t *cf)
{
    ngx_str_t                     name = ngx_string("request_id");
    ngx_http_aibrix_main_conf_t  *amcf;

    if (ngx_http_aibrix_check_upstreams(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    amcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_aibrix_module);

    amcf->request_id = ngx_http_get_variable_index(cf, &name);
    if (amcf->request_id == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (ngx_http_aibrix_request_init(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_aibrix_response_init(cf);
}
