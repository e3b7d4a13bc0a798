
/*
 * The prefix index: which peer knows which prefix blocks.
 *
 * Fixed memory, position independent (offsets only), shared by processes
 * without a lock.  Every change is one atomic store of a word that is valid
 * by itself, so a process may be killed between any two of them; what a race
 * can cost is one wrong or one missing hint.
 *
 * Times are milliseconds of one monotonic clock that all users share; a
 * reader whose clock is a little behind a writer's must not be confused.
 */

#ifndef AIBRIX_INDEX_H_INCLUDED_
#define AIBRIX_INDEX_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>


#define AIBRIX_MAX_PEERS   4096         /* peer numbers: 0 .. 4095 */
#define AIBRIX_PEER_WORDS  (AIBRIX_MAX_PEERS / 64)


typedef struct aibrix_index_s  aibrix_index_t;


typedef struct {
    uint64_t   blocks;                  /* held now, expired ones included */
    uint64_t   capacity;                /* blocks that fit */
    uint64_t   evictions;               /* entries in use pushed out, ever */
    uint64_t   inserts;                 /* blocks added, ever */
} aibrix_index_stat_t;


typedef struct {
    uint64_t   word[AIBRIX_PEER_WORDS]; /* one bit a peer */
} aibrix_peerset_t;


/* The smallest memory that makes an index of any use. */
size_t aibrix_index_min_size(void);

/*
 * Makes an empty index in zeroed memory of size bytes, 64-byte aligned.  unit
 * of its inner clock is derived from ttl_ms; a later caller may use any ttl up
 * to aibrix_index_max_ttl().  Returns NULL when size is too small.
 */
aibrix_index_t *aibrix_index_init(void *mem, size_t size, uint64_t ttl_ms);
uint64_t aibrix_index_max_ttl(const aibrix_index_t *ix);

/* Non-zero when mem holds an index of this layout made for that size. */
int aibrix_index_valid(const void *mem, size_t size);

/*
 * For every peer in among: the number of leading blocks, unbroken from block
 * 0, that it knows, not older than ttl_ms, written to matched[peer].  The
 * other elements of matched (AIBRIX_MAX_PEERS of them) are left alone, and so
 * are those of peers in among that match nothing: the caller zeroes what it
 * will read.  Refreshes the blocks found (not who knows them) in the order of
 * eviction.  Returns the longest match.
 */
size_t aibrix_index_match(aibrix_index_t *ix, const uint64_t *hashes,
    size_t n, const aibrix_peerset_t *among, uint64_t now_ms,
    uint64_t ttl_ms, uint32_t *matched);

/*
 * peer knows these blocks from now on.  The tail of the chain is made older
 * than its head, a new block older than one that was ever asked for again.
 * Never fails: a full index evicts, or leaves out a tail for a newer head.
 */
void aibrix_index_record(aibrix_index_t *ix, const uint64_t *hashes, size_t n,
    uint32_t peer, uint64_t now_ms, uint64_t ttl_ms);

/* Takes back what peer is said to know of hashes[from .. n - 1]. */
void aibrix_index_unrecord(aibrix_index_t *ix, const uint64_t *hashes,
    size_t from, size_t n, uint32_t peer);

/*
 * Forgets everything that peer knows, in O(1).  What it records from then on
 * counts at once; only of blocks that more than a few peers know, no more
 * than five forgotten within the last third of the ttl are remembered.
 */
void aibrix_index_forget(aibrix_index_t *ix, uint32_t peer, uint64_t now_ms);

void aibrix_index_stat(const aibrix_index_t *ix, aibrix_index_stat_t *st);

/*
 * Age in ms of the block within ttl_ms that was recorded longest ago; 0 when
 * empty.  O(capacity).  Counts the blocks on its way, which puts right what
 * killed processes left uncounted.
 */
uint64_t aibrix_index_oldest(aibrix_index_t *ix, uint64_t now_ms,
    uint64_t ttl_ms);

/*
 * The same over room for about n blocks at a time, without the counting: *at
 * is 0 at first, and again when a call has come to the end.
 */
uint64_t aibrix_index_oldest_part(aibrix_index_t *ix, uint64_t *at,
    uint64_t n, uint64_t now_ms, uint64_t ttl_ms);

/*
 * Checks everything that must hold whatever happened to the processes that
 * used the index; returns NULL or a static sentence that says what is broken.
 */
const char *aibrix_index_check(const aibrix_index_t *ix);


#endif /* AIBRIX_INDEX_H_INCLUDED_ */
