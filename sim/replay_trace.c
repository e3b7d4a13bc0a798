
/*
 * Traces as public LLM services publish them: JSON lines with timestamp (ms),
 * input_length, output_length, hash_ids (one for 512 tokens of prompt; equal
 * ids are equal content with an equal past).
 */

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"


#define REPLAY_TRACE_UNIT  512          /* tokens */
#define REPLAY_TRACE_LINE  (1 << 20)


typedef struct {
    double    timestamp;
    uint32_t  input;
    uint32_t  output;
    uint32_t  nids;
    uint64_t  ids[REPLAY_TRACE_LINE / 2];
} replay_line_t;


static const char *
replay_value(const char *line, const char *name)
{
    size_t       len;
    const char  *p;

    len = strlen(name);

    for (p = strchr(line, '"'); p != NULL; p = strchr(p + 1, '"')) {

        if (strncmp(p + 1, name, len) != 0 || p[len + 1] != '"') {
            continue;
        }

        p += len + 2;

        while (isspace((unsigned char) *p)) {
            p++;
        }

        return (*p == ':') ? p + 1 : NULL;
    }

    return NULL;
}


static int
replay_number(const char *line, const char *name, double *value)
{
    char        *end;
    const char  *p;

    p = replay_value(line, name);

    if (p == NULL) {
        return -1;
    }

    *value = strtod(p, &end);

    return (end == p || !(*value >= 0) || *value > 1e15) ? -1 : 0;
}


static int
replay_ids(const char *line, replay_line_t *l)
{
    char        *end;
    const char  *p;

    l->nids = 0;
    p = replay_value(line, "hash_ids");

    if (p == NULL || (p = strchr(p, '[')) == NULL) {
        return -1;
    }

    for (p++; *p != ']'; p = end) {

        while (isspace((unsigned char) *p) || *p == ',') {
            p++;
        }

        if (*p == ']') {
            break;
        }

        l->ids[l->nids++] = strtoull(p, &end, 10);

        if (end == p) {
            return -1;
        }
    }

    return 0;
}


static int
replay_parse(const char *line, replay_line_t *l)
{
    double  input, output;

    if (replay_number(line, "timestamp", &l->timestamp) != 0
        || replay_number(line, "input_length", &input) != 0
        || replay_number(line, "output_length", &output) != 0
        || input > 1e8 || output > 1e8
        || replay_ids(line, l) != 0)
    {
        return -1;
    }

    l->input = (input < 1) ? 1 : (uint32_t) input;
    l->output = (output < 1) ? 1 : (uint32_t) output;

    return 0;
}


/* Which id a byte or token belongs to; what is past the last is its own. */

static uint64_t
replay_content(const replay_line_t *l, double token, uint64_t own)
{
    uint32_t  k;

    k = (uint32_t) (token / REPLAY_TRACE_UNIT);

    return (k < l->nids) ? l->ids[k] + 1 : replay_mix(own, k);
}


static void
replay_request(const replay_config_t *cf, const replay_line_t *l,
    replay_workload_t *w, replay_request_t *r)
{
    double     bpt;
    uint32_t   i, block;
    uint64_t   own, *hashes, *blocks;

    bpt = cf->engine.bytes_per_token;
    block = cf->engine.cache_block;
    own = replay_mix((uint64_t) (r - w->requests), 0xabcd);

    r->t = l->timestamp / 1000 / cf->trace_speed;
    r->prompt = l->input;
    r->output = l->output;
    r->bytes = (uint32_t) ((double) l->input * bpt + 0.5);
    r->nhashes = r->bytes / REPLAY_BLOCK;
    r->nblocks = l->input / block;

    hashes = replay_alloc(w->memory, r->nhashes * sizeof(uint64_t));
    blocks = replay_alloc(w->memory, r->nblocks * sizeof(uint64_t));

    for (i = 0; i < r->nhashes; i++) {
        hashes[i] = replay_mix(replay_content(l, (((double) i + 1)
                                                  * REPLAY_BLOCK - 1) / bpt,
                                              own), i + 1);
    }

    for (i = 0; i < r->nblocks; i++) {
        blocks[i] = replay_mix(replay_content(l, ((double) i + 1) * block - 1,
                                              own), (uint64_t) i << 32) >> 1;
    }

    r->hashes = hashes;
    r->blocks = blocks;

    w->hashes += r->nhashes;

    if (r->nhashes > w->longest) {
        w->longest = r->nhashes;
    }
}


static int
replay_by_time(const void *a, const void *b)
{
    const replay_request_t  *x = a, *y = b;

    return (x->t > y->t) - (x->t < y->t);
}


const char *
replay_trace(const replay_config_t *cf, replay_workload_t *w)
{
    FILE           *f;
    char           *line;
    size_t          size, i;
    const char     *error;
    replay_line_t  *l;

    f = fopen(cf->trace, "r");

    if (f == NULL) {
        return strerror(errno);
    }

    line = replay_alloc(w->memory, REPLAY_TRACE_LINE);
    l = replay_alloc(w->memory, sizeof(replay_line_t));
    size = 0;

    while (fgets(line, REPLAY_TRACE_LINE, f) != NULL) {
        size++;
    }

    rewind(f);

    w->requests = replay_alloc(w->memory, size * sizeof(replay_request_t));
    error = NULL;

    for (i = 0; i < size && fgets(line, REPLAY_TRACE_LINE, f) != NULL; i++) {

        if (line[strspn(line, " \t\r\n")] == '\0') {
            continue;
        }

        if (replay_parse(line, l) != 0) {
            error = "a line is not an object with timestamp, input_length, "
                    "output_length and hash_ids";
            break;
        }

        replay_request(cf, l, w, &w->requests[w->n++]);
    }

    fclose(f);

    if (error == NULL && w->n == 0) {
        error = "it has no requests";
    }

    qsort(w->requests, w->n, sizeof(replay_request_t), replay_by_time);

    return error;
}
