
/*
 * Prefix hashing as AIBrix v0.7.0 does it (pkg/utils/prefixcacheindexer/
 * hash.go): XXH64 with seed over the parent hash, 8 bytes little-endian,
 * followed by the bytes of one full block; the first parent is the seed.
 */

#ifndef AIBRIX_PREFIX_H_INCLUDED_
#define AIBRIX_PREFIX_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>

#include "prompt.h"


/*
 * Hashes the concatenation of the spans in blocks of block_size bytes (at
 * least 1); a tail shorter than a block is ignored.  Writes at most max
 * hashes and returns how many were written.
 */
size_t aibrix_prefix_hash(const aibrix_span_t *spans, size_t nspans,
    size_t block_size, uint64_t seed, uint64_t *hashes, size_t max);


#endif /* AIBRIX_PREFIX_H_INCLUDED_ */
