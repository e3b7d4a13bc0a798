
/*
 * The table under the prefix index: layout, clock, entries.  Private to
 * index*.c and their tests.
 *
 * A bucket is 8 entries: one cache line of tag words, then 24 bytes an entry.
 * A tag word is {39 bits of the hash, 1 bit of kind, 24 bits of stamp}; the
 * stamp orders eviction.  A word of 0 is a free entry; a stamp without a tag
 * is an entry that somebody is just filling.
 *
 * The three words of an entry are, by its kind:
 *
 *   block   six cells {13 bits: peer + 1, 19 bits: time}, 0 = empty; or, in
 *           place of the sixth, {MASK, 19 bits: where groups may be}
 *   group   48 consecutive peers of one block, in a bucket that follows the
 *           block's: {4 bits: mark, 12 bits: epoch, 48 bits: peers}, where
 *           word i is for the epochs that are i modulo 3
 *
 * A cell is exact.  A bit of a group is worth the epoch, a third of the ttl,
 * that it was set in, and counts as old as the beginning of it: a group
 * forgets early, never late.
 *
 * Times are in units (of about ttl / 1024), kept modulo the width they have.
 * A hint that nobody touched for 512 ttl would look young again; it is gone
 * from any table in use by then, and a wrong hint costs one cache miss.
 */

#ifndef AIBRIX_INDEX_TABLE_H_INCLUDED_
#define AIBRIX_INDEX_TABLE_H_INCLUDED_

#include "index.h"


#define AIBRIX_IX_WAYS        8
#define AIBRIX_IX_WORDS       3
#define AIBRIX_IX_CELLS       6

#define AIBRIX_IX_TAG_SHIFT   24
#define AIBRIX_IX_TAG_BITS    39
#define AIBRIX_IX_STAMP_MASK  0xffffffu
#define AIBRIX_IX_QUANTUM     64u       /* stamps move on in such steps */

#define AIBRIX_IX_TIME_BITS   19
#define AIBRIX_IX_TIME_MASK   0x7ffffu
#define AIBRIX_IX_CODE_MASK   0x1fffu   /* code: the cell's upper 13 bits */

#define AIBRIX_IX_GROUP       48        /* peers a group */
#define AIBRIX_IX_GROUPS      ((AIBRIX_MAX_PEERS + AIBRIX_IX_GROUP - 1)       \
                               / AIBRIX_IX_GROUP)
#define AIBRIX_IX_GROUP_MARK  0xcull    /* no cell has it as upper 4 bits */
#define AIBRIX_IX_GROUP_MASK  0xffffffffffffull
#define AIBRIX_IX_EPOCH_MASK  0xfffu
#define AIBRIX_IX_EPOCHS      3

/* Clocks of two users may differ by as much: in units, in stamp units. */
#define AIBRIX_IX_TIME_SKEW   256u
#define AIBRIX_IX_STAMP_SKEW  65536u

/* A peer may be forgotten so often within one unit before it has to wait. */
#define AIBRIX_IX_FORGET_LEAD  16

/* Lost races are tried again so often, then the hint is given up. */
#define AIBRIX_IX_TRIES       8


typedef enum {
    AIBRIX_IX_BLOCK = 0,
    AIBRIX_IX_PEERS
} aibrix_ix_kind_e;


typedef struct {
    uint64_t   tag[AIBRIX_IX_WAYS];
    uint64_t   word[AIBRIX_IX_WAYS][AIBRIX_IX_WORDS];
} aibrix_ix_bucket_t;


/* Fixed when the index is made; all of it follows from size and ttl. */
typedef struct {
    uint32_t   layout;
    uint32_t   max_peers;
    uint64_t   size;
    uint64_t   nbuckets;
    uint64_t   ttl;                     /* ms */
    uint64_t   unit;                    /* ms */
    uint64_t   stamp_unit;              /* ms */
    uint64_t   epoch;                   /* units */
} aibrix_ix_shape_t;


struct aibrix_index_s {
    uint64_t           magic;
    aibrix_ix_shape_t  shape;

    /* a line of their own: written by all */
    uint64_t           blocks;
    uint64_t           inserts;
    uint64_t           evictions;
    uint64_t           pad[5];

    /* first unit whose records count, by peer */
    uint64_t           forgotten[AIBRIX_MAX_PEERS];
};


/* What one call knows of time, and what it will have counted. */
typedef struct {
    uint64_t         now;               /* units */
    uint64_t         ttl;               /* units */
    uint64_t         epoch;             /* the one that now is in */
    uint32_t         instant;           /* stamp units */
    uint32_t         clock;             /* the same, whole quanta */
    uint32_t         probation;         /* stamp units; so much older is new */
    uint32_t         depth;             /* of the block in its chain */
    int64_t          blocks;
    uint64_t         inserts;
    uint64_t         evictions;
    aibrix_index_t  *ix;
} aibrix_ix_op_t;


/* Where an entry is, if it is there. */
typedef struct {
    uint64_t             tag;
    aibrix_ix_bucket_t  *bucket;
} aibrix_ix_key_t;


/* An entry that was found: word is its tag word as it was then. */
typedef struct {
    uint64_t             word;
    aibrix_ix_bucket_t  *bucket;        /* NULL: there is none */
    int                  way;
} aibrix_ix_slot_t;


static inline uint64_t
aibrix_ix_load(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}


static inline int
aibrix_ix_cas(uint64_t *p, uint64_t old, uint64_t word)
{
    return __atomic_compare_exchange_n(p, &old, word, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}


static inline size_t
aibrix_ix_header_size(void)
{
    return (sizeof(aibrix_index_t) + sizeof(aibrix_ix_bucket_t) - 1)
           & ~(sizeof(aibrix_ix_bucket_t) - 1);
}


static inline aibrix_ix_bucket_t *
aibrix_ix_buckets(const aibrix_index_t *ix)
{
    return (aibrix_ix_bucket_t *) ((char *) ix + aibrix_ix_header_size());
}


static inline uint64_t
aibrix_ix_tag(uint64_t hash, aibrix_ix_kind_e kind)
{
    uint64_t  tag;

    tag = hash & ((1ull << AIBRIX_IX_TAG_BITS) - 1);
    tag = (tag == 0) ? 1 : tag;

    return tag << 1 | kind;
}


/*
 * The multiplication makes the upper bits depend on all of the hash, so the
 * bucket says something else of it than the tag.
 */
static inline uint64_t
aibrix_ix_place(const aibrix_index_t *ix, uint64_t hash)
{
    hash = (hash * 0x9e3779b97f4a7c15ull) >> 32;

    return (hash * ix->shape.nbuckets) >> 32;
}


static inline aibrix_ix_key_t
aibrix_ix_block_key(const aibrix_index_t *ix, uint64_t hash)
{
    aibrix_ix_key_t  key;

    key.bucket = aibrix_ix_buckets(ix) + aibrix_ix_place(ix, hash);
    key.tag = aibrix_ix_tag(hash, AIBRIX_IX_BLOCK);

    return key;
}


/*
 * The groups of a block are in the buckets that follow its own: one after
 * the other they are read several times as fast as from all over the table.
 */
static inline aibrix_ix_key_t
aibrix_ix_group_key(const aibrix_index_t *ix, uint64_t hash, unsigned group)
{
    uint64_t         i;
    aibrix_ix_key_t  key;

    i = aibrix_ix_place(ix, hash) + 1 + group;

    while (i >= ix->shape.nbuckets) {
        i -= ix->shape.nbuckets;
    }

    hash ^= (group + 1) * 0xc2b2ae3d27d4eb4full;
    hash *= 0x9e3779b185ebca87ull;

    key.bucket = aibrix_ix_buckets(ix) + i;
    key.tag = aibrix_ix_tag(hash ^ hash >> 32, AIBRIX_IX_PEERS);

    return key;
}


static inline uint64_t
aibrix_ix_tag_of(uint64_t word)
{
    return word >> AIBRIX_IX_TAG_SHIFT;
}


/* Not a group, nor free. */
static inline int
aibrix_ix_is_block(uint64_t word)
{
    return aibrix_ix_tag_of(word) != 0
           && (aibrix_ix_tag_of(word) & 1) == AIBRIX_IX_BLOCK;
}


/* Stamps that are a little in the future are of age 0. */
static inline uint32_t
aibrix_ix_stamp_age(const aibrix_ix_op_t *op, uint64_t word)
{
    uint32_t  age;

    age = (op->clock - (uint32_t) word) & AIBRIX_IX_STAMP_MASK;

    return (age > AIBRIX_IX_STAMP_MASK - AIBRIX_IX_STAMP_SKEW) ? 0 : age;
}


/* One bit for every way that holds the tag. */
static inline unsigned
aibrix_ix_ways(const aibrix_ix_bucket_t *bucket, uint64_t tag)
{
    unsigned  i, ways;

    ways = 0;

    for (i = 0; i < AIBRIX_IX_WAYS; i++) {
        ways |= (unsigned) (aibrix_ix_tag_of(aibrix_ix_load(&bucket->tag[i]))
                            == tag) << i;
    }

    return ways;
}


static inline aibrix_ix_slot_t
aibrix_ix_find(aibrix_ix_key_t key)
{
    unsigned          ways;
    aibrix_ix_slot_t  slot;

    slot.bucket = NULL;
    ways = aibrix_ix_ways(key.bucket, key.tag);

    if (ways != 0) {
        slot.way = __builtin_ctz(ways);
        slot.word = aibrix_ix_load(&key.bucket->tag[slot.way]);

        if (aibrix_ix_tag_of(slot.word) == key.tag) {
            slot.bucket = key.bucket;
        }
    }

    return slot;
}


/* Does the entry still hold what was found? */
static inline int
aibrix_ix_still(const aibrix_ix_slot_t *slot)
{
    uint64_t  word;

    word = aibrix_ix_load(&slot->bucket->tag[slot->way]);

    return aibrix_ix_tag_of(word) == aibrix_ix_tag_of(slot->word);
}


static inline uint64_t *
aibrix_ix_words(const aibrix_ix_slot_t *slot)
{
    return slot->bucket->word[slot->way];
}


static inline int
aibrix_ix_is_group(uint64_t word)
{
    return word >> 60 == AIBRIX_IX_GROUP_MARK;
}


/* The words of an entry; what strayed in from the other kind reads as 0. */
static inline void
aibrix_ix_read(const aibrix_ix_slot_t *slot, uint64_t *words, int group)
{
    int  i;

    for (i = 0; i < AIBRIX_IX_WORDS; i++) {
        words[i] = aibrix_ix_load(&aibrix_ix_words(slot)[i]);

        if (aibrix_ix_is_group(words[i]) != group) {
            words[i] = 0;
        }
    }
}


/* The same for a block that is to be written: what strayed in is removed. */
static inline void
aibrix_ix_read_clean(const aibrix_ix_slot_t *slot, uint64_t *words)
{
    int  i;

    for (i = 0; i < AIBRIX_IX_WORDS; i++) {
        words[i] = aibrix_ix_load(&aibrix_ix_words(slot)[i]);

        if (aibrix_ix_is_group(words[i])) {
            (void) aibrix_ix_cas(&aibrix_ix_words(slot)[i], words[i], 0);
            words[i] = 0;
        }
    }
}


static inline void
aibrix_ix_prefetch_tags(aibrix_ix_key_t key)
{
    __builtin_prefetch(key.bucket->tag);
}


static inline void
aibrix_ix_prefetch_block(const aibrix_index_t *ix, uint64_t hash)
{
    aibrix_ix_prefetch_tags(aibrix_ix_block_key(ix, hash));
}


static inline void
aibrix_ix_prefetch_words(const aibrix_ix_slot_t *slot)
{
    __builtin_prefetch(&aibrix_ix_words(slot)[0]);
    __builtin_prefetch(&aibrix_ix_words(slot)[AIBRIX_IX_WORDS - 1]);
}


/* Cells */

static inline uint32_t
aibrix_ix_cell_at(const uint64_t *words, unsigned i)
{
    return (uint32_t) (words[i / 2] >> (i % 2 * 32));
}


static inline uint64_t
aibrix_ix_with_cell(uint64_t word, unsigned i, uint32_t cell)
{
    unsigned  shift;

    shift = i % 2 * 32;

    return (word & ~(0xffffffffull << shift)) | (uint64_t) cell << shift;
}


static inline uint32_t
aibrix_ix_cell(uint32_t peer, uint64_t time)
{
    return (peer + 1) << AIBRIX_IX_TIME_BITS
           | (uint32_t) (time & AIBRIX_IX_TIME_MASK);
}


/* AIBRIX_MAX_PEERS or more when the cell is no peer's. */
static inline uint32_t
aibrix_ix_cell_peer(uint32_t cell)
{
    return (cell >> AIBRIX_IX_TIME_BITS) - 1;
}


static inline int
aibrix_ix_cell_is_mask(uint32_t cell)
{
    return cell >> AIBRIX_IX_TIME_BITS == AIBRIX_IX_CODE_MASK;
}


static inline uint32_t
aibrix_ix_mask_cell(uint32_t bits)
{
    return AIBRIX_IX_CODE_MASK << AIBRIX_IX_TIME_BITS | bits;
}


static inline uint32_t
aibrix_ix_mask_bit(unsigned group)
{
    return 1u << (group % AIBRIX_IX_TIME_BITS);
}


/* When the cell was written, in units; in the future at most by the skew. */
static inline uint64_t
aibrix_ix_cell_time(const aibrix_ix_op_t *op, uint32_t cell)
{
    uint32_t  age;

    age = ((uint32_t) op->now - cell) & AIBRIX_IX_TIME_MASK;

    if (age > AIBRIX_IX_TIME_MASK - AIBRIX_IX_TIME_SKEW) {
        return op->now + (AIBRIX_IX_TIME_MASK + 1 - age);
    }

    return op->now - age;
}


static inline uint64_t
aibrix_ix_forgotten(const aibrix_index_t *ix, uint32_t peer)
{
    return aibrix_ix_load(&ix->forgotten[peer]);
}


/* Times wrap: a is at or after b. */
static inline int
aibrix_ix_reached(uint64_t a, uint64_t b)
{
    return (int64_t) (a - b) >= 0;
}


/* peer is that of the cell, below AIBRIX_MAX_PEERS. */
static inline int
aibrix_ix_cell_counts(const aibrix_ix_op_t *op, uint32_t cell, uint32_t peer)
{
    uint64_t  time;

    time = aibrix_ix_cell_time(op, cell);

    return !aibrix_ix_reached(op->now, time + op->ttl)
           && aibrix_ix_reached(time, aibrix_ix_forgotten(op->ix, peer));
}


void aibrix_ix_begin(aibrix_ix_op_t *op, aibrix_index_t *ix, uint64_t now_ms,
    uint64_t ttl_ms);
void aibrix_ix_end(aibrix_ix_op_t *op);

/* How deep in its chain the next block is, for its stamp. */
void aibrix_ix_depth(aibrix_ix_op_t *op, size_t i);

/* Makes the entry as young as this moment, unless it is younger. */
void aibrix_ix_touch(const aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot);

/*
 * Makes an entry of these words, with some other evicted if need be.  A new
 * block is on probation: older than what was ever asked for again; when all
 * that could go for it is as new and further up a chain, it is left out.
 * Returns 0 when somebody else was at the same entry: then look again.
 */
int aibrix_ix_insert(aibrix_ix_op_t *op, aibrix_ix_key_t key,
    const uint64_t *words);

/* Frees the entry; a block is then not counted any more. */
void aibrix_ix_drop(aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot);

/*
 * Replaces word i of the entry, or fails: when it was changed meanwhile, or
 * the entry taken away (a store that came too late for that is undone).
 */
int aibrix_ix_change(const aibrix_ix_slot_t *slot, unsigned i, uint64_t old,
    uint64_t word);

/* Is there a peer who knows it still? */
int aibrix_ix_live(const aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot);


#endif /* AIBRIX_INDEX_TABLE_H_INCLUDED_ */
