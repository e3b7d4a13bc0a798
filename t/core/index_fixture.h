
/* What the tests of the index share. */

#ifndef INDEX_FIXTURE_H_INCLUDED_
#define INDEX_FIXTURE_H_INCLUDED_

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "index.h"
#include "index_table.h"


#define TTL    1000000          /* ms; a unit is 976 ms, a stamp unit 15 */
#define START  123456789        /* ms; any time will do */


typedef struct {
    uint64_t          random;
    void             *mem;
    size_t            size;
    aibrix_index_t   *ix;
    aibrix_peerset_t  all;
    uint32_t          matched[AIBRIX_MAX_PEERS];
} fixture_t;


static inline uint64_t
fixture_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;

    return z ^ (z >> 31);
}


static inline uint32_t
fixture_random(fixture_t *f, uint32_t n)
{
    return (uint32_t) (fixture_mix(f->random++) >> 32) % n;
}


static inline void
fixture_make(fixture_t *f, size_t size, uint64_t ttl)
{
    f->size = (size + 63) & ~(size_t) 63;
    f->mem = aligned_alloc(64, f->size);
    assert_non_null(f->mem);
    memset(f->mem, 0, f->size);
    memset(&f->all, 0xff, sizeof(f->all));
    f->random = 1;
    f->ix = aibrix_index_init(f->mem, f->size, ttl);
    assert_non_null(f->ix);
}


static inline void
fixture_free(fixture_t *f)
{
    assert_null(aibrix_index_check(f->ix));
    free(f->mem);
}


/* Chains with different numbers have no block in common. */
static inline void
fixture_chain(uint64_t *hashes, size_t n, uint64_t chain)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        hashes[i] = fixture_mix(chain << 20 | i);
    }
}


/* Blocks that all go to the same bucket. */
static inline void
fixture_rivals(fixture_t *f, uint64_t *hashes, size_t n)
{
    size_t               i;
    uint64_t             hash;
    aibrix_ix_bucket_t  *bucket;

    bucket = NULL;

    for (i = 0; i < n; /* void */ ) {
        hash = fixture_mix(f->random++);

        if (bucket == NULL) {
            bucket = aibrix_ix_block_key(f->ix, hash).bucket;
        }

        if (aibrix_ix_block_key(f->ix, hash).bucket == bucket) {
            hashes[i++] = hash;
        }
    }
}


/* All peers' matches anew; returns the longest. */
static inline size_t
fixture_match(fixture_t *f, const uint64_t *hashes, size_t n, uint64_t now)
{
    memset(f->matched, 0, sizeof(f->matched));

    return aibrix_index_match(f->ix, hashes, n, &f->all, now,
                              f->ix->shape.ttl, f->matched);
}


static inline void
fixture_record(fixture_t *f, const uint64_t *hashes, size_t n, uint32_t peer,
    uint64_t now)
{
    aibrix_index_record(f->ix, hashes, n, peer, now, f->ix->shape.ttl);
}


static inline aibrix_index_stat_t
fixture_stat(fixture_t *f)
{
    aibrix_index_stat_t  st;

    aibrix_index_stat(f->ix, &st);

    return st;
}


#endif /* INDEX_FIXTURE_H_INCLUDED_ */
