
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "zone.h"


#define AIBRIX_ZONE_MAGIC      0x3178697262696100ULL
#define AIBRIX_ZONE_VERSION    1

#define AIBRIX_ZONE_PER_PEER   16384    /* bytes of zone for one peer */
#define AIBRIX_ZONE_MIN_PEERS  16
#define AIBRIX_ZONE_IDLE       60000    /* ms unseen before reuse */


typedef struct {
    uint32_t   peers;
    uint32_t   rows;
    size_t     keys_at;
    size_t     peers_at;
    size_t     load_at;
    size_t     stats_at;
    size_t     learn_at;
    size_t     index_at;
} aibrix_layout_t;


#define aibrix_align(n)  (((n) + 63) & ~(size_t) 63)


static void
aibrix_zone_layout(size_t size, aibrix_layout_t *l)
{
    size_t  at;

    l->peers = AIBRIX_MAX_PEERS;

    if (size / AIBRIX_ZONE_PER_PEER < l->peers) {
        l->peers = (uint32_t) (size / AIBRIX_ZONE_PER_PEER);
    }

    if (l->peers < AIBRIX_ZONE_MIN_PEERS) {
        l->peers = AIBRIX_ZONE_MIN_PEERS;
    }

    l->rows = (l->peers < 256) ? 64 : 256;

    at = aibrix_align(sizeof(aibrix_zone_t));

    l->keys_at = at;
    at += aibrix_align(l->peers * sizeof(uint64_t));

    l->peers_at = at;
    at += aibrix_align(l->peers * sizeof(aibrix_peer_t));

    l->load_at = at;
    at += aibrix_align(aibrix_load_size(l->rows, l->peers));

    l->stats_at = at;
    at += aibrix_align(aibrix_stats_size(l->peers));

    l->learn_at = at;
    at += aibrix_align(aibrix_learn_size(l->peers));

    l->index_at = at;
}


static void *
aibrix_zone_at(const aibrix_zone_t *z, size_t offset)
{
    return (char *) z + offset;
}


static uint64_t *
aibrix_zone_keys(const aibrix_zone_t *z)
{
    return aibrix_zone_at(z, z->keys_at);
}


static aibrix_peer_t *
aibrix_zone_entry(const aibrix_zone_t *z, uint32_t peer)
{
    return (aibrix_peer_t *) aibrix_zone_at(z, z->peers_at) + peer;
}


size_t
aibrix_zone_min_size(void)
{
    size_t           size, need;
    aibrix_layout_t  l;

    /* more memory is room for more peers, which take a part of it */

    for (size = 0; /* void */ ; size = need) {
        aibrix_zone_layout(size, &l);

        need = l.index_at + aibrix_index_min_size();

        if (need <= size) {
            return size;
        }
    }
}


aibrix_zone_t *
aibrix_zone_init(void *mem, size_t size, uint64_t seed, uint64_t ttl_ms)
{
    aibrix_zone_t    *z;
    aibrix_layout_t   l;

    aibrix_zone_layout(size, &l);

    if (size < l.index_at + aibrix_index_min_size()) {
        return NULL;
    }

    z = mem;

    z->version = AIBRIX_ZONE_VERSION;
    z->max_peers = l.peers;
    z->rows = l.rows;
    z->size = size;
    z->seed = seed;
    z->keys_at = l.keys_at;
    z->peers_at = l.peers_at;
    z->load_at = l.load_at;
    z->stats_at = l.stats_at;
    z->learn_at = l.learn_at;
    z->index_at = l.index_at;
    z->index_size = (size - l.index_at) & ~(size_t) 63;

    (void) aibrix_load_init(aibrix_zone_at(z, z->load_at), z->rows,
                            z->max_peers);
    (void) aibrix_stats_init(aibrix_zone_at(z, z->stats_at), z->max_peers);
    (void) aibrix_learn_init(aibrix_zone_at(z, z->learn_at), z->max_peers);

    if (aibrix_index_init(aibrix_zone_at(z, z->index_at), z->index_size,
                          ttl_ms)
        == NULL)
    {
        return NULL;
    }

    __atomic_store_n(&z->magic, AIBRIX_ZONE_MAGIC, __ATOMIC_RELEASE);

    return z;
}


const char *
aibrix_zone_check(const void *mem, size_t size)
{
    aibrix_layout_t       l;
    const aibrix_zone_t  *z;

    z = mem;

    if (__atomic_load_n(&z->magic, __ATOMIC_ACQUIRE) != AIBRIX_ZONE_MAGIC) {
        return "it holds something else";
    }

    if (z->version != AIBRIX_ZONE_VERSION) {
        return "it was laid out by another version of the module";
    }

    aibrix_zone_layout(size, &l);

    if (z->size != size || z->max_peers != l.peers || z->index_at != l.index_at
        || !aibrix_index_valid(aibrix_zone_at(z, z->index_at), z->index_size))
    {
        return "its layout does not fit its size";
    }

    return NULL;
}


aibrix_index_t *
aibrix_zone_index(const aibrix_zone_t *z)
{
    return aibrix_zone_at(z, z->index_at);
}


aibrix_load_t *
aibrix_zone_load(const aibrix_zone_t *z)
{
    return aibrix_zone_at(z, z->load_at);
}


aibrix_stats_t *
aibrix_zone_stats(const aibrix_zone_t *z)
{
    return aibrix_zone_at(z, z->stats_at);
}


aibrix_learn_t *
aibrix_zone_learn(const aibrix_zone_t *z)
{
    return aibrix_zone_at(z, z->learn_at);
}


const aibrix_peer_t *
aibrix_zone_peer(const aibrix_zone_t *z, uint32_t peer)
{
    return aibrix_zone_entry(z, peer);
}


int
aibrix_zone_peer_used(const aibrix_zone_t *z, uint32_t peer)
{
    return peer < z->max_peers
           && __atomic_load_n(&aibrix_zone_keys(z)[peer], __ATOMIC_ACQUIRE)
              != 0;
}


void
aibrix_zone_drain(aibrix_zone_t *z, uint32_t peer, int drain)
{
    __atomic_store_n(&aibrix_zone_entry(z, peer)->drained,
                     (uint16_t) (drain != 0), __ATOMIC_RELAXED);
}


int
aibrix_zone_drained(const aibrix_zone_t *z, uint32_t peer)
{
    return __atomic_load_n(&aibrix_zone_entry(z, peer)->drained,
                           __ATOMIC_RELAXED);
}


void
aibrix_zone_forget(aibrix_zone_t *z, uint32_t peer, uint64_t now_ms)
{
    aibrix_index_forget(aibrix_zone_index(z), peer, now_ms);
}


static uint64_t
aibrix_zone_key(const aibrix_span_t *upstream, const aibrix_span_t *name)
{
    uint64_t  key;

    key = XXH64(upstream->data, upstream->len, upstream->len);
    key = XXH64(name->data, name->len, key);

    return key ? key : 1;
}


static uint16_t
aibrix_zone_name(char *dst, const aibrix_span_t *src)
{
    size_t  len;

    len = (src->len < AIBRIX_NAME_MAX) ? src->len : AIBRIX_NAME_MAX;
    memcpy(dst, src->data, len);

    return (uint16_t) len;
}


/* A number that was never used, else the idle one unseen for longest. */

static uint32_t
aibrix_zone_free(aibrix_zone_t *z, uint64_t now_ms)
{
    uint32_t            i, found;
    uint64_t            seen, oldest;
    aibrix_load_sum_t   sum;

    if (z->peers < z->max_peers) {
        return z->peers;
    }

    found = AIBRIX_NO_PEER;
    oldest = UINT64_MAX;

    for (i = 0; i < z->max_peers; i++) {
        seen = __atomic_load_n(&aibrix_zone_entry(z, i)->seen_ms,
                               __ATOMIC_RELAXED);

        if (seen + AIBRIX_ZONE_IDLE > now_ms || seen >= oldest) {
            continue;
        }

        aibrix_load_sum(aibrix_zone_load(z), i, &sum);

        if (sum.inflight == 0) {
            found = i;
            oldest = seen;
        }
    }

    return found;
}


uint32_t
aibrix_zone_register(aibrix_zone_t *z, const aibrix_span_t *upstream,
    const aibrix_span_t *name, const aibrix_span_t *server, uint64_t now_ms)
{
    uint32_t        i;
    uint64_t        key, *keys;
    aibrix_peer_t  *peer;

    key = aibrix_zone_key(upstream, name);
    keys = aibrix_zone_keys(z);

    for (i = 0; i < z->peers; i++) {
        if (keys[i] == key) {
            __atomic_store_n(&aibrix_zone_entry(z, i)->seen_ms, now_ms,
                             __ATOMIC_RELAXED);
            return i;
        }
    }

    i = aibrix_zone_free(z, now_ms);

    if (i == AIBRIX_NO_PEER) {
        return AIBRIX_NO_PEER;
    }

    if (i < z->peers) {
        __atomic_store_n(&keys[i], 0, __ATOMIC_RELEASE);
        __atomic_fetch_add(&z->recycled, 1, __ATOMIC_RELEASE);

        /* what is forgotten is missed for a while where many know a block */

        aibrix_zone_forget(z, i, now_ms);
        aibrix_zone_drain(z, i, 0);
    }

    aibrix_learn_peer(aibrix_zone_learn(z), i,
                      XXH64(upstream->data, upstream->len, 0) | 1);
    aibrix_stats_reset_peer(aibrix_zone_stats(z), i);

    peer = aibrix_zone_entry(z, i);

    peer->upstream_len = aibrix_zone_name(peer->upstream, upstream);
    peer->name_len = aibrix_zone_name(peer->name, name);
    peer->server_len = aibrix_zone_name(peer->server, server);
    __atomic_store_n(&peer->seen_ms, now_ms, __ATOMIC_RELAXED);

    __atomic_store_n(&keys[i], key, __ATOMIC_RELEASE);

    if (i == z->peers) {
        __atomic_store_n(&z->peers, i + 1, __ATOMIC_RELEASE);
    }

    return i;
}
