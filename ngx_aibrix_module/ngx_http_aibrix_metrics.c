
#include "ngx_http_aibrix_output.h"


typedef struct {
    u_char                      data[NGX_HTTP_AIBRIX_LINE / 2];
    size_t                      len;
} ngx_http_aibrix_text_t;


/*
 * What many lines share is written once: the labels of a series, and the
 * bounds of a histogram.
 */

typedef struct {
    ngx_http_aibrix_output_t   *out;
    ngx_http_aibrix_zone_t     *zone;
    ngx_http_aibrix_label_t    *labels;
    ngx_uint_t                  zones;

    ngx_http_aibrix_text_t      text;   /* labels, without the last brace */
    const uint64_t             *bounds; /* of le */
    u_char                      le[AIBRIX_BUCKETS][32];
    size_t                      le_len[AIBRIX_BUCKETS];
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

static void ngx_http_aibrix_m_labeled(ngx_http_aibrix_scrape_t *s,
    const char *name, uintptr_t data);
static void ngx_http_aibrix_m_imbalances(ngx_http_aibrix_scrape_t *s,
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
      "Decisions by reason.", ngx_http_aibrix_m_labeled, 0 },

    { "aibrix_prefix_cache_routing_decisions_total", "counter",
      "Decisions by matched part of the prompt.",
      ngx_http_aibrix_m_labeled, 1 },

    { "aibrix_prefix_cache_load_imbalance_total", "counter",
      "Decisions among the least loaded peers only.",
      ngx_http_aibrix_m_imbalances, 0 },

    { "aibrix_prefix_cache_routing_errors_total", "counter",
      "Decisions that could not be made.", ngx_http_aibrix_m_labeled, 2 },

    { "aibrix_prefix_cache_routing_latency_seconds", "histogram",
      "Time that a decision took.", ngx_http_aibrix_m_latency, 0 },

    { "aibrix_requests_total", "counter",
      "Requests that had a peer, by class of status.",
      ngx_http_aibrix_m_requests, 0 },

    { "aibrix_request_outcomes_total", "counter",
      "How requests that had a peer ended.", ngx_http_aibrix_m_outcomes, 0 },

    { "aibrix_inflight_requests", "gauge",
      "Requests in flight.", ngx_http_aibrix_m_load, 0 },

    { "aibrix_waiting_requests", "gauge",
      "Requests in flight without their first content.",
      ngx_http_aibrix_m_load, 1 },

    { "aibrix_queued_prompt_bytes", "gauge",
      "Uncached prompt bytes sent that no first byte has answered.",
      ngx_http_aibrix_m_load, 2 },

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


static void
ngx_http_aibrix_text(ngx_http_aibrix_text_t *t, const char *s)
{
    size_t  len;

    len = ngx_min(ngx_strlen(s), sizeof(t->data) - t->len);

    ngx_memcpy(t->data + t->len, s, len);
    t->len += len;
}


/* What needs no escape, which is nearly all there is, is copied. */

static void
ngx_http_aibrix_text_label(ngx_http_aibrix_text_t *t, const char *name,
    const aibrix_span_t *value)
{
    size_t         i, max;
    u_char         c;
    aibrix_span_t  rest;

    ngx_http_aibrix_text(t, t->len ? "," : "{");
    ngx_http_aibrix_text(t, name);
    ngx_http_aibrix_text(t, "=\"");

    max = ngx_min(value->len, sizeof(t->data) - t->len);

    for (i = 0; i < max; i++) {
        c = (u_char) value->data[i];

        if (c < 0x20 || c > 0x7e || c == '"' || c == '\\') {
            break;
        }

        t->data[t->len++] = c;
    }

    rest.data = value->data + i;
    rest.len = value->len - i;

    t->len += aibrix_escape_label((char *) t->data + t->len,
                                  sizeof(t->data) - t->len, &rest);

    ngx_http_aibrix_text(t, "\"");
}


static void
ngx_http_aibrix_text_plain(ngx_http_aibrix_text_t *t, const char *name,
    const char *value)
{
    aibrix_span_t  span;

    span.data = value;
    span.len = ngx_strlen(value);

    ngx_http_aibrix_text_label(t, name, &span);
}


static void
ngx_http_aibrix_text_model(ngx_http_aibrix_scrape_t *s, uint32_t model)
{
    aibrix_span_t  span;

    span = aibrix_stats_model_name(aibrix_zone_stats(s->zone->z), model);

    ngx_http_aibrix_text_label(&s->text, "model", &span);
}


/*
 * The labels are AIBrix's own, in its order; a zone is told apart only where
 * there is more than one.
 */

static void
ngx_http_aibrix_model_labels(ngx_http_aibrix_scrape_t *s, uint32_t model,
    const char *label, const char *value)
{
    aibrix_span_t  zone;

    s->text.len = 0;

    ngx_http_aibrix_text_model(s, model);

    if (label) {
        ngx_http_aibrix_text_plain(&s->text, label, value);
    }

    ngx_http_aibrix_text_plain(&s->text, "using_kv_sync", "false");

    if (s->zones > 1) {
        zone.data = (char *) s->zone->shm_zone->shm.name.data;
        zone.len = s->zone->shm_zone->shm.name.len;

        ngx_http_aibrix_text_label(&s->text, "zone", &zone);
    }
}


static void
ngx_http_aibrix_peer_labels(ngx_http_aibrix_scrape_t *s, uint32_t peer)
{
    s->text.len = 0;

    ngx_http_aibrix_text_label(&s->text, "upstream",
                               &s->labels[peer].upstream);
    ngx_http_aibrix_text_label(&s->text, "pod", &s->labels[peer].pod);
}


static void
ngx_http_aibrix_series_labels(ngx_http_aibrix_scrape_t *s, uint32_t peer,
    uint32_t model, const char *strategy)
{
    s->text.len = 0;

    ngx_http_aibrix_text_label(&s->text, "upstream",
                               &s->labels[peer].upstream);
    ngx_http_aibrix_text_model(s, model);

    if (strategy) {
        ngx_http_aibrix_text_plain(&s->text, "strategy", strategy);
    }

    ngx_http_aibrix_text_label(&s->text, "pod", &s->labels[peer].pod);
}


/* name suffix {labels[,label="value"]} n: no call of printf a line. */

static void
ngx_http_aibrix_sample(ngx_http_aibrix_scrape_t *s, const char *name,
    const char *suffix, const char *label, const u_char *value, size_t len,
    uint64_t n)
{
    u_char  *p, *digit, number[NGX_INT64_LEN];

    p = ngx_http_aibrix_room(s->out);
    if (p == NULL) {
        return;
    }

    p = ngx_cpymem(p, name, ngx_strlen(name));
    p = ngx_cpymem(p, suffix, ngx_strlen(suffix));
    p = ngx_cpymem(p, s->text.data, s->text.len);

    if (label) {
        *p++ = ',';
        p = ngx_cpymem(p, label, ngx_strlen(label));
        *p++ = '=';
        *p++ = '"';
        p = ngx_cpymem(p, value, len);
        *p++ = '"';
    }

    *p++ = '}';
    *p++ = ' ';

    digit = number + sizeof(number);

    do {
        *--digit = (u_char) ('0' + n % 10);
        n /= 10;
    } while (n);

    p = ngx_cpymem(p, digit, number + sizeof(number) - digit);
    *p++ = '\n';

    ngx_http_aibrix_wrote(s->out, p);
}


static void
ngx_http_aibrix_value(ngx_http_aibrix_scrape_t *s, const char *name,
    uint64_t n)
{
    ngx_http_aibrix_sample(s, name, "", NULL, NULL, 0, n);
}


static void
ngx_http_aibrix_labelled(ngx_http_aibrix_scrape_t *s, const char *name,
    const char *label, const char *value, uint64_t n)
{
    ngx_http_aibrix_sample(s, name, "", label, (u_char *) value,
                           ngx_strlen(value), n);
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


static void
ngx_http_aibrix_bounds(ngx_http_aibrix_scrape_t *s, const aibrix_hist_t *h)
{
    uint32_t   i;
    u_char    *last;

    if (s->bounds == h->bounds) {
        return;
    }

    for (i = 0; i < h->n; i++) {
        last = ngx_http_aibrix_seconds(s->le[i], h->bounds[i], h->per_second);
        s->le_len[i] = last - s->le[i];
    }

    ngx_memcpy(s->le[h->n], "+Inf", 4);
    s->le_len[h->n] = 4;

    s->bounds = h->bounds;
}


/* Of the series whose labels are in s->text. */

static void
ngx_http_aibrix_print_histogram(ngx_http_aibrix_scrape_t *s, const char *name,
    const aibrix_hist_t *h)
{
    u_char     sum[64];
    uint32_t   i;
    uint64_t   n;

    ngx_http_aibrix_bounds(s, h);

    n = 0;

    for (i = 0; i <= h->n; i++) {
        n += h->bucket[i];

        ngx_http_aibrix_sample(s, name, "_bucket", "le", s->le[i],
                               s->le_len[i], n);
    }

    *ngx_http_aibrix_seconds(sum, h->sum, h->per_second) = '\0';

    ngx_http_aibrix_printf(s->out, "%s_sum%*s} %s\n", name, s->text.len,
                           s->text.data, sum);

    ngx_http_aibrix_sample(s, name, "_count", NULL, NULL, 0, h->count);
}


/* Counters of a model that have one more label. */

typedef struct {
    const char   *label;
    const char  *(*value)(uint32_t n);
    uint32_t      n;
    size_t        offset;               /* of aibrix_model_stats_t */
} ngx_http_aibrix_labeled_t;


static const char *
ngx_http_aibrix_selection_label(uint32_t n)
{
    return aibrix_selection_name((aibrix_selection_e) n);
}


static const ngx_http_aibrix_labeled_t  ngx_http_aibrix_labeled[] = {

    { "selection", ngx_http_aibrix_selection_label, AIBRIX_SELECTIONS,
      offsetof(aibrix_model_stats_t, selections) },

    { "match_percent_bucket", aibrix_percent_label, AIBRIX_PERCENTS,
      offsetof(aibrix_model_stats_t, percents) },

    { "reason", aibrix_error_label, AIBRIX_ERRORS,
      offsetof(aibrix_model_stats_t, errors) }
};


static void
ngx_http_aibrix_m_labeled(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t                          i, m;
    uint64_t                         *counts;
    aibrix_model_stats_t              st;
    const ngx_http_aibrix_labeled_t  *l;

    l = &ngx_http_aibrix_labeled[data];
    counts = (uint64_t *) ((u_char *) &st + l->offset);

    for (m = 0; m <= AIBRIX_MODELS; m++) {

        if (!aibrix_stats_model_read(aibrix_zone_stats(s->zone->z), m, &st)) {
            continue;
        }

        for (i = 0; i < l->n; i++) {
            ngx_http_aibrix_model_labels(s, m, l->label, l->value(i));
            ngx_http_aibrix_value(s, name, counts[i]);
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
            ngx_http_aibrix_model_labels(s, m, NULL, NULL);
            ngx_http_aibrix_value(s, name, st.imbalances);
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
            ngx_http_aibrix_model_labels(s, m, NULL, NULL);
            ngx_http_aibrix_print_histogram(s, name, &st.latency);
        }
    }
}


static void
ngx_http_aibrix_m_requests(ngx_http_aibrix_scrape_t *s, const char *name,
    uintptr_t data)
{
    uint32_t            at;
    aibrix_requests_t   st;

    static const char *const  classes[AIBRIX_CLASSES] = {
        "0xx", "1xx", "2xx", "3xx", "4xx", "5xx"
    };

    at = 0;

    while (aibrix_stats_requests(aibrix_zone_stats(s->zone->z), &at, &st)) {

        if (!s->labels[st.peer].used) {
            continue;
        }

        ngx_http_aibrix_series_labels(s, st.peer, st.model,
                                      aibrix_strategy_name(st.strategy));
        ngx_http_aibrix_labelled(s, name, "status", classes[st.status],
                                 st.count);
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

        ngx_http_aibrix_series_labels(s, st.peer, st.model, NULL);

        for (i = 0; i < AIBRIX_OUTCOMES; i++) {
            ngx_http_aibrix_labelled(s, name, "outcome",
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

        ngx_http_aibrix_peer_labels(s, i);
        ngx_http_aibrix_value(s, name, (data == 0) ? sum.inflight
                                       : (data == 1) ? sum.waiting
                                       : sum.queued);
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

        ngx_http_aibrix_peer_labels(s, i);
        ngx_http_aibrix_value(s, name, (data == 0) ? st.fails
                                       : (data == 1) ? st.blocks
                                       : st.matched);
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
            ngx_http_aibrix_series_labels(s, st.peer, st.model, NULL);
            ngx_http_aibrix_print_histogram(s, name, h);
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

        ngx_http_aibrix_series_labels(s, st.peer, st.model, NULL);
        ngx_http_aibrix_value(s, name,
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
