
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"


/* The study's objective. */
#define REPLAY_SLO_TTFT  2.0
#define REPLAY_SLO_TPOT  0.150
#define REPLAY_SLO_E2E   30.0


static int
replay_by_value(const void *a, const void *b)
{
    const double  *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}


/* Sorts; linear between the two nearest ranks, as the study's. */

static double
replay_quantile(double *values, size_t n, double q)
{
    size_t  i;
    double  at;

    qsort(values, n, sizeof(double), replay_by_value);

    at = q * (double) (n - 1);
    i = (size_t) at;

    if (i + 1 >= n) {
        return values[n - 1];
    }

    return values[i] + (at - (double) i) * (values[i + 1] - values[i]);
}


static double
replay_tpot(const replay_request_t *q, const replay_answer_t *a)
{
    return (q->output > 1) ? (a->done - a->first) / (q->output - 1) : 0;
}


void
replay_measure(const replay_config_t *cf, const replay_workload_t *w,
    const replay_answer_t *answers, const replay_totals_t *totals,
    replay_result_t *r)
{
    double                  *values, last, tokens;
    size_t                   i;
    const replay_answer_t   *a;
    const replay_request_t  *q;

    memset(r, 0, sizeof(replay_result_t));
    values = malloc(w->n * 3 * sizeof(double));

    if (values == NULL) {
        fprintf(stderr, "replay: out of memory\n");
        exit(1);
    }

    last = 0;
    tokens = 0;

    for (i = 0; i < w->n; i++) {
        q = &w->requests[i];
        a = &answers[i];

        values[i] = a->first - q->t;
        values[w->n + i] = replay_tpot(q, a);
        values[2 * w->n + i] = a->done - q->t;

        if (values[i] <= REPLAY_SLO_TTFT
            && values[w->n + i] <= REPLAY_SLO_TPOT
            && values[2 * w->n + i] <= REPLAY_SLO_E2E)
        {
            r->slo_pass += 1.0 / (double) w->n;
        }

        r->misses += (a->cached == 0
                      && q->prompt > cf->engine.cache_block);
        r->split[a->replica]++;
        r->selections[a->selection]++;
        last = (a->done > last) ? a->done : last;
        tokens += q->output;
    }

    r->ttft_p50 = replay_quantile(values, w->n, 0.50);
    r->ttft_p95 = replay_quantile(values, w->n, 0.95);
    r->ttft_p99 = replay_quantile(values, w->n, 0.99);
    r->tpot_p95 = replay_quantile(values + w->n, w->n, 0.95);
    r->e2e_p95 = replay_quantile(values + 2 * w->n, w->n, 0.95);
    r->hit_rate = (totals->queries != 0)
                  ? (double) totals->hits / (double) totals->queries : 0;
    r->queue_peak = totals->queue_peak;
    r->throughput = tokens / (last - w->requests[0].t);

    free(values);
}


/* Of each figure by itself; a result is an array of doubles. */

void
replay_median(const replay_result_t *results, size_t n,
    replay_result_t *median)
{
    size_t   i, k;
    double  *values;

    values = malloc(n * sizeof(double));

    if (values == NULL) {
        fprintf(stderr, "replay: out of memory\n");
        exit(1);
    }

    for (k = 0; k < sizeof(replay_result_t) / sizeof(double); k++) {

        for (i = 0; i < n; i++) {
            values[i] = ((const double *) &results[i])[k];
        }

        ((double *) median)[k] = replay_quantile(values, n, 0.5);
    }

    free(values);
}


static const char *
replay_arrivals_name(const replay_config_t *cf)
{
    static const char *const  names[] = { "fixed", "poisson", "bursts" };

    return (cf->trace != NULL) ? "trace" : names[cf->arrivals];
}


static void
replay_split(const replay_config_t *cf, const replay_result_t *r)
{
    double    min, max;
    uint32_t  i;

    if (cf->replicas <= 4) {
        for (i = 0; i < cf->replicas; i++) {
            printf("%s%.0f", i ? "/" : "", r->split[i]);
        }

        return;
    }

    min = r->split[0];
    max = min;

    for (i = 1; i < cf->replicas; i++) {
        min = (r->split[i] < min) ? r->split[i] : min;
        max = (r->split[i] > max) ? r->split[i] : max;
    }

    printf("%.0f..%.0f", min, max);
}


void
replay_print_table(const replay_config_t *cf,
    const replay_strategy_t *const *s, const replay_result_t *results,
    size_t n)
{
    size_t                  i, k;
    const replay_result_t  *r;

    printf("%s, %u replica%s, %s arrivals\n", cf->scenario, cf->replicas,
           cf->replicas == 1 ? "" : "s", replay_arrivals_name(cf));
    printf("  %-19s %8s %8s %8s %8s %8s %6s %6s %6s %5s %7s  %s\n",
           "strategy", "TTFT P50", "P95", "P99 s", "TPOT ms", "E2E s",
           "SLO %", "hit %", "misses", "queue", "tok/s", "split");

    for (i = 0; i < n; i++) {
        r = &results[i];

        printf("  %-19s %8.3f %8.3f %8.3f %8.1f %8.2f %6.1f %6.1f %6.0f "
               "%5.0f %7.1f  ", s[i]->name, r->ttft_p50, r->ttft_p95,
               r->ttft_p99, r->tpot_p95 * 1000, r->e2e_p95,
               r->slo_pass * 100, r->hit_rate * 100, r->misses,
               r->queue_peak, r->throughput);
        replay_split(cf, r);

        for (k = 0; k < AIBRIX_SELECTIONS; k++) {
            if (r->selections[k] > 0) {
                printf(" %s:%.0f",
                       aibrix_selection_name((aibrix_selection_e) k),
                       r->selections[k]);
            }
        }

        printf("\n");
    }
}


void
replay_print_json(const replay_config_t *cf,
    const replay_strategy_t *const *s, const replay_result_t *results,
    size_t n)
{
    size_t                  i;
    uint32_t                k;
    const replay_result_t  *r;

    printf("{\"scenario\":\"%s\",\"replicas\":%u,\"arrivals\":\"%s\","
           "\"results\":[", cf->scenario, cf->replicas,
           replay_arrivals_name(cf));

    for (i = 0; i < n; i++) {
        r = &results[i];

        printf("%s{\"strategy\":\"%s\",\"ttft_p50\":%.6f,\"ttft_p95\":%.6f,"
               "\"ttft_p99\":%.6f,\"tpot_p95\":%.6f,\"e2e_p95\":%.6f,"
               "\"slo_pass\":%.6f,\"hit_rate\":%.6f,\"misses\":%g,"
               "\"queue_peak\":%g,\"split\":[",
               i ? "," : "", s[i]->name, r->ttft_p50, r->ttft_p95,
               r->ttft_p99, r->tpot_p95, r->e2e_p95, r->slo_pass,
               r->hit_rate, r->misses, r->queue_peak);

        for (k = 0; k < cf->replicas; k++) {
            printf("%s%g", k ? "," : "", r->split[k]);
        }

        printf("]}");
    }

    printf("]}\n");
}


static void
replay_dump_blocks(FILE *f, const uint64_t *blocks, uint32_t n)
{
    uint32_t  i;

    fprintf(f, "\"blocks\":[");

    for (i = 0; i < n; i++) {
        fprintf(f, "%s%llu", i ? "," : "", (unsigned long long) blocks[i]);
    }

    fprintf(f, "]");
}


static int
replay_dump_warm(const char *file, const replay_workload_t *w)
{
    int      rc;
    char    *name;
    FILE    *f;
    size_t   i;

    name = malloc(strlen(file) + sizeof(".warm"));

    if (name == NULL) {
        return -1;
    }

    sprintf(name, "%s.warm", file);
    f = fopen(name, "w");
    free(name);

    if (f == NULL) {
        return -1;
    }

    for (i = 0; i < w->nwarm; i++) {

        if (w->warm[i].cached) {
            fprintf(f, "{\"replica\":%u,", w->warm[i].replica);
            replay_dump_blocks(f, w->warm[i].blocks, w->warm[i].nblocks);
            fprintf(f, "}\n");
        }
    }

    rc = ferror(f);

    return (fclose(f) != 0 || rc) ? -1 : 0;
}


int
replay_dump(const char *file, const replay_workload_t *w,
    const replay_answer_t *answers)
{
    int                      rc;
    FILE                    *f;
    size_t                   i;
    const replay_answer_t   *a;
    const replay_request_t  *q;

    f = fopen(file, "w");

    if (f == NULL) {
        return -1;
    }

    for (i = 0; i < w->n; i++) {
        q = &w->requests[i];
        a = &answers[i];

        fprintf(f, "{\"id\":%zu,\"t\":%.17g,\"prompt\":%u,\"output\":%u,",
                i, q->t, q->prompt, q->output);
        replay_dump_blocks(f, q->blocks, q->nblocks);
        fprintf(f, ",\"replica\":%u,\"first\":%.17g,\"done\":%.17g,"
                "\"cached\":%u}\n", a->replica, a->first, a->done, a->cached);
    }

    rc = ferror(f);

    if (fclose(f) != 0 || rc) {
        return -1;
    }

    return replay_dump_warm(file, w);
}
