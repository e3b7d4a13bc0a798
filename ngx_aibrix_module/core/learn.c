
#include <string.h>

#include "learn.h"


#define AIBRIX_LEARN_POOLS     64       /* upstreams apart */
#define AIBRIX_LEARN_PREFIXES  8192     /* a power of two */
#define AIBRIX_LEARN_WINDOW    60000    /* ms */

#define AIBRIX_LEARN_DECAY     0.5      /* of older outcomes by one more */
#define AIBRIX_LEARN_ROOM      8        /* the least that is assumed */
#define AIBRIX_LEARN_CLEAR     2        /* a miss takes twice a hit's time */
#define AIBRIX_LEARN_GUESS     4        /* it takes so much if not known */


/* Two weights, or two times in ms; both in one word that starts as 0. */
typedef struct {
    float      a;
    float      b;
} aibrix_learn_pair_t;


typedef struct {
    uint64_t   key;             /* of the upstream */
    uint64_t   outcomes;        /* hits and misses of what was not listed */
    uint64_t   times;           /* to a first byte: of a hit, of a byte */
    float      room;            /* above AIBRIX_LEARN_ROOM */
    uint32_t   pad;
} aibrix_learn_pool_t;


typedef struct {
    uint64_t   used;            /* the clock when it was chosen */
    uint32_t   pool;
    uint32_t   pad;
} aibrix_learn_peer_t;


/* A prefix is one word: tag 24 bits, time 24, count 16. */
#define AIBRIX_LEARN_UNIT      64       /* ms */
#define AIBRIX_LEARN_TIME      0xffffff
#define AIBRIX_LEARN_COUNT     0xffff

typedef struct {
    uint32_t   tag;
    uint32_t   since;           /* asked for count times since then */
    uint32_t   count;
} aibrix_learn_prefix_t;


struct aibrix_learn_s {
    uint64_t             clock;         /* choices made, ever */
    uint64_t             prefixes[AIBRIX_LEARN_PREFIXES];
    aibrix_learn_pool_t  pools[AIBRIX_LEARN_POOLS];
    aibrix_learn_peer_t  peers[];
};


const aibrix_learned_t  aibrix_learned_nothing = {
    .room = AIBRIX_LEARN_ROOM
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

void
aibrix_learn_peer(aibrix_learn_t *ln, uint32_t peer, uint64_t upstream)
{
    uint32_t  i, n;
    uint64_t  key;

    i = (uint32_t) (upstream % AIBRIX_LEARN_POOLS);

    for (n = 0; n < AIBRIX_LEARN_POOLS; n++) {
        key = 0;

        if (__atomic_compare_exchange_n(&ln->pools[i].key, &key, upstream, 0,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)
            || key == upstream)
        {
            break;
        }

        i = (i + 1) % AIBRIX_LEARN_POOLS;
    }

    __atomic_store_n(&ln->peers[peer].pool, i, __ATOMIC_RELAXED);
    __atomic_store_n(&ln->peers[peer].used, 0, __ATOMIC_RELAXED);
}


static aibrix_learn_pool_t *
aibrix_learn_pool(const aibrix_learn_t *ln, uint32_t peer)
{
    uint32_t  i;

    i = __atomic_load_n(&ln->peers[peer].pool, __ATOMIC_RELAXED);

    return (aibrix_learn_pool_t *) &ln->pools[i % AIBRIX_LEARN_POOLS];
}


static aibrix_learn_pair_t
aibrix_learn_load(const uint64_t *word)
{
    uint64_t             w;
    aibrix_learn_pair_t  pair;

    w = __atomic_load_n(word, __ATOMIC_RELAXED);
    memcpy(&pair, &w, sizeof(pair));

    return pair;
}


static void
aibrix_learn_store(uint64_t *word, double a, double b)
{
    uint64_t             w;
    aibrix_learn_pair_t  pair;

    pair.a = (float) a;
    pair.b = (float) b;
    memcpy(&w, &pair, sizeof(w));

    __atomic_store_n(word, w, __ATOMIC_RELAXED);
}


static aibrix_learn_pair_t
aibrix_learn_outcomes(const aibrix_learn_pool_t *p, double start)
{
    aibrix_learn_pair_t  o;

    o = aibrix_learn_load(&p->outcomes);

    if (o.a == 0 && o.b == 0) {
        o.a = (float) start;
        o.b = (float) (1 - start);
    }

    return o;
}


static void
aibrix_learn_outcome(aibrix_learn_pool_t *p, double start, int hit)
{
    aibrix_learn_pair_t  o;

    o = aibrix_learn_outcomes(p, start);

    aibrix_learn_store(&p->outcomes,
                       (double) o.a * AIBRIX_LEARN_DECAY + (hit ? 1 : 0),
                       (double) o.b * AIBRIX_LEARN_DECAY + (hit ? 0 : 1));
}


static double
aibrix_learn_roomy(const aibrix_learn_pool_t *p)
{
    float  room;

    __atomic_load(&p->room, &room, __ATOMIC_RELAXED);

    return (double) room + AIBRIX_LEARN_ROOM;
}


void
aibrix_learn_get(const aibrix_learn_t *ln, uint32_t peer, double start,
    aibrix_learned_t *out)
{
    aibrix_learn_pair_t         o, t;
    const aibrix_learn_pool_t  *p;

    p = aibrix_learn_pool(ln, peer);
    o = aibrix_learn_outcomes(p, start);
    t = aibrix_learn_load(&p->times);

    *out = aibrix_learned_nothing;
    out->belief = (double) o.a / ((double) o.a + (double) o.b);
    out->room = aibrix_learn_roomy(p);
    out->hit_ms = (double) t.a;
    out->byte_ms = (double) t.b;
}


void
aibrix_learn_unseen(aibrix_learn_t *ln, uint32_t peer)
{
    aibrix_learn_pool_t  *p;

    p = aibrix_learn_pool(ln, peer);

    if (__atomic_load_n(&p->outcomes, __ATOMIC_RELAXED) == 0) {
        aibrix_learn_store(&p->outcomes, 0, 1);
    }
}


void
aibrix_learn_usage(aibrix_learn_t *ln, uint32_t peer,
    const aibrix_learn_sent_t *sent, double start, double had)
{
    if (sent->known < sent->longest) {
        aibrix_learn_outcome(aibrix_learn_pool(ln, peer), start,
                             had * 2 > (double) sent->known
                                       + (double) sent->longest);
    }
}


/* Follows the low side of what is observed: waiting only adds to it. */

static double
aibrix_learn_low(double old, double value)
{
    value = (value > 1e-6) ? value : 1e-6;

    if (old == 0) {
        return value;
    }

    return old + (value - old) * ((value < old) ? 0.25 : 0.03);
}


/* Only a prompt that waited for no other one tells what takes how long. */

static void
aibrix_learn_time(aibrix_learn_pool_t *p, const aibrix_learn_sent_t *sent,
    double ms)
{
    double               own;
    aibrix_learn_pair_t  t;

    t = aibrix_learn_load(&p->times);
    own = (double) (sent->prompt - sent->known);

    if (sent->longest == 0) {
        aibrix_learn_store(&p->times, (double) t.a,
                           aibrix_learn_low((double) t.b, ms / (own + 1)));

    } else if (sent->known == sent->longest
               && own * 4 < (double) sent->prompt)
    {
        aibrix_learn_store(&p->times,
                           aibrix_learn_low((double) t.a,
                                            ms - own * (double) t.b),
                           (double) t.b);
    }
}


/*
 * The room is where as many requests are answered quickly as are not: with
 * one request more, the next one waits.
 */

static void
aibrix_learn_room(aibrix_learn_pool_t *p, const aibrix_learn_sent_t *sent,
    int quick)
{
    float   room;
    double  n;

    __atomic_load(&p->room, &room, __ATOMIC_RELAXED);
    n = (double) sent->inflight + 1 - AIBRIX_LEARN_ROOM;

    if (quick && n > (double) room) {
        room += 1;

    } else if (!quick && n <= (double) room && room > 0) {
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
    int                   quick;
    double                time, stake, hit, miss;
    aibrix_learn_pair_t   t;
    aibrix_learn_pool_t  *p;

    p = aibrix_learn_pool(ln, peer);
    time = (double) ms + 0.5;

    if (sent->idle) {
        aibrix_learn_time(p, sent, time);
    }

    t = aibrix_learn_load(&p->times);

    if (sent->longest == 0 || t.a == 0) {
        return;
    }

    /* what it takes if all is cached that is listed anywhere, or nothing */

    stake = (double) ((sent->known < sent->longest)
                      ? sent->longest - sent->known : sent->known);
    hit = (double) t.a
          + (double) t.b * (double) (sent->prompt - sent->longest);
    miss = (t.b != 0) ? hit + (double) t.b * stake : hit * AIBRIX_LEARN_GUESS;

    if (miss < hit * AIBRIX_LEARN_CLEAR) {
        return;
    }

    quick = (time * time <= hit * miss);

    if (!quick && !sent->idle) {
        return;
    }

    if (sent->known == sent->longest) {
        aibrix_learn_room(p, sent, quick);

    } else if (quick || (double) sent->inflight < aibrix_learn_roomy(p)) {
        aibrix_learn_outcome(p, start, quick);
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
aibrix_learn_clock(uint64_t now_ms)
{
    return (uint32_t) (now_ms / AIBRIX_LEARN_UNIT) & AIBRIX_LEARN_TIME;
}


static uint32_t
aibrix_learn_tag(uint64_t hash)
{
    return (uint32_t) (hash >> 40);
}


static const uint64_t *
aibrix_learn_slot(const aibrix_learn_t *ln, uint64_t hash)
{
    return &ln->prefixes[hash & (AIBRIX_LEARN_PREFIXES - 1)];
}


/* A prefix that nobody asks for fades: each window halves its count. */

static aibrix_learn_prefix_t
aibrix_learn_prefix(const uint64_t *slot, uint32_t now)
{
    uint32_t               age;
    uint64_t               word;
    aibrix_learn_prefix_t  p;

    word = __atomic_load_n(slot, __ATOMIC_RELAXED);

    p.tag = (uint32_t) (word >> 40);
    p.since = (uint32_t) (word >> 16) & AIBRIX_LEARN_TIME;
    p.count = (uint32_t) word & AIBRIX_LEARN_COUNT;

    age = (now - p.since) & AIBRIX_LEARN_TIME;

    while (age > AIBRIX_LEARN_WINDOW / AIBRIX_LEARN_UNIT && p.count != 0) {
        age /= 2;
        p.count /= 2;
    }

    p.since = (now - age) & AIBRIX_LEARN_TIME;

    return p;
}


void
aibrix_learn_ask(aibrix_learn_t *ln, uint64_t hash, uint64_t now_ms)
{
    uint32_t                now;
    uint64_t               *slot;
    aibrix_learn_prefix_t   p;

    now = aibrix_learn_clock(now_ms);
    slot = (uint64_t *) aibrix_learn_slot(ln, hash);
    p = aibrix_learn_prefix(slot, now);

    if (p.tag == aibrix_learn_tag(hash) && p.count != 0) {
        p.count += (p.count < AIBRIX_LEARN_COUNT);

    } else if (p.count > 1) {

        /* rare prefixes wear a frequent one down, but do not push it out */
        p.count--;

    } else {
        p.tag = aibrix_learn_tag(hash);
        p.since = now;
        p.count = 1;
    }

    __atomic_store_n(slot, (uint64_t) p.tag << 40 | (uint64_t) p.since << 16
                           | p.count, __ATOMIC_RELAXED);
}


uint32_t
aibrix_learn_asked(const aibrix_learn_t *ln, uint64_t hash, uint64_t now_ms,
    double *rate)
{
    uint32_t               now, age;
    aibrix_learn_prefix_t  p;

    now = aibrix_learn_clock(now_ms);
    p = aibrix_learn_prefix(aibrix_learn_slot(ln, hash), now);

    *rate = 0;

    if (p.count == 0 || p.tag != aibrix_learn_tag(hash)) {
        return 0;
    }

    age = (now - p.since) & AIBRIX_LEARN_TIME;

    if (age != 0) {
        *rate = (double) p.count * 1000 / ((double) age * AIBRIX_LEARN_UNIT);
    }

    return p.count;
}
