
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"


#define ENGINE_MAX_SEQS  65536


typedef struct engine_param_s  engine_param_t;

struct engine_param_s {
    const char               *name;
    int                     (*parse)(const engine_param_t *param,
                                 const char *value, void *field);
    size_t                    offset;
    double                    min;
    double                    max;
};


typedef struct {
    const char               *name;
    engine_params_t           params;
} engine_profile_t;


static int engine_parse_count(const engine_param_t *param, const char *value,
    void *field);
static int engine_parse_flag(const engine_param_t *param, const char *value,
    void *field);
static int engine_parse_blocks(const engine_param_t *param, const char *value,
    void *field);
static int engine_parse_number(const engine_param_t *param,
    const char *value, void *field);
static int engine_parse_time(const engine_param_t *param, const char *value,
    void *field);


/*
 * l20-27b is fitted to the published routing study, h100-8b is for big
 * fleets; neither was measured on a GPU
 */

static const engine_profile_t  engine_profiles[] = {
    { "l20-27b", { .max_num_seqs = 8, .max_num_batched_tokens = 2048,
                   .cache_block = 1568, .align_chunks = 1,
                   .kv_blocks = ENGINE_UNLIMITED, .step_base = 0.046,
                   .decode_seq = 0.001, .prefill_token = 0.0003,
                   .overhead = 0.030, .bytes_per_token = 5.72,
                   .speed = 1 } },
    { "h100-8b", { .max_num_seqs = 256, .max_num_batched_tokens = 8192,
                   .cache_block = 16, .align_chunks = 0,
                   .kv_blocks = ENGINE_UNLIMITED, .step_base = 0.012,
                   .decode_seq = 0.0002, .prefill_token = 0.00006,
                   .overhead = 0.005, .bytes_per_token = 4,
                   .speed = 1 } },
};


static const engine_param_t  engine_param_table[] = {
    { "max_num_seqs", engine_parse_count,
      offsetof(engine_params_t, max_num_seqs), 1, ENGINE_MAX_SEQS },
    { "max_num_batched_tokens", engine_parse_count,
      offsetof(engine_params_t, max_num_batched_tokens), 1, INT32_MAX },
    { "cache_block", engine_parse_count,
      offsetof(engine_params_t, cache_block), 1, INT32_MAX },
    { "align_chunks", engine_parse_flag,
      offsetof(engine_params_t, align_chunks), 0, 1 },
    { "kv_blocks", engine_parse_blocks,
      offsetof(engine_params_t, kv_blocks), 0, 1e15 },
    { "step_base", engine_parse_time,
      offsetof(engine_params_t, step_base), 0, 3600 },
    { "decode_seq", engine_parse_time,
      offsetof(engine_params_t, decode_seq), 0, 3600 },
    { "prefill_token", engine_parse_time,
      offsetof(engine_params_t, prefill_token), 0, 3600 },
    { "overhead", engine_parse_time,
      offsetof(engine_params_t, overhead), 0, 3600 },
    { "bytes_per_token", engine_parse_number,
      offsetof(engine_params_t, bytes_per_token), 0.01, 1e6 },
    { "speed", engine_parse_number,
      offsetof(engine_params_t, speed), 1e-6, 1e6 },
};


static const struct {
    const char               *unit;
    const char               *exponent;
    double                    factor;
} engine_units[] = {
    { "", "", 1 },
    { "s", "", 1 },
    { "ms", "e-3", 1 },
    { "us", "e-6", 1 },
    { "m", "", 60 },
};


#define engine_count(array)  (sizeof(array) / sizeof((array)[0]))


void
engine_params_init(engine_params_t *p)
{
    *p = engine_profiles[0].params;
}


static engine_rc_t
engine_params_profile(engine_params_t *p, const char *name)
{
    size_t  i;

    for (i = 0; i < engine_count(engine_profiles); i++) {

        if (strcmp(engine_profiles[i].name, name) == 0) {
            *p = engine_profiles[i].params;
            return ENGINE_OK;
        }
    }

    return ENGINE_INVALID;
}


engine_rc_t
engine_params_set(engine_params_t *p, const char *setting)
{
    size_t                 i, len;
    const char            *value;
    const engine_param_t  *param;

    value = strchr(setting, '=');

    if (value == NULL) {
        return ENGINE_UNKNOWN;
    }

    len = (size_t) (value++ - setting);

    if (len == sizeof("profile") - 1 && memcmp(setting, "profile", len) == 0) {
        return engine_params_profile(p, value);
    }

    for (i = 0; i < engine_count(engine_param_table); i++) {

        param = &engine_param_table[i];

        if (strlen(param->name) == len
            && memcmp(param->name, setting, len) == 0)
        {
            return param->parse(param, value, (char *) p + param->offset) == 0
                   ? ENGINE_OK : ENGINE_INVALID;
        }
    }

    return ENGINE_UNKNOWN;
}


const char *
engine_params_check(const engine_params_t *p)
{
    if (p->align_chunks && p->max_num_batched_tokens < p->cache_block) {
        return "max_num_batched_tokens must not be below cache_block "
               "when align_chunks is on";
    }

    if (p->step_base + p->decode_seq <= 0
        || p->step_base + p->prefill_token <= 0)
    {
        return "a step must take some time";
    }

    return NULL;
}


/* a plain decimal number, without sign, exponent, hexadecimal or "inf" */

static size_t
engine_number_length(const char *value)
{
    size_t  n, digits;

    digits = strspn(value, "0123456789");
    n = digits;

    if (value[n] == '.') {
        n++;
        digits += strspn(value + n, "0123456789");
        n += strspn(value + n, "0123456789");
    }

    return digits ? n : 0;
}


static int
engine_parse_count(const engine_param_t *param, const char *value,
    void *field)
{
    uint64_t   n;
    uint32_t  *p;

    if (engine_parse_blocks(param, value, &n) != 0
        || n == ENGINE_UNLIMITED)
    {
        return -1;
    }

    p = field;
    *p = (uint32_t) n;

    return 0;
}


static int
engine_parse_flag(const engine_param_t *param, const char *value,
    void *field)
{
    uint32_t  *p;

    (void) param;

    p = field;

    if (strcmp(value, "yes") == 0 || strcmp(value, "on") == 0
        || strcmp(value, "1") == 0)
    {
        *p = 1;
        return 0;
    }

    if (strcmp(value, "no") == 0 || strcmp(value, "off") == 0
        || strcmp(value, "0") == 0)
    {
        *p = 0;
        return 0;
    }

    return -1;
}


static int
engine_parse_blocks(const engine_param_t *param, const char *value,
    void *field)
{
    size_t     len;
    uint64_t   n;
    uint64_t  *p;

    p = field;

    if (strcmp(value, "unlimited") == 0) {
        *p = ENGINE_UNLIMITED;
        return 0;
    }

    len = strspn(value, "0123456789");

    if (len == 0 || len > 18 || value[len] != '\0') {
        return -1;
    }

    n = strtoull(value, NULL, 10);

    if ((double) n < param->min || (double) n > param->max) {
        return -1;
    }

    *p = n;

    return 0;
}


static int
engine_parse_number(const engine_param_t *param, const char *value,
    void *field)
{
    size_t   len;
    double   n;
    double  *p;

    len = engine_number_length(value);

    if (len == 0 || value[len] != '\0') {
        return -1;
    }

    n = strtod(value, NULL);

    if (n < param->min || n > param->max) {
        return -1;
    }

    p = field;
    *p = n;

    return 0;
}


/* the unit becomes an exponent, so that 0.3ms is exactly what 0.0003 is */

static int
engine_parse_time(const engine_param_t *param, const char *value,
    void *field)
{
    int      n;
    char     number[64];
    size_t   i, len;
    double   t;
    double  *p;

    len = engine_number_length(value);

    if (len == 0) {
        return -1;
    }

    for (i = 0; i < engine_count(engine_units); i++) {

        if (strcmp(engine_units[i].unit, value + len) == 0) {
            break;
        }
    }

    if (i == engine_count(engine_units)) {
        return -1;
    }

    n = snprintf(number, sizeof(number), "%.*s%s", (int) len, value,
                 engine_units[i].exponent);

    if (n < 0 || (size_t) n >= sizeof(number)) {
        return -1;
    }

    t = strtod(number, NULL) * engine_units[i].factor;

    if (t < param->min || t > param->max) {
        return -1;
    }

    p = field;
    *p = t;

    return 0;
}
