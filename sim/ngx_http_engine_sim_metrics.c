
/* vLLM's /metrics, as far as the model has something to say */

#include "ngx_http_engine_sim.h"

#include <math.h>


#define NGX_HTTP_ENGINE_SIM_METRICS_SIZE  16384


typedef struct {
    ngx_http_request_t            *r;
    ngx_str_t                      label;
    u_char                        *pos;
    u_char                        *last;
} ngx_http_engine_sim_page_t;


static void ngx_http_engine_sim_gauges(ngx_http_engine_sim_page_t *page,
    ngx_http_engine_sim_t *sim);
static void ngx_http_engine_sim_counters(ngx_http_engine_sim_page_t *page,
    ngx_http_engine_sim_t *sim);
static void ngx_http_engine_sim_print_histogram(
    ngx_http_engine_sim_page_t *page, ngx_http_engine_sim_histogram_t *h,
    const char *name, const char *help);
static const char *ngx_http_engine_sim_bound(double bound, char *buf,
    size_t size);


/* vLLM's own bounds */

static const double  ngx_http_engine_sim_ttft_bounds[] = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0
};

static const double  ngx_http_engine_sim_e2e_bounds[] = {
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0,
    50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0
};


void
ngx_http_engine_sim_metrics_init(ngx_http_engine_sim_t *sim)
{
    sim->ttft.bounds = ngx_http_engine_sim_ttft_bounds;
    sim->ttft.nbounds = sizeof(ngx_http_engine_sim_ttft_bounds)
                        / sizeof(double);

    sim->e2e.bounds = ngx_http_engine_sim_e2e_bounds;
    sim->e2e.nbounds = sizeof(ngx_http_engine_sim_e2e_bounds)
                       / sizeof(double);
}


void
ngx_http_engine_sim_observe(ngx_http_engine_sim_histogram_t *h, double value)
{
    ngx_uint_t  i;

    for (i = 0; i < h->nbounds; i++) {

        if (value <= h->bounds[i]) {
            h->counts[i]++;
            break;
        }
    }

    h->count++;
    h->sum += value;
}


static void ngx_cdecl
ngx_http_engine_sim_print(ngx_http_engine_sim_page_t *page, const char *fmt,
    ...)
{
    va_list  args;

    va_start(args, fmt);
    page->pos = ngx_vslprintf(page->pos, page->last, fmt, args);
    va_end(args);
}


static void
ngx_http_engine_sim_describe(ngx_http_engine_sim_page_t *page,
    const char *name, const char *type, const char *help)
{
    ngx_http_engine_sim_print(page, "# HELP vllm:%s %s\n# TYPE vllm:%s %s\n",
                              name, help, name, type);
}


static void
ngx_http_engine_sim_print_count(ngx_http_engine_sim_page_t *page,
    const char *name, const char *type, const char *help, uint64_t value)
{
    ngx_http_engine_sim_describe(page, name, type, help);
    ngx_http_engine_sim_print(page, "vllm:%s{%V} %uL\n",
                              name, &page->label, value);
}


/* label values have \, " and line feeds escaped, and nothing else */

static ngx_int_t
ngx_http_engine_sim_label(ngx_http_engine_sim_page_t *page, ngx_str_t *model)
{
    u_char      *p, ch;
    ngx_uint_t   i;

    p = ngx_pnalloc(page->r->pool,
                    sizeof("engine=\"0\",model_name=\"\"") + 2 * model->len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    page->label.data = p;

    p = ngx_sprintf(p, "engine=\"0\",model_name=\"");

    for (i = 0; i < model->len; i++) {

        ch = model->data[i];

        if (ch == '\\' || ch == '"' || ch == LF) {
            *p++ = '\\';
            ch = (ch == LF) ? 'n' : ch;
        }

        *p++ = ch;
    }

    *p++ = '"';

    page->label.len = p - page->label.data;

    return NGX_OK;
}


ngx_int_t
ngx_http_engine_sim_metrics(ngx_http_request_t *r)
{
    size_t                       size;
    u_char                      *start;
    ngx_http_engine_sim_t       *sim;
    ngx_http_engine_sim_page_t   page;

    sim = ngx_http_engine_sim_get(r);

    page.r = r;

    if (ngx_http_engine_sim_label(&page, &sim->model) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    size = NGX_HTTP_ENGINE_SIM_METRICS_SIZE + 80 * page.label.len;

    start = ngx_pnalloc(r->pool, size);
    if (start == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    page.pos = start;
    page.last = start + size;

    engine_advance(sim->engine, ngx_http_engine_sim_now(sim));

    ngx_http_engine_sim_gauges(&page, sim);
    ngx_http_engine_sim_counters(&page, sim);

    ngx_http_engine_sim_print_histogram(&page, &sim->ttft,
                                        "time_to_first_token_seconds",
                                        "Time to first token.");

    ngx_http_engine_sim_print_histogram(&page, &sim->e2e,
                                        "e2e_request_latency_seconds",
                                        "Time from arrival to last token.");

    return ngx_http_engine_sim_reply_buf(r, NGX_HTTP_OK,
                                    "text/plain; version=0.0.4; charset=utf-8",
                                         start, page.pos);
}


static void
ngx_http_engine_sim_gauges(ngx_http_engine_sim_page_t *page,
    ngx_http_engine_sim_t *sim)
{
    double                 usage;
    const engine_stats_t  *stats;

    stats = engine_stats(sim->engine);

    ngx_http_engine_sim_print_count(page, "num_requests_running", "gauge",
                                    "Requests in the batch.", stats->running);

    ngx_http_engine_sim_print_count(page, "num_requests_waiting", "gauge",
                                    "Requests in the queue.", stats->waiting);

    usage = 0;

    if (sim->params.kv_blocks != ENGINE_UNLIMITED
        && sim->params.kv_blocks > 0)
    {
        usage = (double) engine_held_blocks(sim->engine)
                / (double) sim->params.kv_blocks;
    }

    ngx_http_engine_sim_describe(page, "kv_cache_usage_perc", "gauge",
                        "KV blocks that running requests fill, 1 is all.");
    ngx_http_engine_sim_print(page, "vllm:kv_cache_usage_perc{%V} %.6f\n",
                              &page->label, ngx_min(usage, 1));

    ngx_http_engine_sim_describe(page, "cache_config_info", "gauge",
                                 "The cache's configuration.");
    ngx_http_engine_sim_print(page, "vllm:cache_config_info{%V,"
                              "block_size=\"%uD\",enable_prefix_caching="
                              "\"True\",num_gpu_blocks=\"",
                              &page->label, sim->params.cache_block);

    if (sim->params.kv_blocks == ENGINE_UNLIMITED) {
        ngx_http_engine_sim_print(page, "None\"} 1\n");

    } else {
        ngx_http_engine_sim_print(page, "%uL\"} 1\n", sim->params.kv_blocks);
    }
}


static void
ngx_http_engine_sim_counters(ngx_http_engine_sim_page_t *page,
    ngx_http_engine_sim_t *sim)
{
    const engine_stats_t  *stats;

    stats = engine_stats(sim->engine);

    ngx_http_engine_sim_print_count(page, "prefix_cache_queries_total",
                                    "counter", "Prompt tokens looked up.",
                                    stats->queries);

    ngx_http_engine_sim_print_count(page, "prefix_cache_hits_total",
                                    "counter", "Prompt tokens found cached.",
                                    stats->hits);

    ngx_http_engine_sim_print_count(page, "prompt_tokens_total", "counter",
                                    "Prompt tokens processed.",
                                    stats->prompts);

    ngx_http_engine_sim_print_count(page, "generation_tokens_total",
                                    "counter", "Tokens generated.",
                                    stats->generated);

    ngx_http_engine_sim_describe(page, "request_success_total", "counter",
                                 "Requests that ended, by reason.");
    ngx_http_engine_sim_print(page, "vllm:request_success_total{%V,"
                              "finished_reason=\"stop\"} 0\n", &page->label);
    ngx_http_engine_sim_print(page, "vllm:request_success_total{%V,"
                              "finished_reason=\"length\"} %uL\n",
                              &page->label, stats->finished);
    ngx_http_engine_sim_print(page, "vllm:request_success_total{%V,"
                              "finished_reason=\"abort\"} %uL\n",
                              &page->label, stats->aborted);
}


static void
ngx_http_engine_sim_print_histogram(ngx_http_engine_sim_page_t *page,
    ngx_http_engine_sim_histogram_t *h, const char *name, const char *help)
{
    char        bound[32];
    uint64_t    sum;
    ngx_uint_t  i;

    ngx_http_engine_sim_describe(page, name, "histogram", help);

    sum = 0;

    for (i = 0; i < h->nbounds; i++) {
        sum += h->counts[i];
        ngx_http_engine_sim_print(page, "vllm:%s_bucket{%V,le=\"%s\"} %uL\n",
                                  name, &page->label,
                                  ngx_http_engine_sim_bound(h->bounds[i],
                                                      bound, sizeof(bound)),
                                  sum);
    }

    ngx_http_engine_sim_print(page, "vllm:%s_bucket{%V,le=\"+Inf\"} %uL\n"
                              "vllm:%s_sum{%V} %.6f\nvllm:%s_count{%V} %uL\n",
                              name, &page->label, h->count,
                              name, &page->label, h->sum,
                              name, &page->label, h->count);
}


/* as Python writes it: 0.01, 1.0 */

static const char *
ngx_http_engine_sim_bound(double bound, char *buf, size_t size)
{
    (void) snprintf(buf, size, bound == floor(bound) ? "%.1f" : "%g", bound);

    return buf;
}
