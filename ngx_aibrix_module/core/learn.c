
#include <string.h>

#include "learn.h"


#define AIBRIX_LEARN_POOLS     64       /* upstreams apart */
#define AIBRIX_LEARN_PREFIXES  8192     /* a power of two */
#define AIBRIX_LEARN_WINDOW    60000    /* ms */

#define AIBRIX_LEARN_DECAY     0.5      /* of all older outcomes by one */
#define AIBRIX_LEARN_ROOM      8        /* the least that is assumed */


/* Weights of recent outcomes, kept in one word; 0 is none at all. */
typedef struct {
    float      hits;
    float      misses;
} aibrix_learn_tally_t;


/* ms, 0 before any; kept in one word. */
typedef struct {
    float      hit;             /* to the first byte, most of it cached */
    float      byte;            /* the same for a byte that nobody has */
} aibrix_learn_times_t;


typedef struct {
    uint64_t   key;             /* of the upstream */
    uint64_t   tally[AIBRIX_LISTINGS];
    uint64_t   times;
    float      room;            /* above AIBRIX_LEARN_ROOM */
    uint32_t   pad;
} aibrix_learn_pool_t;


typedef struct {
    uint64_t   used;            /* the clock when it was chosen */
    uint32_t   pool;
    uint32_t   pad;
} aibrix_learn_peer_t;


/* A prefix is one word: tag 20 bits, time 20, count 12, peer 12. */
#define AIBRIX_LEARN_UNIT      256      /* ms */
#define AIBRIX_LEARN_TIME      0xfffff
#define AIBRIX_LEARN_COUNT     0xfff
#define AIBRIX_LEARN_PEER      0xfff

typedef struct {
    uint32_t   tag;
    uint32_t   since;           /* asked for count times since then */
    uint32_t   count;
    uint32_t   peer;
} aibrix_learn_entry_t;


struct aibrix_learn_s {
    uint64_t             clock;         /* choices made, ever */
    uint64_t             prefixes[AIBRIX_LEARN_PREFIXES];
    aibrix_learn_pool_t  pools[AIBRIX_LEARN_POOLS];
    aibrix_learn_peer_t  peers[];
};


size_t
aibrix_learn_size(uint32_t peers)
{
    return sizeof(aibrix_learn_t) + peers * sizeof(aibrix_learn_peer_t);
}


aibrix_learn_t *
aibrix_learn_init(void *mem, uint32_t peers)
{
    (void) peers;

    return mem;
}


/* More upstreams than pools share them. */

static uint32_t
aibrix_learn_pool(aibrix_learn_t *ln, uint64_t key)
{
    uint32_t  i, n;
    uint64_t  none;

    for (n = 0; n < AIBRIX_LEARN_POOLS; n++) {
        i = (uint32_t) (key + n) % AIBRIX_LEARN_POOLS;
        none = 0;

        if (__atomic_compare_exchange_n(&ln->pools[i].key, &none, key, 0,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)
            || none == key)
        {
            return i;
        }
    }

    return (uint32_t) key % AIBRIX_LEARN_POOLS;
}


void
aibrix_learn_peer(aibrix_learn_t *ln, uint32_t peer, uint64_t upstream)
{
    aibrix_learn_forget(ln, peer);
    __atomic_store_n(&ln->peers[peer].pool, aibrix_learn_pool(ln, upstream),
                     __ATOMIC_RELAXED);
}


void
aibrix_learn_forget(aibrix_learn_t *ln, uint32_t peer)
{
    __atomic_store_n(&ln->peers[peer].used, 0, __ATOMIC_RELAXED);
}


static aibrix_learn_pool_t *
aibrix_learn_of(const aibrix_learn_t *ln, uint32_t peer)
{
    uint32_t  pool;

    pool = __atomic_load_n(&ln->peers[peer].pool, __ATOMIC_RELAXED);

    return (aibrix_learn_pool_t *) &ln->pools[pool % AIBRIX_LEARN_POOLS];
}


static aibrix_learn_tally_t
aibrix_learn_tally(const aibrix_learn_pool_t *p, uint32_t listing,
    double start)
{
    uint64_t              word;
    aibrix_learn_tally_t  t;

    word = __atomic_load_n(&p->tally[listing], __ATOMIC_RELAXED);
    memcpy(&t, &word, sizeof(t));

    if (word == 0) {
        t.hits = (listing == AIBRIX_UNLISTED) ? (float) start : 1;
        t.misses = 1 - t.hits;
    }

    return t;
}


static void
aibrix_learn_set_tally(aibrix_learn_pool_t *p, uint32_t listing,
    const aibrix_learn_tally_t *t)
{
    uint64_t  word;

    memcpy(&word, t, sizeof(word));
    __atomic_store_n(&p->tally[listing], word, __ATOMIC_RELAXED);
}


void
aibrix_learn_get(const aibrix_learn_t *ln, uint32_t peer, double start,
    aibrix_learned_t *out)
{
    float                       room;
    uint32_t                    i;
    aibrix_learn_tally_t        t;
    const aibrix_learn_pool_t  *p;

    p = aibrix_learn_of(ln, peer);

    for (i = 0; i < AIBRIX_LISTINGS; i++) {
        t = aibrix_learn_tally(p, i, start);
        out->cached[i] = (double) t.hits
                         / ((double) t.hits + (double) t.misses);
    }

    __atomic_load(&p->room, &room, __ATOMIC_RELAXED);
    out->room = (double) room + AIBRIX_LEARN_ROOM;
}


void
aibrix_learn_unseen(aibrix_learn_t *ln, uint32_t peer)
{
    aibrix_learn_pool_t   *p;
    aibrix_learn_tally_t   t;

    p = aibrix_learn_of(ln, peer);

    if (__atomic_load_n(&p->tally[AIBRIX_UNLISTED], __ATOMIC_RELAXED) == 0) {
        t.hits = 0;
        t.misses = 1;
        aibrix_learn_set_tally(p, AIBRIX_UNLISTED, &t);
    }
}


static void
aibrix_learn_outcome(aibrix_learn_pool_t *p, uint32_t listing, double start,
    int hit)
{
    aibrix_learn_tally_t  t;

    t = aibrix_learn_tally(p, listing, start);

    t.hits *= (float) AIBRIX_LEARN_DECAY;
    t.misses *= (float) AIBRIX_LEARN_DECAY;

    if (hit) {
        t.hits += 1;

    } else {
        t.misses += 1;
    }

    aibrix_learn_set_tally(p, listing, &t);
}


/* What the peer must compute if it has not cached what it should have. */

static double
aibrix_learn_stake(const aibrix_learn_sent_t *sent)
{
    return (sent->listing == AIBRIX_UNLISTED)
           ? (double) (sent->longest - sent->known) : (double) sent->known;
}


void
aibrix_learn_usage(aibrix_learn_t *ln, uint32_t peer,
    const aibrix_learn_sent_t *sent, double start, double had)
{
    double  base;

    base = (sent->listing == AIBRIX_UNLISTED) ? (double) sent->known : 0;

    if (sent->longest != 0) {
        aibrix_learn_outcome(aibrix_learn_of(ln, peer), sent->listing, start,
                             had > base + aibrix_learn_stake(sent) / 2);
    }
}


/* Follows the low side of what is observed: waiting only adds to it. */

static float
aibrix_learn_low(float old, double value)
{
    if (old == 0) {
        return (float) value;
    }

    return old + ((float) value - old) * ((value < (double) old) ? 0.25f
                                                                 : 0.03f);
}


static aibrix_learn_times_t
aibrix_learn_times(aibrix_learn_pool_t *p, const aibrix_learn_sent_t *sent,
    uint64_t ms)
{
    uint64_t              word;
    aibrix_learn_times_t  t;

    word = __atomic_load_n(&p->times, __ATOMIC_RELAXED);
    memcpy(&t, &word, sizeof(t));

    if (!sent->idle) {
        return t;
    }

    if (sent->longest == 0) {
        t.byte = aibrix_learn_low(t.byte, ((double) ms + 1)
                                          / ((double) sent->prompt + 1));

    } else if (sent->listing != AIBRIX_UNLISTED
               && sent->known * 2 > sent->prompt)
    {
        t.hit = aibrix_learn_low(t.hit, (double) ms + 1);
    }

    memcpy(&word, &t, sizeof(word));
    __atomic_store_n(&p->times, word, __ATOMIC_RELAXED);

    return t;
}


/*
 * How many requests a peer can have in flight and still answer the next one
 * quickly: where as many are quick as are not.
 */

static void
aibrix_learn_room(aibrix_learn_pool_t *p, const aibrix_learn_sent_t *sent,
    int quick)
{
    float  room, n;

    __atomic_load(&p->room, &room, __ATOMIC_RELAXED);
    n = (float) sent->inflight + 1 - AIBRIX_LEARN_ROOM;

    if (quick && n > room) {
        room += 1;

    } else if (!quick && n <= room && room > 0) {
        room -= 1;

    } else {
        return;
    }

    __atomic_store(&p->room, &room, __ATOMIC_RELAXED);
}


void
aibrix_learn_first_byte(aibrix_learn_t *ln, uint32_t peer,
    const aibrix_learn_sent_t *sent, double start, uint64_t ms)
{
    int                    quick;
    float                  room;
    double                 miss;
    aibrix_learn_pool_t   *p;
    aibrix_learn_times_t   t;

    p = aibrix_learn_of(ln, peer);
    t = aibrix_learn_times(p, sent, ms);

    if (sent->longest == 0 || t.hit == 0) {
        return;
    }

    miss = (double) t.hit * 4;

    if (t.byte != 0) {
        miss = (double) t.hit + (double) t.byte * aibrix_learn_stake(sent);
    }

    if (miss < (double) t.hit * 2) {
        return;
    }

    quick = ((double) ms * (double) ms <= (double) t.hit * miss);

    if (!quick && !sent->idle) {
        return;
    }

    __atomic_load(&p->room, &room, __ATOMIC_RELAXED);

    if (quick || (float) sent->inflight < room + AIBRIX_LEARN_ROOM) {
        aibrix_learn_outcome(p, sent->listing, start, quick);
    }

    if (sent->listing == AIBRIX_LISTED_LAST) {
        aibrix_learn_room(p, sent, quick);
    }
}


void
aibrix_learn_chosen(aibrix_learn_t *ln, uint32_t peer)
{
    uint64_t  clock;

    clock = __atomic_add_fetch(&ln->clock, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&ln->peers[peer].used, clock, __ATOMIC_RELAXED);
}


uint64_t
aibrix_learn_used(const aibrix_learn_t *ln, uint32_t peer)
{
    return __atomic_load_n(&ln->peers[peer].used, __ATOMIC_RELAXED);
}


static uint32_t
aibrix_learn_time(uint64_t now_ms)
{
    return (uint32_t) (now_ms / AIBRIX_LEARN_UNIT) & AIBRIX_LEARN_TIME;
}


static uint32_t
aibrix_learn_tag(uint64_t hash)
{
    return (uint32_t) (hash >> 44);
}


/* A prefix that nobody asks for fades: each window halves its count. */

static aibrix_learn_entry_t
aibrix_learn_entry(uint64_t word, uint32_t now)
{
    uint32_t              age;
    aibrix_learn_entry_t  e;

    e.tag = (uint32_t) (word >> 44);
    e.since = (uint32_t) (word >> 24) & AIBRIX_LEARN_TIME;
    e.count = (uint32_t) (word >> 12) & AIBRIX_LEARN_COUNT;
    e.peer = (uint32_t) word & AIBRIX_LEARN_PEER;

    age = (now - e.since) & AIBRIX_LEARN_TIME;

    while (age > AIBRIX_LEARN_WINDOW / AIBRIX_LEARN_UNIT && e.count > 1) {
        age /= 2;
        e.count /= 2;
    }

    e.since = (now - age) & AIBRIX_LEARN_TIME;

    return e;
}


static const uint64_t *
aibrix_learn_word(const aibrix_learn_t *ln, uint64_t hash)
{
    return &ln->prefixes[hash & (AIBRIX_LEARN_PREFIXES - 1)];
}


void
aibrix_learn_ask(aibrix_learn_t *ln, uint64_t hash, uint32_t peer,
    uint64_t now_ms)
{
    uint32_t               now;
    uint64_t              *word;
    aibrix_learn_entry_t   e;

    now = aibrix_learn_time(now_ms);
    word = (uint64_t *) aibrix_learn_word(ln, hash);
    e = aibrix_learn_entry(__atomic_load_n(word, __ATOMIC_RELAXED), now);

    if (e.tag == aibrix_learn_tag(hash) && e.count != 0) {
        e.count += (e.count < AIBRIX_LEARN_COUNT);
        e.peer = peer;

    } else if (e.count > 1) {

        /* rare prefixes wear a frequent one down, but do not push it out */
        e.count--;

    } else {
        e.tag = aibrix_learn_tag(hash);
        e.since = now;
        e.count = 1;
        e.peer = peer;
    }

    __atomic_store_n(word, (uint64_t) e.tag << 44 | (uint64_t) e.since << 24
                           | (uint64_t) e.count << 12 | e.peer,
                     __ATOMIC_RELAXED);
}


void
aibrix_learn_asked(const aibrix_learn_t *ln, uint64_t hash, uint64_t now_ms,
    aibrix_learn_prefix_t *out)
{
    uint32_t              now, age;
    aibrix_learn_entry_t  e;

    now = aibrix_learn_time(now_ms);
    e = aibrix_learn_entry(__atomic_load_n(aibrix_learn_word(ln, hash),
                                           __ATOMIC_RELAXED), now);

    out->count = 0;
    out->peer = AIBRIX_LEARN_NO_PEER;
    out->rate = 0;

    if (e.count == 0 || e.tag != aibrix_learn_tag(hash)) {
        return;
    }

    out->count = e.count;
    out->peer = e.peer;
    age = (now - e.since) & AIBRIX_LEARN_TIME;

    if (age != 0) {
        out->rate = (double) e.count * 1000
                    / ((double) age * AIBRIX_LEARN_UNIT);
    }
}
