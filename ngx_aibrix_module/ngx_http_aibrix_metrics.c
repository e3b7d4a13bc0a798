
#include "ngx_http_aibrix_output.h"


typedef struct {
    ngx_http_aibrix_output_t   *out;
    ngx_http_aibrix_zone_t     *zone;
    ngx_http_aibrix_label_t    *labels;
    ngx_uint_t                  zones;
} ngx_http_aibrix_scrape_t;


/* One family of metrics, printed for each zone under one HELP and TYPE. */

typedef struct {
    const char                 *name;
    const char                 *type;
    const char                 *help;
    void                      (*print)(ngx_http_aibrix_scrape_t *s,
                                       const char *name, uintptr_t data);
    uintptr_t                   data;
} ngx_http_aibrix_family_t;


static ngx_int_t ngx_http_aibrix_metrics_handler(ngx_http_request_t *r);

static void ngx_http_aibrix_m_selections(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_percents(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_imbalances(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_errors(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_latency(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_requests(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_outcomes(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_load(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_peer(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_histogram(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_tokens(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_index(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_fallbacks(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);


/* Names and labels of the first five: AIBrix v0.7.0. */

static const ngx_http_aibrix_family_t  ngx_http_aibrix_families[] = {

    { "aibrix_prefix_cache_routing_selection_total", "counter",
      "Decisions by reason.", ngx_http_aibrix_m_selections, 0 },

    { "aibrix_prefix_cache_routing_decisions_total", "counter",
      "Decisions by matched part of the prompt.",
      ngx_http_aibrix_m_percents, 0 },

    { "aibrix_prefix_cache_load_imbalance_total", "counter",
      "Decisions among the least loaded peers only.",
      ngx_http_aibrix_m_imbalances, 0 },

    { "aibrix_prefix_cache_routing_errors_total", "counter",
      "Decisions that could not be made.", ngx_http_aibrix_m_errors, 0 },

    { "aibrix_prefix_cache_routing_latency_seconds", "histogram",
      "Time that a decision took.", ngx_http_aibrix_m_latency, 0 },

    { "aibrix_requests_total", "counter",
      "Requests that had a peer, by class of status.",
      ngx_http_aibrix_m_requests, 0 },

    { "aibrix_request_outcomes_total", "counter",
      "How requests that had a peer ended.", ngx_http_aibrix_m_outcomes, 0 },

    { "aibrix_inflight_requests", "gauge",
      "Requests in flight.", ngx_http_aibrix_m_load, 0 },

    { "aibrix_queued_prompt_bytes", "gauge",
      "Uncached prompt bytes sent that no first byte has answered.",
      ngx_http_aibrix_m_load, 1 },

    { "aibrix_peer_failures_total", "counter",
      "Attempts that failed before an answer.", ngx_http_aibrix_m_peer, 0 },

    { "aibrix_prompt_blocks_total", "counter",
      "Prefix blocks of the prompts sent.", ngx_http_aibrix_m_peer, 1 },

    { "aibrix_matched_blocks_total", "counter",
      "Prefix blocks that the index had for the chosen peer.",
      ngx_http_aibrix_m_peer, 2 },

    { "aibrix_ttft_seconds", "histogram",
      "From choosing the peer to its first content.",
      ngx_http_aibrix_m_histogram, offsetof(aibrix_series_t, ttft) },

    { "aibrix_inter_token_seconds", "histogram",
      "Between two events with content.",
      ngx_http_aibrix_m_histogram, offsetof(aibrix_series_t, gap) },

    { "aibrix_request_duration_seconds", "histogram",
      "From choosing the peer to the end of its answer.",
      ngx_http_aibrix_m_histogram, offsetof(aibrix_series_t, duration) },

    { "aibrix_prompt_tokens_total", "counter",
      "Prompt tokens, from usage.", ngx_http_aibrix_m_tokens,
      offsetof(aibrix_series_t, prompt_tokens) },

    { "aibrix_completion_tokens_total", "counter",
      "Completion tokens, from usage.", ngx_http_aibrix_m_tokens,
      offsetof(aibrix_series_t, completion_tokens) },

    { "aibrix_cached_tokens_total", "counter",
      "Prompt tokens that the engine had cached, from usage.",
      ngx_http_aibrix_m_tokens, offsetof(aibrix_series_t, cached_tokens) },

    { "aibrix_index_blocks", "gauge",
      "Prefix blocks in the index.", ngx_http_aibrix_m_index, 0 },

    { "aibrix_index_capacity_blocks", "gauge",
      "Prefix blocks that fit in the index.", ngx_http_aibrix_m_index, 1 },

    { "aibrix_index_evictions_total", "counter",
      "Prefix blocks pushed out while they were of use.",
      ngx_http_aibrix_m_index, 2 },

    { "aibrix_fallbacks_total", "counter",
      "Decisions made without a prompt, by strategy and cause.",
      ngx_http_aibrix_m_fallbacks, 0 },

    { NULL, NULL, NULL, NULL, 0 }
};


static ngx_str_t  ngx_http_aibrix_metrics_type =
    ngx_string("text/plain; version=0.0.4; charset=utf-8");


char *
ngx_http_aibrix_metrics(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler) {
        return "is not alone: the location has another content handler";
    }

    clcf->handler = ngx_http_aibrix_metrics_handler;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_aibrix_metrics_handler(ngx_http_request_t *r)
{
    ngx_int_t                         rc;
    ngx_uint_t                        i;
    ngx_http_aibrix_zone_t          **zones;
    ngx_http_aibrix_scrape_t         *s;
    ngx_http_aibrix_output_t          out;
    ngx_http_aibrix_main_conf_t      *amcf;
    const ngx_http_aibrix_family_t   *f;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    amcf = ngx_http_get_module_main_conf(r, ngx_http_aibrix_module);
    zones = amcf->zones.elts;

    s = ngx_pcalloc(r->pool, (amcf->zones.nelts + 1) * sizeof(*s));
    if (s == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_aibrix_output_init(&out, r->pool);

    for (i = 0; i < amcf->zones.nelts; i++) {
        ngx_http_aibrix_sweep(zones[i], 1);

        s[i].out = &out;
        s[i].zone = zones[i];
        s[i].zones = amcf->zones.nelts;
        s[i].labels = ngx_http_aibrix_labels(r->pool, zones[i]->z);

        if (s[i].labels == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    for (f = ngx_http_aibrix_families; f->name; f++) {

        ngx_http_aibrix_printf(&out, "# HELP %s %s\n# TYPE %s %s\n",
                               f->name, f->help, f->name, f->type);

        for (i = 0; i < amcf->zones.nelts; i++) {
            f->print(&s[i], f->name, f->data);
        }
    }

    return ngx_http_aibrix_send(r, &out, &ngx_http_aibrix_metrics_type);
}


/*
 * The labels are AIBrix's own, in its order; a zone is told apart only where
 * there is more than one.
 */

static void
ngx_http_aibrix_model_sample(ngx_http_aibrix_scrape_t *s, const char *name,
    const char *suffix, uint32_t model, const char *label, const char *value)
{
    aibrix_span_t  span;

    span = aibrix_stats_model_name(aibrix_zone_stats(s->zone->z), model);

    ngx_http_aibrix_printf(s->out, "%s%s{model=\"", name, suffix);
    ngx_http_aibrix_print_label(s->out, &span);

    if (label) {
        ngx_http_aibrix_printf(s->out, "\",%s=\"%s", label, value);
    }

    ngx_http_aibrix_printf(s->out, "\",using_kv_sync=\"false\"");

    if (s->zones > 1) {
        ngx_http_aibrix_printf(s->out, ",zone=\"%V\"",
                               &s->zone->shm_zone->shm.name);
    }
}


static void
ngx_http_aibrix_peer_sample(ngx_http_aibrix_scrape_t *s, const char *name,
    const char *suffix, uint32_t peer)
{
    ngx_http_aibrix_printf(s->out, "%s%s{upstream=\"", name, suffix);
    ngx_http_aibrix_print_label(s->out, &s->labels[peer].upstream);
    ngx_http_aibrix_printf(s->out, "\",pod=\"");
    ngx_http_aibrix_print_label(s->out, &s->labels[peer].pod);
    ngx_http_aibrix_printf(s->out, "\"");
}


static void
ngx_http_aibrix_series_sample(ngx_http_aibrix_scrape_t *s, const char *name,
    const char *suffix, uint32_t peer, uint32_t model, const char *strategy)
{
    aibrix_span_t  span;

    span = aibrix_stats_model_name(aibrix_zone_stats(s->zone->z), model);

    ngx_http_aibrix_printf(s->out, "%s%s{upstream=\"", name, suffix);
    ngx_http_aibrix_print_label(s->out, &s->labels[peer].upstream);
    ngx_http_aibrix_printf(s->out, "\",model=\"");
    ngx_http_aibrix_print_label(s->out, &span);

    if (strategy) {
        ngx_http_aibrix_printf(s->out, "\",strategy=\"%s", strategy);
    }

    ngx_http_aibrix_printf(s->out, "\",pod=\"");
    ngx_http_aibrix_print_label(s->out, &s->labels[peer].pod);
    ngx_http_aibrix_printf(s->out, "\"");
}


/* A bound or sum in seconds, without the zeros that mean nothing. */

static u_char *
ngx_http_aibrix_seconds(u_char *p, uint64_t n, uint32_t per_second)
{
    u_char    *dot;
    uint64_t   fraction;

    fraction = (n % per_second) * (1000000000 / per_second);

    p = ngx_sprintf(p, "%uL", n / per_second);
    dot = p;

    p = ngx_sprintf(p, ".%09uL", fraction);

    while (p[-1] == '0') {
        p--;
    }

    return (p == dot + 1) ? dot : p;
}


/* By model alone when there is no peer. */

static void
ngx_http_aibrix_print_histogram(ngx_http_aibrix_scrape_t *s,
    const aibrix_hist_t *h, const char *name, uint32_t peer, uint32_t model)
{
    u_char       text[64];
    uint32_t     i;
    uint64_t     n;
    const char  *suffix;

    n = 0;

    for (i = 0; i < h->n + 3; i++) {
        suffix = (i <= h->n) ? "_bucket" : (i == h->n + 1) ? "_sum" : "_count";

        if (peer == AIBRIX_NO_PEER) {
            ngx_http_aibrix_model_sample(s, name, suffix, model, NULL, NULL);

        } else {
            ngx_http_aibrix_series_sample(s, name, suffix, peer, model, NULL);
        }

        if (i <= h->n) {
            n += h->bucket[i];

            if (i < h->n) {
                *ngx_http_aibrix_seconds(text, h->bounds[i], h->per_second)
                    = '\0';

            } else {
                ngx_memcpy(text, "+Inf", sizeof("+Inf"));
            }

            ngx_http_aibrix_printf(s->out, ",le=\"%s\"} %uL\n", text, n);

        } else if (i == h->n + 1) {
            *ngx_http_aibrix_seconds(text, h->sum, h->per_second) = '\0';
            ngx_http_aibrix_printf(s->out, "} %s\n", text);

        } else {
            ngx_http_aibrix_printf(s->out, "} %uL\n", h->count);
        }
    }
}


static void
ngx_http_aibrix_m_selections(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t               i, m;
    aibrix_model_stats_t   st;

    for (m = 0; m <= AIBRIX_MODELS; m++) {

        if (!aibrix_stats_model_read(aibrix_zone_stats(s->zone->z), m, &st)) {
            continue;
        }

        for (i = 0; i < AIBRIX_SELECTIONS; i++) {
            ngx_http_aibrix_model_sample(s, name, "", m, "selection",
                                         aibrix_selection_name(i));
            ngx_http_aibrix_printf(s->out, "} %uL\n", st.selections[i]);
        }
    }
}


static void
ngx_http_aibrix_m_percents(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t               i, m;
    aibrix_model_stats_t   st;

    for (m = 0; m <= AIBRIX_MODELS; m++) {

        if (!aibrix_stats_model_read(aibrix_zone_stats(s->zone->z), m, &st)) {
            continue;
        }

        for (i = 0; i < AIBRIX_PERCENTS; i++) {
            ngx_http_aibrix_model_sample(s, name, "", m,
                                         "match_percent_bucket",
                                         aibrix_percent_label(i));
            ngx_http_aibrix_printf(s->out, "} %uL\n", st.percents[i]);
        }
    }
}


static void
ngx_http_aibrix_m_imbalances(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t               m;
    aibrix_model_stats_t   st;

    for (m = 0; m <= AIBRIX_MODELS; m++) {

        if (aibrix_stats_model_read(aibrix_zone_stats(s->zone->z), m, &st)) {
            ngx_http_aibrix_model_sample(s, name, "", m, NULL, NULL);
            ngx_http_aibrix_printf(s->out, "} %uL\n", st.imbalances);
        }
    }
}


static void
ngx_http_aibrix_m_errors(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t               i, m;
    aibrix_model_stats_t   st;

    for (m = 0; m <= AIBRIX_MODELS; m++) {

        if (!aibrix_stats_model_read(aibrix_zone_stats(s->zone->z), m, &st)) {
            continue;
        }

        for (i = 0; i < AIBRIX_ERRORS; i++) {
            ngx_http_aibrix_model_sample(s, name, "", m, "reason",
                                         aibrix_error_label(i));
            ngx_http_aibrix_printf(s->out, "} %uL\n", st.errors[i]);
        }
    }
}


static void
ngx_http_aibrix_m_latency(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t               m;
    aibrix_model_stats_t   st;

    for (m = 0; m <= AIBRIX_MODELS; m++) {

        if (aibrix_stats_model_read(aibrix_zone_stats(s->zone->z), m, &st)) {
            ngx_http_aibrix_print_histogram(s, &st.latency, name,
                                            AIBRIX_NO_PEER, m);
        }
    }
}


static void
ngx_http_aibrix_m_requests(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t            at;
    aibrix_requests_t   st;

    at = 0;

    while (aibrix_stats_requests(aibrix_zone_stats(s->zone->z), &at, &st)) {

        if (!s->labels[st.peer].used) {
            continue;
        }

        ngx_http_aibrix_series_sample(s, name, "", st.peer, st.model,
                                      aibrix_strategies[st.strategy].name);
        ngx_http_aibrix_printf(s->out, ",status=\"%uDxx\"} %uL\n",
                               st.status, st.count);
    }
}


static void
ngx_http_aibrix_m_outcomes(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t          i, at;
    aibrix_series_t   st;

    at = 0;

    while (aibrix_stats_series(aibrix_zone_stats(s->zone->z), &at, &st)) {

        if (!s->labels[st.peer].used) {
            continue;
        }

        for (i = 0; i < AIBRIX_OUTCOMES; i++) {
            ngx_http_aibrix_series_sample(s, name, "", st.peer, st.model,
                                          NULL);
            ngx_http_aibrix_printf(s->out, ",outcome=\"%s\"} %uL\n",
                                   aibrix_outcome_label(i), st.outcomes[i]);
        }
    }
}


static void
ngx_http_aibrix_m_load(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t            i;
    aibrix_load_sum_t   sum;

    for (i = 0; i < s->zone->z->max_peers; i++) {

        if (!s->labels[i].used) {
            continue;
        }

        aibrix_load_sum(aibrix_zone_load(s->zone->z), i, &sum);

        ngx_http_aibrix_peer_sample(s, name, "", i);
        ngx_http_aibrix_printf(s->out, "} %uL\n",
                               data ? sum.queued : (uint64_t) sum.inflight);
    }
}


static void
ngx_http_aibrix_m_peer(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t              i;
    aibrix_peer_stats_t   st;

    for (i = 0; i < s->zone->z->max_peers; i++) {

        if (!s->labels[i].used
            || !aibrix_stats_peer_read(aibrix_zone_stats(s->zone->z), i, &st))
        {
            continue;
        }

        ngx_http_aibrix_peer_sample(s, name, "", i);
        ngx_http_aibrix_printf(s->out, "} %uL\n",
                               (data == 0) ? st.fails
                               : (data == 1) ? st.blocks : st.matched);
    }
}


static void
ngx_http_aibrix_m_histogram(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t              at;
    aibrix_series_t       st;
    const aibrix_hist_t  *h;

    at = 0;

    while (aibrix_stats_series(aibrix_zone_stats(s->zone->z), &at, &st)) {

        h = (const aibrix_hist_t *) ((u_char *) &st + data);

        if (s->labels[st.peer].used && h->count) {
            ngx_http_aibrix_print_histogram(s, h, name, st.peer, st.model);
        }
    }
}


static void
ngx_http_aibrix_m_tokens(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t          at;
    aibrix_series_t   st;

    at = 0;

    while (aibrix_stats_series(aibrix_zone_stats(s->zone->z), &at, &st)) {

        if (!s->labels[st.peer].used) {
            continue;
        }

        ngx_http_aibrix_series_sample(s, name, "", st.peer, st.model,
                                          NULL);
        ngx_http_aibrix_printf(s->out, "} %uL\n",
                               *(uint64_t *) ((u_char *) &st + data));
    }
}


static void
ngx_http_aibrix_m_index(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    aibrix_index_stat_t  st;

    aibrix_index_stat(aibrix_zone_index(s->zone->z), &st);

    ngx_http_aibrix_printf(s->out, "%s{zone=\"%V\"} %uL\n", name,
                           &s->zone->shm_zone->shm.name,
                           (data == 0) ? st.blocks
                           : (data == 1) ? st.capacity : st.evictions);
}


static void
ngx_http_aibrix_m_fallbacks(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t                  i;
    const aibrix_strategy_t  *st;

    for (st = aibrix_strategies; st->name; st++) {

        for (i = 0; i < AIBRIX_FALLBACKS; i++) {
            ngx_http_aibrix_printf(s->out,
                 "%s{zone=\"%V\",strategy=\"%s\",reason=\"%s\"} %uL\n",
                 name, &s->zone->shm_zone->shm.name, st->name,
                 aibrix_fallback_label(i),
                 aibrix_stats_fallbacks(aibrix_zone_stats(s->zone->z),
                                        (uint32_t) (st - aibrix_strategies),
                                        i));
        }
    }
}
