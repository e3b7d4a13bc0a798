
#include <stdlib.h>

#include "engine_cache.h"


#define ENGINE_CACHE_FIRST_SIZE  64


static uint32_t engine_cache_find(const engine_cache_t *c, uint64_t id);
static int engine_cache_grow(engine_cache_t *c);
static uint32_t engine_cache_take(engine_cache_t *c);


static uint32_t *
engine_cache_bucket(const engine_cache_t *c, uint64_t id)
{
    return &c->buckets[(id * 0x9e3779b97f4a7c15ULL) >> c->shift];
}


static void
engine_cache_unlink(engine_cache_t *c, uint32_t n)
{
    engine_cache_node_t  *node;

    node = &c->nodes[n];

    c->nodes[node->newer].older = node->older;
    c->nodes[node->older].newer = node->newer;
}


static void
engine_cache_link(engine_cache_t *c, uint32_t n)
{
    engine_cache_node_t  *node;

    node = &c->nodes[n];

    node->newer = 0;
    node->older = c->nodes[0].older;

    c->nodes[node->older].newer = n;
    c->nodes[0].older = n;
}


int
engine_cache_init(engine_cache_t *c, uint64_t capacity)
{
    c->capacity = capacity;
    c->evicted = 0;
    c->count = 0;
    c->size = 0;
    c->shift = 0;
    c->buckets = NULL;
    c->nodes = NULL;

    return engine_cache_grow(c);
}


void
engine_cache_free(engine_cache_t *c)
{
    free(c->buckets);
    free(c->nodes);
}


void
engine_cache_clear(engine_cache_t *c)
{
    uint32_t  i;

    for (i = 0; i < c->size; i++) {
        c->buckets[i] = 0;
    }

    c->nodes[0].newer = 0;
    c->nodes[0].older = 0;
    c->count = 0;
}


int
engine_cache_refresh(engine_cache_t *c, uint64_t id)
{
    uint32_t  n;

    n = engine_cache_find(c, id);

    if (n == 0) {
        return 0;
    }

    /* an order that decides nothing is not worth three cache misses */

    if (c->capacity != ENGINE_CACHE_UNLIMITED) {
        engine_cache_unlink(c, n);
        engine_cache_link(c, n);
    }

    return 1;
}


void
engine_cache_insert(engine_cache_t *c, uint64_t id)
{
    uint32_t   n;
    uint32_t  *bucket;

    if (engine_cache_refresh(c, id) || c->capacity == 0) {
        return;
    }

    n = engine_cache_take(c);

    bucket = engine_cache_bucket(c, id);

    c->nodes[n].id = id;
    c->nodes[n].chain = *bucket;
    *bucket = n;

    engine_cache_link(c, n);
}


static uint32_t
engine_cache_find(const engine_cache_t *c, uint64_t id)
{
    uint32_t  n;

    n = *engine_cache_bucket(c, id);

    while (n != 0 && c->nodes[n].id != id) {
        n = c->nodes[n].chain;
    }

    return n;
}


static uint32_t
engine_cache_take(engine_cache_t *c)
{
    uint32_t   n;
    uint32_t  *link;

    if (c->count < c->capacity
        && (c->count < c->size || engine_cache_grow(c) == 0))
    {
        return ++c->count;
    }

    n = c->nodes[0].newer;
    link = engine_cache_bucket(c, c->nodes[n].id);

    while (*link != n) {
        link = &c->nodes[*link].chain;
    }

    *link = c->nodes[n].chain;

    engine_cache_unlink(c, n);
    c->evicted++;

    return n;
}


static int
engine_cache_grow(engine_cache_t *c)
{
    uint32_t              i, size;
    uint32_t             *bucket, *buckets;
    engine_cache_node_t  *nodes;

    size = c->size ? c->size * 2 : ENGINE_CACHE_FIRST_SIZE;

    if (size > (1U << 30)) {
        return -1;
    }

    nodes = realloc(c->nodes, ((size_t) size + 1) * sizeof(*nodes));
    if (nodes == NULL) {
        return -1;
    }

    if (c->nodes == NULL) {
        nodes[0].newer = 0;
        nodes[0].older = 0;
    }

    c->nodes = nodes;

    buckets = calloc(size, sizeof(*buckets));
    if (buckets == NULL) {
        return -1;
    }

    free(c->buckets);

    c->buckets = buckets;
    c->size = size;
    c->shift = 64 - (uint32_t) __builtin_ctz(size);

    for (i = 1; i <= c->count; i++) {
        bucket = engine_cache_bucket(c, nodes[i].id);
        nodes[i].chain = *bucket;
        *bucket = i;
    }

    return 0;
}
