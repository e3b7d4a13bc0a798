
#include <string.h>

#include "index_group.h"


#define INDEX_MAGIC        0x786469786972626aull
#define INDEX_LAYOUT       1
#define INDEX_MIN_BUCKETS  64
#define INDEX_MAX_TTL      (1ull << 40)
#define INDEX_AHEAD        8        /* blocks that memory is asked for ahead */


static inline uint64_t
index_at_least_1(uint64_t n)
{
    return (n == 0) ? 1 : n;
}


static void
index_shape(aibrix_ix_shape_t *shape, size_t size, uint64_t ttl)
{
    uint64_t  nbuckets;

    ttl = (ttl < INDEX_MAX_TTL) ? ttl : INDEX_MAX_TTL;
    nbuckets = (size - aibrix_ix_header_size()) / sizeof(aibrix_ix_bucket_t);

    shape->layout = INDEX_LAYOUT;
    shape->max_peers = AIBRIX_MAX_PEERS;
    shape->size = size;
    shape->nbuckets = (nbuckets < UINT32_MAX) ? nbuckets : UINT32_MAX;
    shape->ttl = ttl;
    shape->unit = index_at_least_1(ttl / 1024);
    shape->stamp_unit = index_at_least_1(ttl / 65536);
    shape->epoch = index_at_least_1(ttl / shape->unit / AIBRIX_IX_EPOCHS);
}


size_t
aibrix_index_min_size(void)
{
    return aibrix_ix_header_size()
           + INDEX_MIN_BUCKETS * sizeof(aibrix_ix_bucket_t);
}


aibrix_index_t *
aibrix_index_init(void *mem, size_t size, uint64_t ttl_ms)
{
    aibrix_index_t  *ix;

    if (size < aibrix_index_min_size()) {
        return NULL;
    }

    ix = mem;
    index_shape(&ix->shape, size, ttl_ms);
    __atomic_store_n(&ix->magic, INDEX_MAGIC, __ATOMIC_RELEASE);

    return ix;
}


/* Half of what a cell can tell apart, and of what a stamp can. */
uint64_t
aibrix_index_max_ttl(const aibrix_index_t *ix)
{
    uint64_t  cell, stamp;

    cell = ix->shape.unit << (AIBRIX_IX_TIME_BITS - 1);
    stamp = ix->shape.stamp_unit << (AIBRIX_IX_TAG_SHIFT - 1);

    return (cell < stamp) ? cell : stamp;
}


int
aibrix_index_valid(const void *mem, size_t size)
{
    aibrix_ix_shape_t      shape;
    const aibrix_index_t  *ix;

    ix = mem;

    if (size < aibrix_index_min_size()
        || aibrix_ix_load(&ix->magic) != INDEX_MAGIC)
    {
        return 0;
    }

    index_shape(&shape, size, ix->shape.ttl);

    return memcmp(&shape, &ix->shape, sizeof(shape)) == 0;
}


/* The cell of the peer, else one that does not count, else AIBRIX_IX_CELLS. */
static unsigned
record_place(const aibrix_ix_op_t *op, const uint64_t *words, uint32_t peer)
{
    uint32_t  cell, other;
    unsigned  i, place;

    place = AIBRIX_IX_CELLS;

    for (i = 0; i < AIBRIX_IX_CELLS; i++) {
        cell = aibrix_ix_cell_at(words, i);
        other = aibrix_ix_cell_peer(cell);

        if (other == peer) {
            return i;
        }

        if (place == AIBRIX_IX_CELLS
            && !(other < AIBRIX_MAX_PEERS
                 && aibrix_ix_cell_counts(op, cell, other))
            && !(i == AIBRIX_IX_CELLS - 1 && aibrix_ix_cell_is_mask(cell)))
        {
            place = i;
        }
    }

    return place;
}


static unsigned
record_oldest(const aibrix_ix_op_t *op, const uint64_t *words)
{
    uint64_t  time, best;
    unsigned  i, place;

    best = 0;
    place = 0;

    for (i = 0; i < AIBRIX_IX_CELLS - 1; i++) {
        time = aibrix_ix_cell_time(op, aibrix_ix_cell_at(words, i));

        if (i == 0 || !aibrix_ix_reached(time, best)) {
            best = time;
            place = i;
        }
    }

    return place;
}


static int
record_cell(const aibrix_ix_slot_t *slot, uint64_t *words, unsigned i,
    uint32_t cell)
{
    uint64_t  word;

    word = aibrix_ix_with_cell(words[i / 2], i, cell);

    if (word == words[i / 2]) {
        return 1;
    }

    if (!aibrix_ix_change(slot, i / 2, words[i / 2], word)) {
        return 0;
    }

    words[i / 2] = word;

    return 1;
}


/* Makes the last cell a mask, if it is none, and sets the peer's bit in it. */
static int
record_mask(const aibrix_ix_slot_t *slot, uint64_t *words, uint32_t peer)
{
    uint32_t  cell;

    cell = aibrix_ix_cell_at(words, AIBRIX_IX_CELLS - 1);

    if (!aibrix_ix_cell_is_mask(cell)) {
        cell = aibrix_ix_mask_cell(0);
    }

    cell |= aibrix_ix_mask_bit(peer / AIBRIX_IX_GROUP);

    return record_cell(slot, words, AIBRIX_IX_CELLS - 1, cell);
}


/* Has a group know what cell i says, as far as a group can. */
static int
record_spill(aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot,
    uint64_t *words, uint64_t hash, unsigned i)
{
    uint32_t  cell, peer;

    cell = aibrix_ix_cell_at(words, i);
    peer = aibrix_ix_cell_peer(cell);

    (void) aibrix_ix_group_put(op, hash, peer, aibrix_ix_cell_time(op, cell));

    return record_mask(slot, words, peer);
}


/* One attempt; returns 0 when the entry changed under it, or has to again. */
static int
record_in(aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot, uint64_t hash,
    uint32_t peer, uint64_t time)
{
    uint32_t  cell;
    uint64_t  words[AIBRIX_IX_WORDS];
    unsigned  i;

    aibrix_ix_read_clean(slot, words);
    i = record_place(op, words, peer);

    if (i < AIBRIX_IX_CELLS) {
        cell = aibrix_ix_cell_at(words, i);

        if (aibrix_ix_cell_peer(cell) == peer
            && aibrix_ix_reached(aibrix_ix_cell_time(op, cell), time))
        {
            return 1;
        }

        return record_cell(slot, words, i, aibrix_ix_cell(peer, time));
    }

    i = AIBRIX_IX_CELLS - 1;

    if (!aibrix_ix_cell_is_mask(aibrix_ix_cell_at(words, i))) {
        (void) record_spill(op, slot, words, hash, i);
        return 0;
    }

    if (aibrix_ix_group_put(op, hash, peer, time)) {
        return record_mask(slot, words, peer);
    }

    i = record_oldest(op, words);

    return record_spill(op, slot, words, hash, i)
           && record_cell(slot, words, i, aibrix_ix_cell(peer, time));
}


static void
record_block(aibrix_ix_op_t *op, uint64_t hash, uint32_t peer, uint64_t time)
{
    int               tries;
    uint64_t          words[AIBRIX_IX_WORDS];
    aibrix_ix_key_t   key;
    aibrix_ix_slot_t  slot;

    key = aibrix_ix_block_key(op->ix, hash);

    for (tries = 0; tries < AIBRIX_IX_TRIES; tries++) {
        slot = aibrix_ix_find(key);

        if (slot.bucket == NULL) {
            words[0] = aibrix_ix_cell(peer, time);
            words[1] = 0;
            words[2] = 0;

            if (aibrix_ix_insert(op, key, words)) {
                return;
            }

            continue;
        }

        aibrix_ix_touch(op, &slot);

        if (record_in(op, &slot, hash, peer, time)) {
            return;
        }
    }
}


/*
 * The tags are there by now: asks for what record_block() will look at, the
 * entry, or a free one, or all of the bucket when one has to be evicted.
 */
static void
record_prefetch(const aibrix_index_t *ix, uint64_t hash)
{
    unsigned          ways;
    aibrix_ix_key_t   key;
    aibrix_ix_slot_t  slot;

    key = aibrix_ix_block_key(ix, hash);
    ways = aibrix_ix_ways(key.bucket, key.tag);
    ways = (ways != 0) ? ways : aibrix_ix_ways(key.bucket, 0);

    if (ways != 0) {
        slot.bucket = key.bucket;
        slot.way = __builtin_ctz(ways);
        aibrix_ix_prefetch_words(&slot);
        return;
    }

    __builtin_prefetch(key.bucket->word[0]);
    __builtin_prefetch(key.bucket->word[AIBRIX_IX_WAYS / 2]);
    __builtin_prefetch(key.bucket->word[AIBRIX_IX_WAYS - 1]);
}


void
aibrix_index_record(aibrix_index_t *ix, const uint64_t *hashes, size_t n,
    uint32_t peer, uint64_t now_ms, uint64_t ttl_ms)
{
    size_t          i;
    uint64_t        time;
    aibrix_ix_op_t  op;

    if (peer >= AIBRIX_MAX_PEERS) {
        return;
    }

    aibrix_ix_begin(&op, ix, now_ms, ttl_ms);

    time = aibrix_ix_forgotten(ix, peer);

    if (aibrix_ix_reached(op.now, time)) {
        time = op.now;

    } else if (time - op.now >= AIBRIX_IX_FORGET_LEAD) {
        return;
    }

    for (i = 0; i < n && i < 2 * INDEX_AHEAD; i++) {
        aibrix_ix_prefetch_block(ix, hashes[i]);
    }

    for (i = 0; i < n && i < INDEX_AHEAD; i++) {
        record_prefetch(ix, hashes[i]);
    }

    for (i = 0; i < n; i++) {

        if (n - i > 2 * INDEX_AHEAD) {
            aibrix_ix_prefetch_block(ix, hashes[i + 2 * INDEX_AHEAD]);
        }

        if (n - i > INDEX_AHEAD) {
            record_prefetch(ix, hashes[i + INDEX_AHEAD]);
        }

        aibrix_ix_depth(&op, i);
        record_block(&op, hashes[i], peer, time);
    }

    aibrix_ix_end(&op);
}


/* Returns non-zero when nobody is said to know the block any more. */
static int
unrecord_block(const aibrix_index_t *ix, const aibrix_ix_slot_t *slot,
    uint64_t hash, uint32_t peer)
{
    int       tries;
    uint32_t  cell;
    uint64_t  words[AIBRIX_IX_WORDS];
    unsigned  i;

    for (i = 0; i < AIBRIX_IX_CELLS; i++) {

        for (tries = 0; tries < AIBRIX_IX_TRIES; tries++) {
            aibrix_ix_read(slot, words, 0);
            cell = aibrix_ix_cell_at(words, i);

            if (aibrix_ix_cell_peer(cell) != peer
                || record_cell(slot, words, i, 0))
            {
                break;
            }
        }
    }

    cell = aibrix_ix_cell_at(words, AIBRIX_IX_CELLS - 1);

    if (aibrix_ix_cell_is_mask(cell)
        && (cell & aibrix_ix_mask_bit(peer / AIBRIX_IX_GROUP)))
    {
        aibrix_ix_group_take(ix, hash, peer);
    }

    return (words[0] | words[1] | words[2]) == 0;
}


void
aibrix_index_unrecord(aibrix_index_t *ix, const uint64_t *hashes,
    size_t from, size_t n, uint32_t peer)
{
    size_t            i;
    aibrix_ix_op_t    op;
    aibrix_ix_slot_t  slot;

    if (peer >= AIBRIX_MAX_PEERS) {
        return;
    }

    aibrix_ix_begin(&op, ix, 0, 0);

    for (i = from; i < n; i++) {
        slot = aibrix_ix_find(aibrix_ix_block_key(ix, hashes[i]));

        if (slot.bucket != NULL
            && unrecord_block(ix, &slot, hashes[i], peer))
        {
            aibrix_ix_drop(&op, &slot);
        }
    }

    aibrix_ix_end(&op);
}


/*
 * From the next unit on, so that what was recorded earlier in this one does
 * not survive; records of this one are then written as of the next.  When
 * that has been done too often in one unit, the peer is not recorded at all
 * until the clock has caught up.
 */
void
aibrix_index_forget(aibrix_index_t *ix, uint32_t peer, uint64_t now_ms)
{
    int       tries;
    uint64_t  now, old, next;

    if (peer >= AIBRIX_MAX_PEERS) {
        return;
    }

    now = now_ms / ix->shape.unit;

    for (tries = 0; tries < AIBRIX_IX_TRIES; tries++) {
        old = aibrix_ix_forgotten(ix, peer);
        next = aibrix_ix_reached(now, old) ? now + 1 : old + 1;

        if (next > now + AIBRIX_IX_FORGET_LEAD) {
            break;
        }

        if (aibrix_ix_cas(&ix->forgotten[peer], old, next)) {
            break;
        }
    }
}
