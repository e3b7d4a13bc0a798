
/*
 * The one block of memory that all processes share: a versioned header, the
 * directory of peers, the load rows, the counters, what was learned and the
 * prefix index.  It holds offsets only, so it may be mapped anywhere.
 */

#ifndef AIBRIX_ZONE_H_INCLUDED_
#define AIBRIX_ZONE_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>

#include "index.h"
#include "learn.h"
#include "load.h"
#include "prompt.h"
#include "stats.h"


#define AIBRIX_NO_PEER   UINT32_MAX
#define AIBRIX_NAME_MAX  128            /* bytes kept of a name, for display */


typedef struct {
    uint64_t   seen_ms;                 /* last told to be configured */
    uint16_t   upstream_len;
    uint16_t   name_len;
    uint16_t   server_len;
    uint16_t   drained;                 /* gets no new requests */
    char       upstream[AIBRIX_NAME_MAX];
    char       name[AIBRIX_NAME_MAX];   /* address:port */
    char       server[AIBRIX_NAME_MAX]; /* as written in the server line */
} aibrix_peer_t;


typedef struct {
    uint64_t   magic;
    uint32_t   version;
    uint32_t   max_peers;
    uint32_t   rows;
    uint32_t   peers;                   /* directory entries ever used */
    uint64_t   size;
    uint64_t   seed;
    uint64_t   swept;                   /* second of the last sweep */
    uint64_t   recycled;                /* peer numbers given anew */
    size_t     keys_at;                 /* uint64_t[max_peers] */
    size_t     peers_at;                /* aibrix_peer_t[max_peers] */
    size_t     load_at;
    size_t     stats_at;
    size_t     learn_at;
    size_t     index_at;
    size_t     index_size;
} aibrix_zone_t;


/* The smallest memory that aibrix_zone_init() takes. */
size_t aibrix_zone_min_size(void);

/*
 * Lays out zeroed memory of size bytes, 64-byte aligned.  Returns NULL when
 * it is too small.
 */
aibrix_zone_t *aibrix_zone_init(void *mem, size_t size, uint64_t seed,
    uint64_t ttl_ms);

/* NULL, or a sentence that says why this memory is not such a zone. */
const char *aibrix_zone_check(const void *mem, size_t size);

aibrix_index_t *aibrix_zone_index(const aibrix_zone_t *z);
aibrix_load_t *aibrix_zone_load(const aibrix_zone_t *z);
aibrix_stats_t *aibrix_zone_stats(const aibrix_zone_t *z);
aibrix_learn_t *aibrix_zone_learn(const aibrix_zone_t *z);
const aibrix_peer_t *aibrix_zone_peer(const aibrix_zone_t *z, uint32_t peer);

/* Non-zero when that peer number is in use. */
int aibrix_zone_peer_used(const aibrix_zone_t *z, uint32_t peer);

/* A drained peer gets no new requests until it is undrained. */
void aibrix_zone_drain(aibrix_zone_t *z, uint32_t peer, int drain);
int aibrix_zone_drained(const aibrix_zone_t *z, uint32_t peer);

/* The peer has lost its cache: nothing it was known to have counts. */
void aibrix_zone_forget(aibrix_zone_t *z, uint32_t peer, uint64_t now_ms);

/*
 * The number of the peer of that name in that upstream, made when there is
 * none; a number whose peer has not been seen for long and is idle is used
 * again.  AIBRIX_NO_PEER when all are in use.  The caller holds a lock that
 * excludes other callers; a caller killed in here leaves a sound directory.
 */
uint32_t aibrix_zone_register(aibrix_zone_t *z, const aibrix_span_t *upstream,
    const aibrix_span_t *name, const aibrix_span_t *server, uint64_t now_ms);


#endif /* AIBRIX_ZONE_H_INCLUDED_ */
