
#include "index_table.h"


void
aibrix_index_stat(const aibrix_index_t *ix, aibrix_index_stat_t *st)
{
    int64_t  blocks;

    st->capacity = ix->shape.nbuckets * AIBRIX_IX_WAYS;
    st->evictions = __atomic_load_n(&ix->evictions, __ATOMIC_RELAXED);
    st->inserts = __atomic_load_n(&ix->inserts, __ATOMIC_RELAXED);

    /* calls that were killed leave it a little off, below 0 even */

    blocks = (int64_t) __atomic_load_n(&ix->blocks, __ATOMIC_RELAXED);
    blocks = (blocks < 0) ? 0 : blocks;
    st->blocks = ((uint64_t) blocks < st->capacity) ? (uint64_t) blocks
                                                    : st->capacity;
}


/* Units since a peer last came to know the block; the ttl when none does. */
static uint64_t
check_age(const aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot)
{
    uint32_t  cell, peer;
    uint64_t  words[AIBRIX_IX_WORDS], age, time;
    unsigned  i;

    age = op->ttl;
    aibrix_ix_read(slot, words, 0);

    for (i = 0; i < AIBRIX_IX_CELLS; i++) {
        cell = aibrix_ix_cell_at(words, i);
        peer = aibrix_ix_cell_peer(cell);

        if (peer >= AIBRIX_MAX_PEERS
            || !aibrix_ix_cell_counts(op, cell, peer))
        {
            continue;
        }

        time = aibrix_ix_cell_time(op, cell);

        if (aibrix_ix_reached(time, op->now)) {
            return 0;
        }

        if (op->now - time < age) {
            age = op->now - time;
        }
    }

    return age;
}


/* Over the buckets from .. to - 1, in units; adds the blocks to *found. */
static uint64_t
check_oldest(const aibrix_ix_op_t *op, aibrix_index_t *ix, uint64_t from,
    uint64_t to, uint64_t *found)
{
    uint64_t          i, age, oldest;
    aibrix_ix_slot_t  slot;

    oldest = 0;

    for (i = from; i < to; i++) {
        slot.bucket = aibrix_ix_buckets(ix) + i;

        for (slot.way = 0; slot.way < AIBRIX_IX_WAYS; slot.way++) {
            slot.word = aibrix_ix_load(&slot.bucket->tag[slot.way]);

            if (!aibrix_ix_is_block(slot.word)) {
                continue;
            }

            (*found)++;
            age = check_age(op, &slot);

            if (age < op->ttl && age > oldest) {
                oldest = age;
            }
        }
    }

    return oldest;
}


uint64_t
aibrix_index_oldest(aibrix_index_t *ix, uint64_t now_ms, uint64_t ttl_ms)
{
    uint64_t        oldest, counted, found;
    aibrix_ix_op_t  op;

    found = 0;
    counted = __atomic_load_n(&ix->blocks, __ATOMIC_RELAXED);
    aibrix_ix_begin(&op, ix, now_ms, ttl_ms);

    oldest = check_oldest(&op, ix, 0, ix->shape.nbuckets, &found);

    /* what others counted meanwhile stays counted */

    op.blocks = (int64_t) (found - counted);
    aibrix_ix_end(&op);

    return oldest * ix->shape.unit;
}


uint64_t
aibrix_index_oldest_part(aibrix_index_t *ix, uint64_t *at, uint64_t n,
    uint64_t now_ms, uint64_t ttl_ms)
{
    uint64_t        oldest, found, end;
    aibrix_ix_op_t  op;

    found = 0;
    n = (n + AIBRIX_IX_WAYS - 1) / AIBRIX_IX_WAYS;
    end = (n < ix->shape.nbuckets - *at) ? *at + n : ix->shape.nbuckets;
    aibrix_ix_begin(&op, ix, now_ms, ttl_ms);

    oldest = check_oldest(&op, ix, *at, end, &found);
    *at = (end == ix->shape.nbuckets) ? 0 : end;

    aibrix_ix_end(&op);

    return oldest * ix->shape.unit;
}


/* Whatever kind of entry it is in: a store may come late, to the other one. */
static const char *
check_word(uint64_t word, unsigned i)
{
    uint32_t  cell;
    unsigned  k;

    if (aibrix_ix_is_group(word)) {
        return NULL;
    }

    for (k = 0; k < 2; k++) {
        cell = aibrix_ix_cell_at(&word, k);

        if (aibrix_ix_cell_is_mask(cell)) {

            if (i * 2 + k != AIBRIX_IX_CELLS - 1) {
                return "a mask of groups is in a cell of a peer";
            }

            if ((cell & AIBRIX_IX_TIME_MASK) == 0) {
                return "a mask of groups is empty";
            }

            continue;
        }

        if (cell != 0 && aibrix_ix_cell_peer(cell) >= AIBRIX_MAX_PEERS) {
            return "a cell names a peer that cannot be";
        }
    }

    return NULL;
}


static const char *
check_bucket(const aibrix_ix_bucket_t *bucket)
{
    uint64_t     tag;
    unsigned     i, way;
    const char  *err;

    for (way = 0; way < AIBRIX_IX_WAYS; way++) {
        tag = aibrix_ix_tag_of(aibrix_ix_load(&bucket->tag[way]));

        if (tag == 0) {
            continue;
        }

        if (tag == AIBRIX_IX_PEERS) {
            return "a tag word has a kind but no hash";
        }

        for (i = 0; i < AIBRIX_IX_WORDS; i++) {
            err = check_word(aibrix_ix_load(&bucket->word[way][i]), i);

            if (err != NULL) {
                return err;
            }
        }
    }

    return NULL;
}


/*
 * Not promised, since a kill or a race may leave them and they do no harm:
 * that a block has one entry only (the first is used, the other ages), that
 * a mask's groups exist, that all groups have a mask, that counts are exact.
 */
const char *
aibrix_index_check(const aibrix_index_t *ix)
{
    uint64_t     i;
    const char  *err;

    if (!aibrix_index_valid(ix, ix->shape.size)) {
        return "the header is damaged";
    }

    for (i = 0; i < ix->shape.nbuckets; i++) {
        err = check_bucket(aibrix_ix_buckets(ix) + i);

        if (err != NULL) {
            return err;
        }
    }

    return NULL;
}
