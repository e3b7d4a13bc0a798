
#include <string.h>

#include "learn.h"


#define AIBRIX_LEARN_PREFIXES  8192     /* a power of two */
#define AIBRIX_LEARN_WINDOW    60000    /* ms */

#define AIBRIX_LEARN_WEIGHT    2.0      /* of the start, in observations */
#define AIBRIX_LEARN_DECAY     0.7


/* Both are kept in one word; all 0 is nothing observed. */
typedef struct {
    float      hits;
    float      misses;
} aibrix_learn_belief_t;


typedef struct {
    uint64_t   belief;
    uint64_t   used;
} aibrix_learn_peer_t;


/* A prefix is one word: tag 24 bits, when it was first asked 24, count 16. */
#define AIBRIX_LEARN_UNIT      64       /* ms */
#define AIBRIX_LEARN_BITS      24
#define AIBRIX_LEARN_MASK      ((1U << AIBRIX_LEARN_BITS) - 1)
#define AIBRIX_LEARN_MAX       0xffff

typedef struct {
    uint32_t   tag;
    uint32_t   since;
    uint32_t   count;
} aibrix_learn_prefix_t;


struct aibrix_learn_s {
    uint32_t             peers;
    uint32_t             pad;
    uint64_t             clock;         /* choices made, ever */
    uint64_t             prefixes[AIBRIX_LEARN_PREFIXES];
    aibrix_learn_peer_t  peer[];
};


size_t
aibrix_learn_size(uint32_t peers)
{
    return sizeof(aibrix_learn_t) + peers * sizeof(aibrix_learn_peer_t);
}


aibrix_learn_t *
aibrix_learn_init(void *mem, uint32_t peers)
{
    aibrix_learn_t  *ln;

    ln = mem;
    ln->peers = peers;

    return ln;
}


void
aibrix_learn_forget(aibrix_learn_t *ln, uint32_t peer)
{
    __atomic_store_n(&ln->peer[peer].belief, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&ln->peer[peer].used, 0, __ATOMIC_RELAXED);
}


static aibrix_learn_belief_t
aibrix_learn_read(const aibrix_learn_t *ln, uint32_t peer, double start)
{
    uint64_t               word;
    aibrix_learn_belief_t  b;

    word = __atomic_load_n(&ln->peer[peer].belief, __ATOMIC_RELAXED);

    if (word == 0) {
        b.hits = (float) (AIBRIX_LEARN_WEIGHT * start);
        b.misses = (float) (AIBRIX_LEARN_WEIGHT * (1 - start));
        return b;
    }

    memcpy(&b, &word, sizeof(b));

    return b;
}


double
aibrix_learn_belief(const aibrix_learn_t *ln, uint32_t peer, double start)
{
    aibrix_learn_belief_t  b;

    b = aibrix_learn_read(ln, peer, start);

    return (double) b.hits / ((double) b.hits + (double) b.misses);
}


void
aibrix_learn_outcome(aibrix_learn_t *ln, uint32_t peer, double start, int hit)
{
    uint64_t               word;
    aibrix_learn_belief_t  b;

    b = aibrix_learn_read(ln, peer, start);

    b.hits = b.hits * (float) AIBRIX_LEARN_DECAY + (hit ? 1 : 0);
    b.misses = b.misses * (float) AIBRIX_LEARN_DECAY + (hit ? 0 : 1);

    memcpy(&word, &b, sizeof(b));
    __atomic_store_n(&ln->peer[peer].belief, word, __ATOMIC_RELAXED);
}


void
aibrix_learn_chosen(aibrix_learn_t *ln, uint32_t peer)
{
    uint64_t  clock;

    clock = __atomic_add_fetch(&ln->clock, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&ln->peer[peer].used, clock, __ATOMIC_RELAXED);
}


uint64_t
aibrix_learn_used(const aibrix_learn_t *ln, uint32_t peer)
{
    return __atomic_load_n(&ln->peer[peer].used, __ATOMIC_RELAXED);
}


static aibrix_learn_prefix_t
aibrix_learn_unpack(uint64_t word)
{
    aibrix_learn_prefix_t  p;

    p.tag = (uint32_t) (word >> 40);
    p.since = (uint32_t) (word >> 16) & AIBRIX_LEARN_MASK;
    p.count = (uint32_t) word & AIBRIX_LEARN_MAX;

    return p;
}


static uint64_t
aibrix_learn_pack(const aibrix_learn_prefix_t *p)
{
    return (uint64_t) p->tag << 40 | (uint64_t) p->since << 16 | p->count;
}


static uint32_t
aibrix_learn_time(uint64_t now_ms)
{
    return (uint32_t) (now_ms / AIBRIX_LEARN_UNIT) & AIBRIX_LEARN_MASK;
}


/* A prefix that nobody asks for fades: each window halves its count. */

static void
aibrix_learn_fade(aibrix_learn_prefix_t *p, uint32_t now)
{
    uint32_t  age;

    age = (now - p->since) & AIBRIX_LEARN_MASK;

    while (age > AIBRIX_LEARN_WINDOW / AIBRIX_LEARN_UNIT && p->count != 0) {
        age /= 2;
        p->count /= 2;
    }

    p->since = (now - age) & AIBRIX_LEARN_MASK;
}


void
aibrix_learn_ask(aibrix_learn_t *ln, uint64_t hash, uint64_t now_ms)
{
    uint32_t                now, tag;
    uint64_t               *word;
    aibrix_learn_prefix_t   p;

    now = aibrix_learn_time(now_ms);
    tag = (uint32_t) (hash >> 40);
    word = &ln->prefixes[hash & (AIBRIX_LEARN_PREFIXES - 1)];

    p = aibrix_learn_unpack(__atomic_load_n(word, __ATOMIC_RELAXED));
    aibrix_learn_fade(&p, now);

    if (p.tag == tag && p.count != 0) {
        p.count += (p.count < AIBRIX_LEARN_MAX);

    } else if (p.count > 1) {

        /* rare prefixes wear a frequent one down, but do not push it out */
        p.count--;

    } else {
        p.tag = tag;
        p.since = now;
        p.count = 1;
    }

    __atomic_store_n(word, aibrix_learn_pack(&p), __ATOMIC_RELAXED);
}


uint32_t
aibrix_learn_asked(const aibrix_learn_t *ln, uint64_t hash, uint64_t now_ms,
    double *rate)
{
    uint32_t               now, age;
    const uint64_t        *word;
    aibrix_learn_prefix_t  p;

    now = aibrix_learn_time(now_ms);
    word = &ln->prefixes[hash & (AIBRIX_LEARN_PREFIXES - 1)];

    p = aibrix_learn_unpack(__atomic_load_n(word, __ATOMIC_RELAXED));
    aibrix_learn_fade(&p, now);

    *rate = 0;

    if (p.count == 0 || p.tag != (uint32_t) (hash >> 40)) {
        return 0;
    }

    age = (now - p.since) & AIBRIX_LEARN_MASK;

    if (age != 0) {
        *rate = (double) p.count * 1000 / ((double) age * AIBRIX_LEARN_UNIT);
    }

    return p.count;
}
