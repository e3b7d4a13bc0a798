
#include "ngx_http_aibrix_module.h"


#define NGX_HTTP_AIBRIX_BITS  (8 * sizeof(uintptr_t))


static ngx_int_t ngx_http_aibrix_init_peer(ngx_http_request_t *r,
    ngx_http_upstream_srv_conf_t *us);
static ngx_int_t ngx_http_aibrix_strategy(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd);
static ngx_uint_t ngx_http_aibrix_header(ngx_http_request_t *r,
    ngx_str_t *value);
static void ngx_http_aibrix_bad_strategy(ngx_http_request_t *r,
    ngx_str_t *name);
static void ngx_http_aibrix_hash(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd);
static void ngx_http_aibrix_fall_back(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd);
static ngx_int_t ngx_http_aibrix_get_peer(ngx_peer_connection_t *pc,
    void *data);
static void ngx_http_aibrix_no_target(ngx_http_aibrix_peer_data_t *pd);
static ngx_int_t ngx_http_aibrix_get_from(ngx_peer_connection_t *pc,
    ngx_http_aibrix_peer_data_t *pd, ngx_http_upstream_rr_peers_t *peers,
    ngx_http_aibrix_map_t *map);
static ngx_uint_t ngx_http_aibrix_eligible(ngx_peer_connection_t *pc,
    ngx_http_aibrix_peer_data_t *pd, ngx_http_upstream_rr_peers_t *peers,
    ngx_http_aibrix_map_t *map);
static void ngx_http_aibrix_candidate(ngx_http_aibrix_map_t *map,
    ngx_uint_t n, ngx_http_upstream_rr_peer_t *peer, ngx_uint_t i);
static ngx_int_t ngx_http_aibrix_adopt_peers(ngx_http_aibrix_peer_data_t *pd,
    ngx_http_aibrix_map_t *map);
static ngx_int_t ngx_http_aibrix_clear_tried(ngx_http_aibrix_peer_data_t *pd,
    ngx_uint_t number);
static ngx_int_t ngx_http_aibrix_take(ngx_peer_connection_t *pc,
    ngx_http_aibrix_peer_data_t *pd, ngx_http_upstream_rr_peer_t *peer);
static void ngx_http_aibrix_free_peer(ngx_peer_connection_t *pc, void *data,
    ngx_uint_t state);
static void ngx_http_aibrix_release(ngx_http_aibrix_peer_data_t *pd);
static aibrix_outcome_e ngx_http_aibrix_outcome(
    ngx_http_aibrix_peer_data_t *pd);
static void ngx_http_aibrix_cleanup_peer(void *data);
static uint64_t ngx_http_aibrix_nanoseconds(void);
static void ngx_http_aibrix_where(ngx_http_upstream_srv_conf_t *us,
    ngx_conf_t *cf, const char *what, ngx_str_t *name);


/* The matches of one decision; what a strategy needs is copied from it. */

static uint32_t  ngx_http_aibrix_matched[AIBRIX_MAX_PEERS];


ngx_int_t
ngx_http_aibrix_init_upstream(ngx_conf_t *cf,
    ngx_http_upstream_srv_conf_t *us)
{
    ngx_str_t                      name = ngx_string("aibrix");
    ngx_uint_t                     i;
    ngx_http_aibrix_zone_t       **zones;
    ngx_http_aibrix_srv_conf_t    *conf, *http;
    ngx_http_aibrix_main_conf_t   *amcf;

    if (ngx_http_upstream_init_round_robin(cf, us) != NGX_OK) {
        return NGX_ERROR;
    }

    us->peer.init = ngx_http_aibrix_init_peer;

    conf = ngx_http_conf_upstream_srv_conf(us, ngx_http_aibrix_module);
    http = ngx_http_conf_get_module_srv_conf(cf, ngx_http_aibrix_module);

    /* upstreams are not merged with http{} by nginx */

    ngx_conf_init_value(http->override, 1);
    ngx_conf_init_value(http->block_size, 128);
    ngx_conf_init_value(http->imbalance, 16);
    ngx_conf_init_value(http->stddev_factor, 200);
    ngx_conf_init_size_value(http->max_prompt, 1024 * 1024);

    ngx_conf_merge_value(conf->override, http->override, 1);
    ngx_conf_merge_value(conf->block_size, http->block_size, 128);
    ngx_conf_merge_value(conf->imbalance, http->imbalance, 16);
    ngx_conf_merge_value(conf->stddev_factor, http->stddev_factor, 200);
    ngx_conf_merge_size_value(conf->max_prompt, http->max_prompt,
                              1024 * 1024);

    amcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_aibrix_module);

    if (conf->max_prompt > amcf->max_prompt) {
        amcf->max_prompt = conf->max_prompt;
    }

    zones = amcf->zones.elts;

    if (conf->zone_name.len) {

        for (i = 0; i < amcf->zones.nelts; i++) {
            name = zones[i]->shm_zone->shm.name;

            if (name.len == conf->zone_name.len
                && ngx_strncmp(name.data, conf->zone_name.data, name.len) == 0)
            {
                conf->zone = zones[i];
                return NGX_OK;
            }
        }

        ngx_http_aibrix_where(us, cf, "names an unknown zone \"%V\", declare "
                              "it with \"aibrix_zone\"", &conf->zone_name);
        return NGX_ERROR;
    }

    if (amcf->zones.nelts > 1) {
        name = zones[0]->shm_zone->shm.name;
        ngx_http_aibrix_where(us, cf, "must say which zone it uses, as in "
                              "\"aibrix zone=%V;\"", &name);
        return NGX_ERROR;
    }

    conf->zone = amcf->zones.nelts
                 ? zones[0]
                 : ngx_http_aibrix_add_zone(cf, &name,
                                            NGX_HTTP_AIBRIX_ZONE_SIZE);

    if (conf->zone == NULL) {
        ngx_http_aibrix_where(us, cf, "needs a zone of its own, declare one "
                              "with \"aibrix_zone\" under another name than "
                              "\"%V\"", &name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static void
ngx_http_aibrix_where(ngx_http_upstream_srv_conf_t *us, ngx_conf_t *cf,
    const char *what, ngx_str_t *name)
{
    u_char     *last, text[NGX_MAX_CONF_ERRSTR];

    last = ngx_snprintf(text, NGX_MAX_CONF_ERRSTR - 1, what, name);
    *last = '\0';

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "\"aibrix\" of upstream \"%V\" %s in %s:%ui",
                  &us->host, text, us->file_name, us->line);
}


static ngx_int_t
ngx_http_aibrix_init_peer(ngx_http_request_t *r,
    ngx_http_upstream_srv_conf_t *us)
{
    uint64_t                      start;
    ngx_pool_cleanup_t           *cln;
    ngx_http_aibrix_ctx_t        *ctx;
    ngx_http_aibrix_peer_data_t  *pd;

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "init aibrix peer");

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_aibrix_peer_data_t));
    if (cln == NULL) {
        return NGX_ERROR;
    }

    pd = cln->data;
    ngx_memzero(pd, sizeof(ngx_http_aibrix_peer_data_t));

    r->upstream->peer.data = &pd->rrp;

    if (ngx_http_upstream_init_round_robin_peer(r, us) != NGX_OK) {
        return NGX_ERROR;
    }

    cln->handler = ngx_http_aibrix_cleanup_peer;

    r->upstream->peer.get = ngx_http_aibrix_get_peer;
    r->upstream->peer.free = ngx_http_aibrix_free_peer;

    pd->request = r;
    pd->conf = ngx_http_conf_upstream_srv_conf(us, ngx_http_aibrix_module);

    ctx = ngx_http_aibrix_make_ctx(r, pd->conf->max_prompt);
    if (ctx == NULL) {
        return NGX_ERROR;
    }

    if (ctx->pd) {
        ngx_http_aibrix_parse_again(r, ctx, pd->conf->max_prompt);

    } else {
        ngx_http_aibrix_parse(r, ctx);
    }

    ctx->pd = pd;
    pd->ctx = ctx;

    if (ngx_http_aibrix_strategy(r, pd) != NGX_OK) {
        return NGX_ERROR;
    }

    pd->route.zone = pd->conf->zone->z;
    pd->route.row = ngx_http_aibrix_row(pd->conf->zone);
    pd->route.block_size = (uint32_t) pd->conf->block_size;
    pd->route.ttl_ms = pd->conf->zone->ttl;
    pd->route.matched = ngx_http_aibrix_matched;

    start = ngx_http_aibrix_nanoseconds();

    ngx_http_aibrix_hash(r, pd);

    pd->ns = ngx_http_aibrix_nanoseconds() - start;

    if (pd->route.strategy->wants_prompt && pd->route.blocks == 0) {
        ngx_http_aibrix_fall_back(r, pd);
    }

    return NGX_OK;
}


/* The header, else the directive's parameter, else the built-in default. */

static ngx_int_t
ngx_http_aibrix_strategy(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd)
{
    ngx_str_t  name;

    if (pd->conf->override && ngx_http_aibrix_header(r, &name)) {

        pd->route.strategy = aibrix_strategy_find((char *) name.data,
                                                  name.len);
        if (pd->route.strategy == NULL) {
            ngx_http_aibrix_bad_strategy(r, &name);
            return NGX_ERROR;
        }

        return NGX_OK;
    }

    if (pd->conf->strategy) {

        if (ngx_http_complex_value(r, pd->conf->strategy, &name) != NGX_OK) {
            return NGX_ERROR;
        }

        pd->route.strategy = aibrix_strategy_find((char *) name.data,
                                                  name.len);
        if (pd->route.strategy) {
            return NGX_OK;
        }

        if (name.len) {
            ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                          "unknown strategy \"%V\" in upstream \"%V\", "
                          "using \"%s\"", &name, &pd->conf->upstream,
                          AIBRIX_STRATEGY_DEFAULT);
        }
    }

    pd->route.strategy = aibrix_strategy_find(AIBRIX_STRATEGY_DEFAULT,
                                        sizeof(AIBRIX_STRATEGY_DEFAULT) - 1);

    return NGX_OK;
}


/* Non-zero when the request names a strategy; a blank name is none. */

static ngx_uint_t
ngx_http_aibrix_header(ngx_http_request_t *r, ngx_str_t *value)
{
    ngx_uint_t        n;
    ngx_table_elt_t  *h;

    for (n = 0; /* void */ ; n++) {
        h = ngx_http_aibrix_find_header(&r->headers_in.headers,
                                        "routing-strategy", n);
        if (h == NULL) {
            return 0;
        }

        *value = h->value;

        while (value->len && (value->data[0] == ' ' || value->data[0] == '\t'))
        {
            value->data++;
            value->len--;
        }

        while (value->len && (value->data[value->len - 1] == ' '
                              || value->data[value->len - 1] == '\t'))
        {
            value->len--;
        }

        if (value->len) {
            return 1;
        }
    }
}


static void
ngx_http_aibrix_bad_strategy(ngx_http_request_t *r, ngx_str_t *name)
{
    u_char                   *p, c, text[512];
    ngx_str_t                 message;
    ngx_uint_t                i;
    const aibrix_strategy_t  *s;

    p = ngx_cpymem(text, "incorrect routing strategy ",
                   sizeof("incorrect routing strategy ") - 1);

    /* bytes that are no printable ASCII would make JSON of no use */

    for (i = 0; i < name->len && i < 64; i++) {
        c = name->data[i];
        *p++ = (c < 0x20 || c > 0x7e) ? '?' : c;
    }

    for (s = aibrix_strategies; s->name != NULL; s++) {
        p = ngx_slprintf(p, text + sizeof(text), "%s%s",
                         (s == aibrix_strategies) ? "; use one of " : ", ",
                         s->name);
    }

    message.data = text;
    message.len = p - text;

    ngx_log_error(NGX_LOG_INFO, r->connection->log, 0, "%V", &message);

    ngx_http_aibrix_refuse(r, NGX_HTTP_BAD_REQUEST, &message);
}


static void
ngx_http_aibrix_hash(ngx_http_request_t *r, ngx_http_aibrix_peer_data_t *pd)
{
    size_t          n, len, max;
    uint64_t        seed, tenant;
    aibrix_span_t   model, *spans;
    aibrix_prompt_t  *prompt;

    prompt = pd->ctx->prompt;

    model.data = (char *) pd->ctx->model.data;
    model.len = pd->ctx->model.len;

    pd->model = aibrix_stats_model(aibrix_zone_stats(pd->route.zone), &model);

    if (prompt == NULL) {
        return;
    }

    len = aibrix_prompt_text_len(prompt);
    len = ngx_min(len, pd->conf->max_prompt);
    max = len / pd->conf->block_size;

    pd->route.prompt = len;

    if (max) {
        n = aibrix_prompt_text(prompt, NULL, 0);

        spans = ngx_alloc(n * sizeof(aibrix_span_t), r->connection->log);
        pd->hashes = ngx_alloc(max * sizeof(uint64_t), r->connection->log);

        if (spans && pd->hashes) {
            n = aibrix_prompt_text(prompt, spans, n);

            seed = pd->route.zone->seed;
            tenant = aibrix_prompt_tenant(prompt, seed);

            pd->route.blocks = (uint32_t)
                               aibrix_prefix_hash(spans, n,
                                                  pd->conf->block_size,
                                                  tenant ? tenant : seed,
                                                  pd->hashes, max);
            pd->route.hashes = pd->hashes;
        }

        if (spans) {
            ngx_free(spans);
        }
    }

    /* a stream may last for minutes, its prompt is not needed any more */

    ngx_http_aibrix_drop_prompt(pd->ctx);
}


/* Counts why a strategy has to do without the prompt that it wants. */

static void
ngx_http_aibrix_fall_back(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd)
{
    aibrix_fallback_e  reason;

    if (r->headers_in.content_length_n <= 0 && !r->headers_in.chunked) {
        reason = AIBRIX_FALLBACK_NO_BODY;

    } else if (!pd->ctx->json) {
        reason = AIBRIX_FALLBACK_NOT_JSON;

    } else if (pd->route.prompt >= (uint64_t) pd->conf->block_size) {
        reason = AIBRIX_FALLBACK_NO_MEMORY;

    } else {
        reason = AIBRIX_FALLBACK_NO_PROMPT;
    }

    aibrix_stats_fallback(aibrix_zone_stats(pd->route.zone),
                          (uint32_t) (pd->route.strategy - aibrix_strategies),
                          reason);
}


static ngx_int_t
ngx_http_aibrix_get_peer(ngx_peer_connection_t *pc, void *data)
{
    ngx_http_aibrix_peer_data_t  *pd = data;

    ngx_int_t                      rc;
    ngx_http_upstream_rr_peers_t  *peers;

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, pc->log, 0,
                   "get aibrix peer, try: %ui", pc->tries);

    pc->cached = 0;
    pc->connection = NULL;

    ngx_http_aibrix_sweep(pd->conf->zone, 0);

    peers = pd->rrp.peers;

    if (!pd->backup) {
        rc = ngx_http_aibrix_get_from(pc, pd, peers, &pd->conf->map[0]);

        if (rc == NGX_BUSY && peers->next == NULL) {
            ngx_http_aibrix_no_target(pd);
        }

        if (rc != NGX_BUSY || peers->next == NULL) {
            return rc;
        }

        ngx_log_debug0(NGX_LOG_DEBUG_HTTP, pc->log, 0,
                       "get aibrix peer, backup servers");

        pd->backup = 1;
        pd->rrp.peers = peers->next;

        if (ngx_http_aibrix_clear_tried(pd, peers->next->number) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    rc = ngx_http_aibrix_get_from(pc, pd, pd->rrp.peers, &pd->conf->map[1]);

    if (rc == NGX_BUSY) {
        ngx_http_aibrix_no_target(pd);
        pc->name = peers->name;
    }

    return rc;
}


static void
ngx_http_aibrix_no_target(ngx_http_aibrix_peer_data_t *pd)
{
    aibrix_stats_error(aibrix_zone_stats(pd->route.zone), pd->model,
                       AIBRIX_ERROR_NO_TARGET);
}


static ngx_int_t
ngx_http_aibrix_get_from(ngx_peer_connection_t *pc,
    ngx_http_aibrix_peer_data_t *pd, ngx_http_upstream_rr_peers_t *peers,
    ngx_http_aibrix_map_t *map)
{
    ngx_int_t                     rc;
    uint64_t                      start;
    aibrix_view_t                 view;
    aibrix_choice_t               choice;
    aibrix_candidate_t           *chosen;
    aibrix_decision_t             decision;
    ngx_http_aibrix_loc_conf_t   *lcf;
    ngx_http_upstream_rr_peer_t  *peer;

    start = ngx_http_aibrix_nanoseconds();

    pd->route.now_ms = ngx_current_msec;

    /* the costly part, before the lock that all workers share */

    if (!ngx_http_aibrix_map_is_stale(pd->conf, map, peers)) {
        aibrix_route_match(&pd->route, map->ids, map->count, &map->set);
    }

    ngx_http_upstream_rr_peers_wlock(peers);

    if (ngx_http_aibrix_map_is_stale(pd->conf, map, peers)) {

        if (ngx_http_aibrix_update_map(pd->conf, map, peers) != NGX_OK) {
            ngx_http_upstream_rr_peers_unlock(peers);
            return NGX_ERROR;
        }

        aibrix_route_match(&pd->route, map->ids, map->count, &map->set);
    }

    if (ngx_http_aibrix_changed(&pd->rrp)
        && ngx_http_aibrix_adopt_peers(pd, map) != NGX_OK)
    {
        ngx_http_upstream_rr_peers_unlock(peers);
        return NGX_ERROR;
    }

    view.n = ngx_http_aibrix_eligible(pc, pd, peers, map);

    if (view.n == 0) {
        ngx_http_upstream_rr_peers_unlock(peers);

        pc->name = peers->name;
        return NGX_BUSY;
    }

    view.candidates = map->candidates;
    view.imbalance = (double) pd->conf->imbalance;
    view.stddev_factor = (double) pd->conf->stddev_factor / 100;
    view.rng = (uint64_t) ngx_random() << 32 | ngx_random() | 1;

    aibrix_route_choose(&pd->route, &view, &choice);

    chosen = &view.candidates[choice.index];
    peer = map->eligible[choice.index];

    rc = ngx_http_aibrix_take(pc, pd, peer);

    if (rc == NGX_OK) {
        pd->rrp.tried[map->at[choice.index] / NGX_HTTP_AIBRIX_BITS] |=
             (uintptr_t) 1 << map->at[choice.index] % NGX_HTTP_AIBRIX_BITS;

        aibrix_route_reserve(&pd->route, chosen, &pd->grant);
    }

    ngx_http_upstream_rr_peers_unlock(peers);

    if (rc != NGX_OK) {
        return rc;
    }

    aibrix_route_record(&pd->route, &pd->grant);

    pd->peer = chosen->peer;
    pd->selection = choice.selection;
    pd->percent = aibrix_percent(chosen->matched, pd->route.blocks);
    pd->start = ngx_current_msec;

    /* the first decision of a request has the hashing in it */

    pd->ns = ngx_http_aibrix_nanoseconds() - start + (pd->chosen ? 0 : pd->ns);

    pd->chosen = 1;
    pd->answered = 0;
    pd->unused = 0;
    pd->scanned = 0;
    pd->first_seen = 0;

    lcf = ngx_http_get_module_loc_conf(pd->request, ngx_http_aibrix_module);

    if (lcf->explain) {
        ngx_http_aibrix_explain(pd, &view, &choice);
    }

    decision.model = pd->model;
    decision.peer = chosen->peer;
    decision.strategy = (uint32_t) (pd->route.strategy - aibrix_strategies);
    decision.selection = choice.selection;
    decision.percent = (uint32_t) pd->percent;
    decision.blocks = pd->route.blocks;
    decision.matched = chosen->matched;
    decision.imbalanced = choice.imbalanced;
    decision.ns = pd->ns;
    decision.at = (uint64_t) ngx_cached_time->sec * 1000
                  + ngx_cached_time->msec;

    aibrix_stats_decision(aibrix_zone_stats(pd->route.zone), &decision);

    if (chosen->peer == AIBRIX_NO_PEER) {
        aibrix_stats_fallback(aibrix_zone_stats(pd->route.zone),
                              decision.strategy, AIBRIX_FALLBACK_NO_PEER);
    }

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, pc->log, 0,
                   "aibrix: %V, %s, %ui%%", &pd->name,
                   aibrix_selection_name(pd->selection), pd->percent);

    return NGX_OK;
}


/* Fills the map's scratch with who may be chosen now; under the lock. */

static ngx_uint_t
ngx_http_aibrix_eligible(ngx_peer_connection_t *pc,
    ngx_http_aibrix_peer_data_t *pd, ngx_http_upstream_rr_peers_t *peers,
    ngx_http_aibrix_map_t *map)
{
    time_t                        now;
    uintptr_t                     m;
    ngx_uint_t                    i, n;
    ngx_http_upstream_rr_peer_t  *peer;

    i = 0;
    peer = ngx_http_aibrix_sticky(&pd->rrp, pc, &i);

    if (peer) {
        ngx_http_aibrix_candidate(map, 0, peer, i);
        return 1;
    }

    now = ngx_time();
    n = 0;

    for (peer = peers->peer, i = 0; peer; peer = peer->next, i++) {

        m = (uintptr_t) 1 << i % NGX_HTTP_AIBRIX_BITS;

        if (pd->rrp.tried[i / NGX_HTTP_AIBRIX_BITS] & m) {
            continue;
        }

        if (peer->down
            || (map->ids[i] != AIBRIX_NO_PEER
                && aibrix_zone_drained(pd->route.zone, map->ids[i])))
        {
            continue;
        }

        /* as in round robin, a single server is not put aside for failing */

        if (!peers->single
            && peer->max_fails
            && peer->fails >= peer->max_fails
            && now - peer->checked <= peer->fail_timeout)
        {
            continue;
        }

        if (peer->max_conns && peer->conns >= peer->max_conns) {
            continue;
        }

        ngx_http_aibrix_candidate(map, n++, peer, i);
    }

    return n;
}


static void
ngx_http_aibrix_candidate(ngx_http_aibrix_map_t *map, ngx_uint_t n,
    ngx_http_upstream_rr_peer_t *peer, ngx_uint_t i)
{
    map->candidates[n].peer = map->ids[i];
    map->candidates[n].weight = (uint32_t) ngx_max(peer->weight, 1);
    map->eligible[n] = peer;
    map->at[n] = i;
}


/* Another list: places in it are new, but who failed just now is known. */

static ngx_int_t
ngx_http_aibrix_adopt_peers(ngx_http_aibrix_peer_data_t *pd,
    ngx_http_aibrix_map_t *map)
{
    ngx_uint_t  i;

    ngx_http_aibrix_adopt(&pd->rrp);

    if (ngx_http_aibrix_clear_tried(pd, map->count) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!pd->chosen || pd->peer == AIBRIX_NO_PEER) {
        return NGX_OK;
    }

    for (i = 0; i < map->count; i++) {

        if (map->ids[i] == pd->peer) {
            pd->rrp.tried[i / NGX_HTTP_AIBRIX_BITS] |=
                               (uintptr_t) 1 << i % NGX_HTTP_AIBRIX_BITS;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_aibrix_clear_tried(ngx_http_aibrix_peer_data_t *pd,
    ngx_uint_t number)
{
    ngx_uint_t  n;

    n = (number + NGX_HTTP_AIBRIX_BITS - 1) / NGX_HTTP_AIBRIX_BITS;

    if (n <= 1) {
        pd->rrp.tried = &pd->rrp.data;
        pd->rrp.data = 0;
        return NGX_OK;
    }

    pd->rrp.tried = ngx_pcalloc(pd->request->pool, n * sizeof(uintptr_t));

    return pd->rrp.tried ? NGX_OK : NGX_ERROR;
}


/* What round robin does with the peer it has chosen; under the lock. */

static ngx_int_t
ngx_http_aibrix_take(ngx_peer_connection_t *pc,
    ngx_http_aibrix_peer_data_t *pd, ngx_http_upstream_rr_peer_t *peer)
{
    time_t   now;
    u_char  *p;

    /* with "resolve" the peer may be gone before the request is */

    p = ngx_pnalloc(pd->request->pool, peer->server.len + peer->name.len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    pd->server.data = p;
    pd->server.len = peer->server.len;
    p = ngx_cpymem(p, peer->server.data, peer->server.len);

    pd->name.data = p;
    pd->name.len = peer->name.len;
    ngx_memcpy(p, peer->name.data, peer->name.len);

    now = ngx_time();

    if (now - peer->checked > peer->fail_timeout) {
        peer->checked = now;
    }

    pc->sockaddr = peer->sockaddr;
    pc->socklen = peer->socklen;
    pc->name = &peer->name;

    ngx_http_aibrix_set_sid(pc, peer);

    peer->conns++;

    pd->rrp.current = peer;

    ngx_http_upstream_rr_peer_ref(pd->rrp.peers, peer);

    return NGX_OK;
}


static void
ngx_http_aibrix_free_peer(ngx_peer_connection_t *pc, void *data,
    ngx_uint_t state)
{
    ngx_http_aibrix_peer_data_t  *pd = data;

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, pc->log, 0,
                   "free aibrix peer %ui %ui", pc->tries, state);

    if ((state & NGX_PEER_FAILED) && !pd->answered) {
        aibrix_route_unrecord(&pd->route, &pd->grant);
        aibrix_stats_fail(aibrix_zone_stats(pd->route.zone), pd->peer);
    }

    /* an answer of which no header was passed on: error_page, X-Accel-... */

    if (state == 0 && !pd->answered
        && ngx_http_aibrix_replica_status(pd->request))
    {
        ngx_http_aibrix_answered(pd->request, pd);
        pd->unused = 1;
    }

    ngx_http_aibrix_release(pd);

    ngx_http_upstream_free_round_robin_peer(pc, &pd->rrp, state);
}


static void
ngx_http_aibrix_release(ngx_http_aibrix_peer_data_t *pd)
{
    uint32_t               known;
    aibrix_done_t          done;
    const aibrix_usage_t  *usage;

    if (!pd->grant.held) {
        return;
    }

    usage = &pd->events.usage;
    known = AIBRIX_USAGE_PROMPT|AIBRIX_USAGE_CACHED;

    if (pd->scanned && !pd->refused && (usage->known & known) == known) {
        aibrix_route_usage(&pd->route, &pd->grant, usage->prompt,
                           usage->cached);
    }

    aibrix_route_release(&pd->route, &pd->grant);

    ngx_memzero(&done, sizeof(aibrix_done_t));

    done.model = pd->model;
    done.peer = pd->peer;
    done.strategy = (uint32_t) (pd->route.strategy - aibrix_strategies);
    done.status = (uint32_t) ngx_http_aibrix_replica_status(pd->request);
    done.duration_ms = ngx_current_msec - pd->start;

    done.outcome = ngx_http_aibrix_outcome(pd);

    if (pd->scanned) {
        done.prompt_tokens = usage->prompt;
        done.completion_tokens = usage->completion;
        done.cached_tokens = usage->cached;
    }

    aibrix_stats_done(aibrix_zone_stats(pd->route.zone), &done);
}


static aibrix_outcome_e
ngx_http_aibrix_outcome(ngx_http_aibrix_peer_data_t *pd)
{
    ngx_event_pipe_t     *p;
    ngx_http_upstream_t  *u;

    u = pd->request->upstream;

    if (pd->answered && pd->refused) {
        return AIBRIX_ERROR_STATUS;
    }

    if (pd->answered && pd->scanned && pd->events.done) {
        return AIBRIX_FINISHED;
    }

    if (pd->request->connection->error) {
        return AIBRIX_CLIENT_GONE;
    }

    if (!pd->answered) {
        return AIBRIX_REPLICA_GONE;
    }

    /* the body was complete as far as HTTP can tell */

    if (pd->request->header_only || pd->unused) {
        return AIBRIX_FINISHED;
    }

    if (!u->buffering) {
        return (u->length == 0) ? AIBRIX_FINISHED : AIBRIX_REPLICA_GONE;
    }

    p = u->pipe;

    if (p && (p->upstream_done
              || (p->upstream_eof && !p->upstream_error
                  && (p->length == 0 || p->length == -1))))
    {
        return AIBRIX_FINISHED;
    }

    return AIBRIX_REPLICA_GONE;
}


/* The core frees a peer that it got; this is for the ways around that. */

static void
ngx_http_aibrix_cleanup_peer(void *data)
{
    ngx_http_aibrix_peer_data_t  *pd = data;

    aibrix_route_release(&pd->route, &pd->grant);

    if (pd->hashes) {
        ngx_free(pd->hashes);
        pd->hashes = NULL;
    }
}


static uint64_t
ngx_http_aibrix_nanoseconds(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}
