
/*
 * The engine model's prefix cache: a set of block ids in order of last use.
 * All operations are O(1); memory is taken when the cache grows, never when
 * a block is looked up, refreshed or evicted.
 */

#ifndef ENGINE_CACHE_H_INCLUDED_
#define ENGINE_CACHE_H_INCLUDED_

#include <stdint.h>


#define ENGINE_CACHE_UNLIMITED  UINT64_MAX


typedef struct {
    uint64_t               id;
    uint32_t               chain;
    uint32_t               newer;
    uint32_t               older;
} engine_cache_node_t;


/* node 0 is the list's head: its older is the newest block, and so on */

typedef struct {
    uint64_t               capacity;
    uint64_t               evicted;
    uint32_t               count;
    uint32_t               size;
    uint32_t               shift;
    uint32_t              *buckets;
    engine_cache_node_t   *nodes;
} engine_cache_t;


/* capacity is in blocks; returns -1 when there is no memory */
int engine_cache_init(engine_cache_t *c, uint64_t capacity);
void engine_cache_free(engine_cache_t *c);
void engine_cache_clear(engine_cache_t *c);

/*
 * Returns 1 and makes the block the newest one if it is cached, else 0.  A
 * cache without limit keeps the order in which blocks came.
 */
int engine_cache_refresh(engine_cache_t *c, uint64_t id);

/*
 * Makes the block the newest one, cached or not; the oldest one goes when
 * the cache is full or cannot grow.
 */
void engine_cache_insert(engine_cache_t *c, uint64_t id);


#endif /* ENGINE_CACHE_H_INCLUDED_ */
