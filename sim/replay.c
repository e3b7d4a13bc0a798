
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"


#define REPLAY_MAX_STRATEGIES  32
#define REPLAY_MAX_SEEDS       10000


typedef struct {
    replay_config_t            config;
    const char                *scenarios[16];
    size_t                     nscenarios;
    const replay_strategy_t   *strategies[REPLAY_MAX_STRATEGIES];
    size_t                     nstrategies;
    uint64_t                   seed;    /* the first */
    size_t                     nseeds;
    const char                *dump;
    int                        json;
} replay_options_t;


typedef struct {
    const char  *name;
    const char  *value;                 /* what it takes, or NULL */
    const char  *help;
    void       (*set)(replay_options_t *o, const char *value);
} replay_option_t;


static void replay_help(replay_options_t *o, const char *value);


static void
replay_fail(const char *what, const char *value)
{
    fprintf(stderr, "replay: %s \"%s\"; see replay --help\n", what, value);
    exit(2);
}


static double
replay_double(const char *what, const char *value, double min, double max)
{
    char    *end;
    double   x;

    x = strtod(value, &end);

    if (end == value || *end != '\0' || !(x >= min && x <= max)) {
        replay_fail(what, value);
    }

    return x;
}


/* The next of a list with commas; 0 after the last. */

static size_t
replay_item(const char **list)
{
    size_t  len;

    if (**list == ',') {
        (*list)++;
    }

    len = strcspn(*list, ",");

    return len;
}


static void
replay_set_scenario(replay_options_t *o, const char *value)
{
    size_t              len;
    const char *const  *s;

    o->nscenarios = 0;

    while ((len = replay_item(&value)) != 0) {

        for (s = replay_scenarios; *s != NULL; s++) {
            if (strlen(*s) == len && memcmp(*s, value, len) == 0) {
                break;
            }
        }

        if (*s == NULL || o->nscenarios == 16) {
            replay_fail("unknown scenario", value);
        }

        o->scenarios[o->nscenarios++] = *s;
        value += len;
    }
}


static void
replay_set_strategies(replay_options_t *o, const char *value)
{
    size_t                    len;
    const replay_strategy_t  *s;

    o->nstrategies = 0;

    while ((len = replay_item(&value)) != 0) {
        s = replay_strategy(value, len);

        if (s == NULL || o->nstrategies == REPLAY_MAX_STRATEGIES) {
            replay_fail("unknown strategy", value);
        }

        o->strategies[o->nstrategies++] = s;
        value += len;
    }
}


static void
replay_set_replicas(replay_options_t *o, const char *value)
{
    o->config.replicas = (uint32_t) replay_double("bad number of replicas",
                                                  value, 1,
                                                  REPLAY_MAX_REPLICAS);
}


static void
replay_set_routers(replay_options_t *o, const char *value)
{
    o->config.routers = (uint32_t) replay_double("bad number of routers",
                                                 value, 1,
                                                 REPLAY_MAX_ROUTERS);
}


static void
replay_set_arrivals(replay_options_t *o, const char *value)
{
    if (strcmp(value, "fixed") == 0) {
        o->config.arrivals = REPLAY_FIXED;

    } else if (strcmp(value, "poisson") == 0) {
        o->config.arrivals = REPLAY_POISSON;

    } else if (strcmp(value, "bursts") == 0) {
        o->config.arrivals = REPLAY_BURSTS;

    } else {
        replay_fail("unknown arrivals", value);
    }
}


static void
replay_set_usage(replay_options_t *o, const char *value)
{
    if (strcmp(value, "never") == 0) {
        o->config.usage = REPLAY_USAGE_NEVER;

    } else if (strcmp(value, "end") == 0) {
        o->config.usage = REPLAY_USAGE_END;

    } else if (strcmp(value, "first") == 0) {
        o->config.usage = REPLAY_USAGE_FIRST;

    } else {
        replay_fail("unknown usage", value);
    }
}


static void
replay_set_seeds(replay_options_t *o, const char *value)
{
    char                *end;
    unsigned long long   first, last;

    first = strtoull(value, &end, 10);
    last = first;

    if (end != value && *end == '-') {
        value = end + 1;
        last = strtoull(value, &end, 10);
    }

    if (end == value || *end != '\0' || last < first
        || last - first >= REPLAY_MAX_SEEDS)
    {
        replay_fail("bad seeds", value);
    }

    o->seed = first;
    o->nseeds = (size_t) (last - first + 1);
}


static void
replay_set_trace(replay_options_t *o, const char *value)
{
    o->config.trace = value;
    o->scenarios[0] = "trace";
    o->nscenarios = 1;
}


static void
replay_set_speed(replay_options_t *o, const char *value)
{
    o->config.trace_speed = replay_double("bad speed", value, 1e-6, 1e6);
}


static void
replay_set_load(replay_options_t *o, const char *value)
{
    o->config.load = replay_double("bad load", value, 1e-3, 1e4);
}


static void
replay_set_sigma(replay_options_t *o, const char *value)
{
    o->config.output_sigma = replay_double("bad sigma", value, 0, 4);
}


static void
replay_set_slow(replay_options_t *o, const char *value)
{
    char           *end;
    unsigned long   k;

    k = strtoul(value, &end, 10);

    if (end == value || *end != ':' || k >= REPLAY_MAX_REPLICAS) {
        replay_fail("not a replica and its factor:", value);
    }

    o->config.speed[k] = replay_double("bad factor", end + 1, 1e-3, 1e3);
}


static void
replay_set_parameter(replay_options_t *o, const char *value)
{
    size_t       i, len;
    const char  *eq;
    static const struct {
        const char  *name;
        size_t       offset;
    } work[] = {
        { "guard", offsetof(aibrix_work_t, guard) },
        { "guard_share", offsetof(aibrix_work_t, guard_share) },
        { "request", offsetof(aibrix_work_t, request) },
        { "crowd", offsetof(aibrix_work_t, crowd) },
        { "queue", offsetof(aibrix_work_t, queue) },
        { "copy", offsetof(aibrix_work_t, copy) },
        { "copy_min", offsetof(aibrix_work_t, copy_min) },
        { "belief", offsetof(aibrix_work_t, belief) }
    };

    eq = strchr(value, '=');
    len = (eq != NULL) ? (size_t) (eq - value) : 0;

    for (i = 0; i < sizeof(work) / sizeof(work[0]); i++) {
        if (strlen(work[i].name) == len
            && memcmp(work[i].name, value, len) == 0)
        {
            *(double *) ((char *) &o->config.work + work[i].offset)
                = replay_double("bad value", eq + 1, 0, 1e30);
            return;
        }
    }

    if (engine_params_set(&o->config.engine, value) != ENGINE_OK) {
        replay_fail("no such parameter or value:", value);
    }
}


static void
replay_set_profile(replay_options_t *o, const char *value)
{
    char  setting[64];

    (void) snprintf(setting, sizeof(setting), "profile=%s", value);

    if (engine_params_set(&o->config.engine, setting) != ENGINE_OK) {
        replay_fail("unknown profile", value);
    }
}


static void
replay_set_dump(replay_options_t *o, const char *value)
{
    o->dump = value;
}


static void
replay_set_json(replay_options_t *o, const char *value)
{
    (void) value;

    o->json = 1;
}


static const replay_option_t  replay_options[] = {
    { "--scenario", "LIST", "cold, warm-skewed, hot-50, hot-90 (default: "
      "these), multi-turn, no-reuse", replay_set_scenario },
    { "--replicas", "N", "default 2", replay_set_replicas },
    { "--arrivals", "HOW", "fixed (default), poisson, bursts",
      replay_set_arrivals },
    { "--strategies", "LIST", "default random, least-request, prefix-cache, "
      "least-work", replay_set_strategies },
    { "--seeds", "A-B", "a run for each, medians are shown; default 100-139",
      replay_set_seeds },
    { "--trace", "FILE", "JSON lines instead of a scenario",
      replay_set_trace },
    { "--speed", "X", "plays the trace X times as fast", replay_set_speed },
    { "--profile", "P", "engine: l20-27b (default), h100-8b; before --set",
      replay_set_profile },
    { "--set", "NAME=VALUE", "a parameter of the engine, or a constant of "
      "least-work", replay_set_parameter },
    { "--slow", "K:FACTOR", "replica K runs at FACTOR times the speed",
      replay_set_slow },
    { "--load", "X", "times the scenario's rate of arrivals (default 1)",
      replay_set_load },
    { "--routers", "N", "routers that share no state (default 1)",
      replay_set_routers },
    { "--output-sigma", "S", "output lengths are lognormal",
      replay_set_sigma },
    { "--usage", "WHEN", "when the proxy learns of cached tokens: never "
      "(default), end, first", replay_set_usage },
    { "--dump", "FILE", "one run's routed requests and times; FILE.warm has "
      "what was cached before", replay_set_dump },
    { "--json", NULL, "one object for each scenario", replay_set_json },
    { "--help", NULL, "this text", replay_help }
};


#define REPLAY_OPTIONS  (sizeof(replay_options) / sizeof(replay_options[0]))


static void
replay_help(replay_options_t *o, const char *value)
{
    char    name[64];
    size_t  i;

    (void) o;
    (void) value;

    printf("usage: replay [options]\n\noptions:\n");

    for (i = 0; i < REPLAY_OPTIONS; i++) {
        (void) snprintf(name, sizeof(name), "%s %s", replay_options[i].name,
                        replay_options[i].value ? replay_options[i].value
                                                : "");
        printf("  %-19s %s\n", name, replay_options[i].help);
    }

    printf("\nstrategies:\n");
    replay_strategies(stdout);

    exit(0);
}


static void
replay_defaults(replay_options_t *o)
{
    size_t  i;

    memset(o, 0, sizeof(replay_options_t));

    engine_params_init(&o->config.engine);
    o->config.replicas = 2;
    o->config.routers = 1;
    o->config.trace_speed = 1;
    o->config.load = 1;
    o->config.work = aibrix_work_default;

    for (i = 0; i < REPLAY_MAX_REPLICAS; i++) {
        o->config.speed[i] = 1;
    }

    replay_set_scenario(o, "cold,warm-skewed,hot-50,hot-90");
    replay_set_strategies(o, "random,least-request,prefix-cache,least-work");
    replay_set_seeds(o, "100-139");
}


static void
replay_parse(replay_options_t *o, int argc, char **argv)
{
    int                     i;
    size_t                  k, len;
    const char             *value, *error;
    const replay_option_t  *option;

    for (i = 1; i < argc; i++) {
        len = strcspn(argv[i], "=");

        for (k = 0; k < REPLAY_OPTIONS; k++) {
            option = &replay_options[k];

            if (strlen(option->name) == len
                && memcmp(option->name, argv[i], len) == 0)
            {
                break;
            }
        }

        if (k == REPLAY_OPTIONS) {
            replay_fail("unknown option", argv[i]);
        }

        value = (argv[i][len] == '=') ? argv[i] + len + 1 : NULL;

        if (option->value != NULL && value == NULL) {
            value = argv[++i];

            if (value == NULL) {
                replay_fail("a value is missing:", option->name);
            }
        }

        option->set(o, value);
    }

    error = engine_params_check(&o->config.engine);

    if (error != NULL) {
        replay_fail("the engine cannot be:", error);
    }

    if (o->dump != NULL
        && (o->nstrategies != 1 || o->nscenarios != 1 || o->nseeds != 1))
    {
        replay_fail("one scenario, one strategy, one seed for", "--dump");
    }
}


static void
replay_scenario_runs(replay_options_t *o)
{
    size_t             i, k;
    const char        *error;
    replay_answer_t   *answers;
    replay_result_t   *results, *medians;
    replay_totals_t    totals;
    replay_workload_t  w;

    results = calloc(o->nstrategies * (o->nseeds + 1),
                     sizeof(replay_result_t));

    if (results == NULL) {
        replay_fail("no memory for", o->config.scenario);
    }

    medians = results + o->nstrategies * o->nseeds;

    for (k = 0; k < o->nseeds; k++) {
        error = replay_scenario(&o->config, o->seed + k, &w);

        if (error != NULL) {
            fprintf(stderr, "replay: %s: %s\n", o->config.trace, error);
            exit(2);
        }

        answers = replay_alloc(w.memory, w.n * sizeof(replay_answer_t));

        for (i = 0; i < o->nstrategies; i++) {
            replay_run(&o->config, &w, o->strategies[i], o->seed + k,
                       answers, &totals);
            replay_measure(&o->config, &w, answers, &totals,
                           &results[i * o->nseeds + k]);
        }

        if (o->dump != NULL && replay_dump(o->dump, &w, answers) != 0) {
            fprintf(stderr, "replay: %s: %s\n", o->dump, strerror(errno));
            exit(1);
        }

        replay_workload_free(&w);
    }

    for (i = 0; i < o->nstrategies; i++) {
        replay_median(&results[i * o->nseeds], o->nseeds, &medians[i]);
    }

    if (o->json) {
        replay_print_json(&o->config, o->strategies, medians, o->nstrategies);

    } else {
        replay_print_table(&o->config, o->strategies, medians,
                           o->nstrategies);
    }

    (void) fflush(stdout);
    free(results);
}


int
main(int argc, char **argv)
{
    size_t            i;
    replay_options_t  o;

    replay_defaults(&o);
    replay_parse(&o, argc, argv);

    for (i = 0; i < o.nscenarios; i++) {
        o.config.scenario = o.scenarios[i];
        replay_scenario_runs(&o);
    }

    return 0;
}
