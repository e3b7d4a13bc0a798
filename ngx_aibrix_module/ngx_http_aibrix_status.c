
#include "ngx_http_aibrix_output.h"
#include "ngx_http_aibrix_page.h"


/* A list of peers may grow while room for it is made. */

#define NGX_HTTP_AIBRIX_SPARE  16


/* What the lock of a list of peers guards: copied under it, printed after. */

typedef struct {
    ngx_uint_t     weight;
    ngx_uint_t     conns;
    ngx_uint_t     fails;
    uint32_t       id;
    uint16_t       server_len;
    uint16_t       name_len;
    u_char         server[AIBRIX_NAME_MAX];
    u_char         name[AIBRIX_NAME_MAX];
    const char    *state;
} ngx_http_aibrix_fact_t;


static ngx_int_t ngx_http_aibrix_status_handler(ngx_http_request_t *r);
static ngx_uint_t ngx_http_aibrix_wants_page(ngx_http_request_t *r);
static ngx_uint_t ngx_http_aibrix_accepts(ngx_str_t *value, const char *type);
static ngx_int_t ngx_http_aibrix_send_page(ngx_http_request_t *r);
static ngx_int_t ngx_http_aibrix_no_store(ngx_http_request_t *r);
static ngx_int_t ngx_http_aibrix_send_state(ngx_http_request_t *r);
static void ngx_http_aibrix_print_bounds(ngx_http_aibrix_output_t *out,
    ngx_http_aibrix_zone_t *zone);
static void ngx_http_aibrix_print_zone(ngx_http_aibrix_output_t *out,
    ngx_http_aibrix_zone_t *zone);
static void ngx_http_aibrix_print_reasons(ngx_http_aibrix_output_t *out,
    aibrix_stats_t *stats);
static void ngx_http_aibrix_print_fallbacks(ngx_http_aibrix_output_t *out,
    aibrix_stats_t *stats);
static void ngx_http_aibrix_print_recent(ngx_http_aibrix_output_t *out,
    aibrix_zone_t *z);
static void ngx_http_aibrix_print_decision(ngx_http_aibrix_output_t *out,
    aibrix_zone_t *z, const aibrix_decision_t *d);
static ngx_int_t ngx_http_aibrix_print_upstream(ngx_http_aibrix_output_t *out,
    ngx_http_aibrix_srv_conf_t *conf, ngx_http_upstream_rr_peers_t *peers);
static ngx_http_aibrix_fact_t *ngx_http_aibrix_gather(ngx_pool_t *pool,
    ngx_http_aibrix_srv_conf_t *conf, ngx_http_upstream_rr_peers_t *peers,
    ngx_http_aibrix_map_t *map, ngx_uint_t *n);
static void ngx_http_aibrix_note(ngx_http_aibrix_fact_t *f,
    ngx_http_upstream_rr_peers_t *peers, ngx_http_upstream_rr_peer_t *peer);
static const char *ngx_http_aibrix_state(ngx_http_upstream_rr_peers_t *peers,
    ngx_http_upstream_rr_peer_t *peer);
static void ngx_http_aibrix_print_peer(ngx_http_aibrix_output_t *out,
    aibrix_zone_t *z, ngx_http_aibrix_fact_t *f, ngx_uint_t backup);
static void ngx_http_aibrix_print_learned(ngx_http_aibrix_output_t *out,
    aibrix_zone_t *z, uint32_t peer);
static void ngx_http_aibrix_print_counts(ngx_http_aibrix_output_t *out,
    const aibrix_peer_stats_t *st);
static void ngx_http_aibrix_print_hist(ngx_http_aibrix_output_t *out,
    const char *name, const aibrix_hist_t *h);
static void ngx_http_aibrix_print_string(ngx_http_aibrix_output_t *out,
    const char *name, const void *data, size_t len);


static ngx_str_t  ngx_http_aibrix_json_type =
    ngx_string("application/json");
static ngx_str_t  ngx_http_aibrix_page_type =
    ngx_string("text/html; charset=utf-8");


char *
ngx_http_aibrix_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_aibrix_loc_conf_t  *lcf = conf;

    ngx_str_t                 *value;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler) {
        return "is not alone: the location has another content handler";
    }

    if (cf->args->nelts == 2) {
        value = cf->args->elts;

        if (ngx_strcmp(value[1].data, "control=on") == 0) {
            lcf->control = 1;

        } else if (ngx_strcmp(value[1].data, "control=off") != 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\", use \"control=on\" "
                               "or \"control=off\"", &value[1]);
            return NGX_CONF_ERROR;
        }
    }

    clcf->handler = ngx_http_aibrix_status_handler;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_aibrix_status_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_http_aibrix_loc_conf_t  *lcf;

    lcf = ngx_http_get_module_loc_conf(r, ngx_http_aibrix_module);

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))
        && !(lcf->control && r->method == NGX_HTTP_POST))
    {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_aibrix_no_store(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (r->method == NGX_HTTP_POST) {
        return ngx_http_aibrix_control(r);
    }

    if (ngx_http_aibrix_wants_page(r)) {
        return ngx_http_aibrix_send_page(r);
    }

    return ngx_http_aibrix_send_state(r);
}


/* One address serves a page and JSON: neither may be taken for the other. */

static ngx_int_t
ngx_http_aibrix_no_store(ngx_http_request_t *r)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    ngx_str_set(&h->key, "Cache-Control");
    ngx_str_set(&h->value, "no-store");
    h->lowcase_key = (u_char *) "cache-control";
    ngx_http_aibrix_header_last(h);

    return NGX_OK;
}


/*
 * A browser names text/html in Accept; who names JSON, or nothing, gets that.
 * "format=json" and "format=html" in the arguments overrule it.
 */

static ngx_uint_t
ngx_http_aibrix_wants_page(ngx_http_request_t *r)
{
    ngx_str_t         format;
    ngx_uint_t        n, page;
    ngx_table_elt_t  *h;

    if (ngx_http_arg(r, (u_char *) "format", 6, &format) == NGX_OK) {
        return format.len == 4 && ngx_strncmp(format.data, "html", 4) == 0;
    }

    page = 0;

    for (n = 0; /* void */ ; n++) {
        h = ngx_http_aibrix_find_header(&r->headers_in.headers, "Accept", n);

        if (h == NULL) {
            return page;
        }

        if (ngx_http_aibrix_accepts(&h->value, "application/json")) {
            return 0;
        }

        page |= ngx_http_aibrix_accepts(&h->value, "text/html");
    }
}


static ngx_uint_t
ngx_http_aibrix_accepts(ngx_str_t *value, const char *type)
{
    return ngx_strlcasestrn(value->data, value->data + value->len,
                            (u_char *) type, ngx_strlen(type) - 1)
           != NULL;
}


static ngx_int_t
ngx_http_aibrix_send_page(ngx_http_request_t *r)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->pos = (u_char *) ngx_http_aibrix_page;
    b->last = b->pos + sizeof(ngx_http_aibrix_page) - 1;
    b->memory = 1;
    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_type = ngx_http_aibrix_page_type;
    r->headers_out.content_type_len = sizeof("text/html") - 1;
    r->headers_out.content_length_n = b->last - b->pos;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


static ngx_int_t
ngx_http_aibrix_send_state(ngx_http_request_t *r)
{
    ngx_uint_t                       i, n;
    ngx_http_aibrix_zone_t         **zones;
    ngx_http_aibrix_output_t         out;
    ngx_http_aibrix_srv_conf_t      *conf;
    ngx_http_aibrix_loc_conf_t      *lcf;
    ngx_http_aibrix_main_conf_t     *amcf;
    ngx_http_upstream_srv_conf_t   **uscfp;
    ngx_http_upstream_main_conf_t   *umcf;

    lcf = ngx_http_get_module_loc_conf(r, ngx_http_aibrix_module);
    amcf = ngx_http_get_module_main_conf(r, ngx_http_aibrix_module);
    zones = amcf->zones.elts;

    ngx_http_aibrix_output_init(&out, r->pool);

    ngx_http_aibrix_printf(&out, "{\"version\":1,\"time\":%T.%03M,"
                           "\"control\":%s,\"zones\":[",
                           ngx_cached_time->sec,
                           (ngx_msec_t) ngx_cached_time->msec,
                           lcf->control ? "true" : "false");

    for (i = 0; i < amcf->zones.nelts; i++) {
        ngx_http_aibrix_sweep(zones[i], 1);

        ngx_http_aibrix_printf(&out, i ? ",{" : "{");
        ngx_http_aibrix_print_zone(&out, zones[i]);
        ngx_http_aibrix_printf(&out, "}");
    }

    ngx_http_aibrix_printf(&out, "],\"upstreams\":[");

    umcf = ngx_http_get_module_main_conf(r, ngx_http_upstream_module);
    uscfp = umcf->upstreams.elts;

    for (i = 0, n = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->srv_conf == NULL) {
            continue;
        }

        conf = ngx_http_conf_upstream_srv_conf(uscfp[i],
                                               ngx_http_aibrix_module);

        if (!conf->enabled) {
            continue;
        }

        ngx_http_aibrix_printf(&out, n++ ? ",{" : "{");

        if (ngx_http_aibrix_print_upstream(&out, conf, uscfp[i]->peer.data)
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ngx_http_aibrix_printf(&out, "}");
    }

    ngx_http_aibrix_printf(&out, "]}\n");

    return ngx_http_aibrix_send(r, &out, &ngx_http_aibrix_json_type);
}


static void
ngx_http_aibrix_print_zone(ngx_http_aibrix_output_t *out,
    ngx_http_aibrix_zone_t *zone)
{
    aibrix_stats_t       *stats;
    aibrix_index_stat_t   st;

    stats = aibrix_zone_stats(zone->z);

    ngx_http_aibrix_print_string(out, "name", zone->shm_zone->shm.name.data,
                                 zone->shm_zone->shm.name.len);

    aibrix_index_stat(aibrix_zone_index(zone->z), &st);

    ngx_http_aibrix_printf(out, ",\"ttl\":%uL.%03uL,\"index\":{"
                           "\"blocks\":%uL,\"capacity\":%uL,"
                           "\"inserts\":%uL,\"evictions\":%uL,"
                           "\"oldest\":%uL},",
                           zone->ttl / 1000, zone->ttl % 1000,
                           st.blocks, st.capacity, st.inserts, st.evictions,
                           ngx_http_aibrix_oldest(zone) / 1000);

    ngx_http_aibrix_print_bounds(out, zone);
    ngx_http_aibrix_print_reasons(out, stats);
    ngx_http_aibrix_print_fallbacks(out, stats);
    ngx_http_aibrix_print_recent(out, zone->z);
}


/* Upper bounds of the buckets of each histogram, in seconds. */

static void
ngx_http_aibrix_print_bounds(ngx_http_aibrix_output_t *out,
    ngx_http_aibrix_zone_t *zone)
{
    uint32_t              i, n;
    const aibrix_hist_t  *h[3];
    aibrix_peer_stats_t   st;

    static const char *const  names[] = { "ttft", "gap", "duration" };

    /* what no peer has is read as empty */

    ngx_memzero(&st, sizeof(aibrix_peer_stats_t));

    (void) aibrix_stats_peer_read(aibrix_zone_stats(zone->z), AIBRIX_NO_PEER,
                                  &st);

    h[0] = &st.all.ttft;
    h[1] = &st.all.gap;
    h[2] = &st.all.duration;

    ngx_http_aibrix_printf(out, "\"bounds\":{");

    for (n = 0; n < 3; n++) {
        ngx_http_aibrix_printf(out, "%s\"%s\":[", n ? "," : "", names[n]);

        for (i = 0; i < h[n]->n; i++) {
            ngx_http_aibrix_printf(out, "%s%.3f", i ? "," : "",
                                   (double) h[n]->bounds[i]
                                   / h[n]->per_second);
        }

        ngx_http_aibrix_printf(out, "]");
    }

    ngx_http_aibrix_printf(out, "},");
}


static void
ngx_http_aibrix_print_reasons(ngx_http_aibrix_output_t *out,
    aibrix_stats_t *stats)
{
    uint32_t               m, i;
    uint64_t               selections[AIBRIX_SELECTIONS];
    uint64_t               errors[AIBRIX_ERRORS];
    aibrix_model_stats_t   model;

    ngx_memzero(selections, sizeof(selections));
    ngx_memzero(errors, sizeof(errors));

    for (m = 0; m <= AIBRIX_MODELS; m++) {

        if (!aibrix_stats_model_read(stats, m, &model)) {
            continue;
        }

        for (i = 0; i < AIBRIX_SELECTIONS; i++) {
            selections[i] += model.selections[i];
        }

        for (i = 0; i < AIBRIX_ERRORS; i++) {
            errors[i] += model.errors[i];
        }
    }

    ngx_http_aibrix_printf(out, "\"selections\":{");

    for (i = 0; i < AIBRIX_SELECTIONS; i++) {
        ngx_http_aibrix_printf(out, "%s\"%s\":%uL", i ? "," : "",
                               aibrix_selection_name(i), selections[i]);
    }

    ngx_http_aibrix_printf(out, "},\"errors\":{");

    for (i = 0; i < AIBRIX_ERRORS; i++) {
        ngx_http_aibrix_printf(out, "%s\"%s\":%uL", i ? "," : "",
                               aibrix_error_label(i), errors[i]);
    }

    ngx_http_aibrix_printf(out, "},");
}


static void
ngx_http_aibrix_print_fallbacks(ngx_http_aibrix_output_t *out,
    aibrix_stats_t *stats)
{
    uint32_t  i, s;
    uint64_t  n;

    ngx_http_aibrix_printf(out, "\"fallbacks\":{");

    for (i = 0; i < AIBRIX_FALLBACKS; i++) {
        n = 0;

        for (s = 0; s < AIBRIX_STRATEGIES; s++) {
            n += aibrix_stats_fallbacks(stats, s, i);
        }

        ngx_http_aibrix_printf(out, "%s\"%s\":%uL", i ? "," : "",
                               aibrix_fallback_label(i), n);
    }

    ngx_http_aibrix_printf(out, "},");
}


static void
ngx_http_aibrix_print_recent(ngx_http_aibrix_output_t *out, aibrix_zone_t *z)
{
    size_t             i, n;
    aibrix_decision_t  recent[AIBRIX_RECENT];

    n = aibrix_stats_recent(aibrix_zone_stats(z), recent, AIBRIX_RECENT);

    ngx_http_aibrix_printf(out, "\"recent\":[");

    for (i = 0; i < n; i++) {
        ngx_http_aibrix_printf(out, i ? ",{" : "{");
        ngx_http_aibrix_print_decision(out, z, &recent[i]);
        ngx_http_aibrix_printf(out, "}");
    }

    ngx_http_aibrix_printf(out, "]");
}


static void
ngx_http_aibrix_print_decision(ngx_http_aibrix_output_t *out,
    aibrix_zone_t *z, const aibrix_decision_t *d)
{
    aibrix_span_t         model;
    const aibrix_peer_t  *peer;

    ngx_http_aibrix_printf(out, "\"time\":%uL.%03uL,",
                           d->at / 1000, d->at % 1000);

    model = aibrix_stats_model_name(aibrix_zone_stats(z), d->model);

    if (model.data) {
        ngx_http_aibrix_print_string(out, "model", model.data, model.len);
        ngx_http_aibrix_printf(out, ",");
    }

    if (aibrix_zone_peer_used(z, d->peer)) {
        peer = aibrix_zone_peer(z, d->peer);

        ngx_http_aibrix_print_string(out, "upstream", peer->upstream,
                                     peer->upstream_len);
        ngx_http_aibrix_printf(out, ",");
        ngx_http_aibrix_print_string(out, "server", peer->server,
                                     peer->server_len);
        ngx_http_aibrix_printf(out, ",");
        ngx_http_aibrix_print_string(out, "address", peer->name,
                                     peer->name_len);
        ngx_http_aibrix_printf(out, ",");
    }

    ngx_http_aibrix_printf(out, "\"strategy\":\"%s\",\"selection\":\"%s\","
                           "\"match_percent\":%uD,\"blocks\":%uD,"
                           "\"matched\":%uD,\"imbalanced\":%s,"
                           "\"microseconds\":%uL.%03uL",
                           aibrix_strategy_name(d->strategy),
                           aibrix_selection_name(d->selection),
                           d->percent, d->blocks, d->matched,
                           d->imbalanced ? "true" : "false",
                           d->ns / 1000, d->ns % 1000);
}


static ngx_int_t
ngx_http_aibrix_print_upstream(ngx_http_aibrix_output_t *out,
    ngx_http_aibrix_srv_conf_t *conf, ngx_http_upstream_rr_peers_t *peers)
{
    uint32_t                 any;
    ngx_str_t                strategy, *zone;
    ngx_uint_t               i, n, backup, printed;
    ngx_http_aibrix_fact_t  *facts;

    ngx_str_set(&strategy, AIBRIX_STRATEGY_DEFAULT);

    if (conf->strategy) {
        strategy = conf->strategy->value;
    }

    zone = &conf->zone->shm_zone->shm.name;

    ngx_http_aibrix_print_string(out, "name", conf->upstream.data,
                                 conf->upstream.len);
    ngx_http_aibrix_printf(out, ",");
    ngx_http_aibrix_print_string(out, "zone", zone->data, zone->len);
    ngx_http_aibrix_printf(out, ",");
    ngx_http_aibrix_print_string(out, "strategy", strategy.data,
                                 strategy.len);
    ngx_http_aibrix_printf(out, ",\"block_size\":%i,\"peers\":[",
                           conf->block_size);

    any = AIBRIX_NO_PEER;
    printed = 0;

    for (backup = 0; peers && backup < 2; backup++, peers = peers->next) {

        facts = ngx_http_aibrix_gather(out->pool, conf, peers,
                                       &conf->map[backup], &n);
        if (facts == NULL) {
            return NGX_ERROR;
        }

        for (i = 0; i < n; i++) {
            ngx_http_aibrix_printf(out, printed++ ? ",{" : "{");
            ngx_http_aibrix_print_peer(out, conf->zone->z, &facts[i], backup);
            ngx_http_aibrix_printf(out, "}");

            if (facts[i].id != AIBRIX_NO_PEER) {
                any = facts[i].id;
            }
        }
    }

    ngx_http_aibrix_printf(out, "],\"learned\":");
    ngx_http_aibrix_print_learned(out, conf->zone->z, any);

    return NGX_OK;
}


/* The map is this process's own, so that reading the list may renew it. */

static ngx_http_aibrix_fact_t *
ngx_http_aibrix_gather(ngx_pool_t *pool, ngx_http_aibrix_srv_conf_t *conf,
    ngx_http_upstream_rr_peers_t *peers, ngx_http_aibrix_map_t *map,
    ngx_uint_t *n)
{
    ngx_int_t                     rc;
    ngx_uint_t                    i, room;
    ngx_http_aibrix_fact_t       *facts;
    ngx_http_upstream_rr_peer_t  *peer;

    room = peers->number;

    for ( ;; ) {
        room += NGX_HTTP_AIBRIX_SPARE;

        facts = ngx_palloc(pool, room * sizeof(ngx_http_aibrix_fact_t));
        if (facts == NULL) {
            return NULL;
        }

        ngx_http_upstream_rr_peers_rlock(peers);

        rc = NGX_OK;

        if (ngx_http_aibrix_map_is_stale(conf, map, peers)) {
            rc = ngx_http_aibrix_update_map(conf, map, peers);
        }

        if (rc == NGX_OK && map->count <= room) {
            break;
        }

        ngx_http_upstream_rr_peers_unlock(peers);

        if (rc != NGX_OK) {
            return NULL;
        }

        room = map->count;
    }

    for (peer = peers->peer, i = 0; peer; peer = peer->next, i++) {
        facts[i].id = map->ids[i];
        ngx_http_aibrix_note(&facts[i], peers, peer);
    }

    ngx_http_upstream_rr_peers_unlock(peers);

    *n = i;

    return facts;
}


static void
ngx_http_aibrix_note(ngx_http_aibrix_fact_t *f,
    ngx_http_upstream_rr_peers_t *peers, ngx_http_upstream_rr_peer_t *peer)
{
    f->weight = peer->weight;
    f->conns = peer->conns;
    f->fails = peer->fails;
    f->state = ngx_http_aibrix_state(peers, peer);

    f->server_len = (uint16_t) ngx_min(peer->server.len, AIBRIX_NAME_MAX);
    ngx_memcpy(f->server, peer->server.data, f->server_len);

    f->name_len = (uint16_t) ngx_min(peer->name.len, AIBRIX_NAME_MAX);
    ngx_memcpy(f->name, peer->name.data, f->name_len);
}


/* As the balancer sees it, see ngx_http_aibrix_eligible(). */

static const char *
ngx_http_aibrix_state(ngx_http_upstream_rr_peers_t *peers,
    ngx_http_upstream_rr_peer_t *peer)
{
    if (peer->down) {
        return "down";
    }

    if (!peers->single
        && peer->max_fails
        && peer->fails >= peer->max_fails
        && ngx_time() - peer->checked <= peer->fail_timeout)
    {
        return "failed";
    }

    if (peer->max_conns && peer->conns >= peer->max_conns) {
        return "full";
    }

    return "up";
}


static void
ngx_http_aibrix_print_peer(ngx_http_aibrix_output_t *out, aibrix_zone_t *z,
    ngx_http_aibrix_fact_t *f, ngx_uint_t backup)
{
    ngx_uint_t            known, drained;
    aibrix_load_sum_t     load;
    aibrix_peer_stats_t   st;

    /* a peer that the zone has no room for is balanced without all this */

    known = (f->id != AIBRIX_NO_PEER);
    drained = known && aibrix_zone_drained(z, f->id);

    ngx_memzero(&load, sizeof(aibrix_load_sum_t));
    ngx_memzero(&st, sizeof(aibrix_peer_stats_t));

    if (known) {
        aibrix_load_sum(aibrix_zone_load(z), f->id, &load);
        (void) aibrix_stats_peer_read(aibrix_zone_stats(z), f->id, &st);
    }

    ngx_http_aibrix_print_string(out, "server", f->server, f->server_len);
    ngx_http_aibrix_printf(out, ",");
    ngx_http_aibrix_print_string(out, "address", f->name, f->name_len);

    ngx_http_aibrix_printf(out, ",\"backup\":%s,\"state\":\"%s\","
                           "\"tracked\":%s,\"weight\":%ui,"
                           "\"connections\":%ui,\"recent_fails\":%ui,"
                           "\"inflight\":%uD,\"waiting\":%uD,"
                           "\"queued_bytes\":%uL",
                           backup ? "true" : "false",
                           drained ? "drained" : f->state,
                           known ? "true" : "false",
                           f->weight, f->conns, f->fails,
                           load.inflight, load.waiting, load.queued);

    ngx_http_aibrix_print_counts(out, &st);
}


/* It is learned by upstream; any of its peers stands for that. */

static void
ngx_http_aibrix_print_learned(ngx_http_aibrix_output_t *out,
    aibrix_zone_t *z, uint32_t peer)
{
    aibrix_learned_t  learned;

    if (peer == AIBRIX_NO_PEER) {
        ngx_http_aibrix_printf(out, "null");
        return;
    }

    aibrix_learn_get(aibrix_zone_learn(z), peer, aibrix_work_default.belief,
                     &learned);

    ngx_http_aibrix_printf(out, "{\"belief\":%.3f,\"room\":%.1f,"
                           "\"hit_ms\":%.3f,\"byte_ms\":%.6f}",
                           learned.belief, learned.room, learned.hit_ms,
                           learned.byte_ms);
}


static void
ngx_http_aibrix_print_counts(ngx_http_aibrix_output_t *out,
    const aibrix_peer_stats_t *st)
{
    uint32_t  i;

    ngx_http_aibrix_printf(out, ",\"requests\":%uL,\"fails\":%uL,"
                           "\"blocks\":%uL,\"matched\":%uL,"
                           "\"prompt_tokens\":%uL,\"completion_tokens\":%uL,"
                           "\"cached_tokens\":%uL,\"outcomes\":{",
                           st->decisions, st->fails, st->blocks, st->matched,
                           st->all.prompt_tokens, st->all.completion_tokens,
                           st->all.cached_tokens);

    for (i = 0; i < AIBRIX_OUTCOMES; i++) {
        ngx_http_aibrix_printf(out, "%s\"%s\":%uL", i ? "," : "",
                               aibrix_outcome_label(i), st->all.outcomes[i]);
    }

    ngx_http_aibrix_printf(out, "},\"match_share\":");

    if (st->blocks) {
        ngx_http_aibrix_printf(out, "%.4f",
                               (double) st->matched / st->blocks);
    } else {
        ngx_http_aibrix_printf(out, "null");
    }

    ngx_http_aibrix_print_hist(out, "ttft", &st->all.ttft);
    ngx_http_aibrix_print_hist(out, "gap", &st->all.gap);
    ngx_http_aibrix_print_hist(out, "duration", &st->all.duration);
}


/* In seconds; quantiles of nothing are null. */

static void
ngx_http_aibrix_print_hist(ngx_http_aibrix_output_t *out, const char *name,
    const aibrix_hist_t *h)
{
    uint32_t  i;

    ngx_http_aibrix_printf(out, ",\"%s\":{\"count\":%uL", name, h->count);

    if (h->count == 0) {
        ngx_http_aibrix_printf(out, ",\"sum\":0,\"p50\":null,\"p95\":null,"
                               "\"p99\":null,\"buckets\":[]}");
        return;
    }

    ngx_http_aibrix_printf(out, ",\"sum\":%.3f,\"p50\":%.4f,\"p95\":%.4f,"
                           "\"p99\":%.4f,\"buckets\":[",
                           (double) h->sum / h->per_second,
                           aibrix_hist_quantile(h, 0.5) / h->per_second,
                           aibrix_hist_quantile(h, 0.95) / h->per_second,
                           aibrix_hist_quantile(h, 0.99) / h->per_second);

    for (i = 0; i <= h->n; i++) {
        ngx_http_aibrix_printf(out, i ? ",%uL" : "%uL", h->bucket[i]);
    }

    ngx_http_aibrix_printf(out, "]}");
}


static void
ngx_http_aibrix_print_string(ngx_http_aibrix_output_t *out, const char *name,
    const void *data, size_t len)
{
    aibrix_span_t  s;

    s.data = data;
    s.len = len;

    ngx_http_aibrix_printf(out, "\"%s\":\"", name);
    ngx_http_aibrix_print_json(out, &s);
    ngx_http_aibrix_printf(out, "\"");
}
