
#include "index_table.h"


void
aibrix_ix_begin(aibrix_ix_op_t *op, aibrix_index_t *ix, uint64_t now_ms,
    uint64_t ttl_ms)
{
    uint64_t  max;

    max = aibrix_index_max_ttl(ix);

    op->ix = ix;
    op->now = now_ms / ix->shape.unit;
    op->ttl = ((ttl_ms < max) ? ttl_ms : max) / ix->shape.unit;
    op->epoch = op->now / ix->shape.epoch;
    op->instant = (uint32_t) (now_ms / ix->shape.stamp_unit);
    op->clock = op->instant & ~(AIBRIX_IX_QUANTUM - 1);
    op->probation = (uint32_t) (ix->shape.ttl / 8 / ix->shape.stamp_unit);
    op->depth = 0;
    op->blocks = 0;
    op->inserts = 0;
    op->evictions = 0;
}


/*
 * Counted once a call, so a process that is killed loses the counts of the
 * call that it was in, no more; aibrix_index_oldest() counts blocks anew.
 */
void
aibrix_ix_end(aibrix_ix_op_t *op)
{
    aibrix_index_t  *ix;

    ix = op->ix;

    if (op->blocks != 0) {
        (void) __atomic_fetch_add(&ix->blocks, (uint64_t) op->blocks,
                                  __ATOMIC_RELAXED);
    }

    if (op->inserts != 0) {
        (void) __atomic_fetch_add(&ix->inserts, op->inserts,
                                  __ATOMIC_RELAXED);
    }

    if (op->evictions != 0) {
        (void) __atomic_fetch_add(&ix->evictions, op->evictions,
                                  __ATOMIC_RELAXED);
    }
}


/* Not beyond probation: no tail is to look older than a chain asked once. */
void
aibrix_ix_depth(aibrix_ix_op_t *op, size_t i)
{
    op->depth = (i < op->probation) ? (uint32_t) i : op->probation;
}


/*
 * The clock moves in quanta: within one, touching again stores nothing, and
 * as all of a chain is stamped by the same clock less the depth, a tail is
 * never younger than its head.
 */
void
aibrix_ix_touch(const aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot)
{
    uint64_t  word;

    if (aibrix_ix_stamp_age(op, slot->word) <= op->depth) {
        return;
    }

    word = aibrix_ix_tag_of(slot->word) << AIBRIX_IX_TAG_SHIFT
           | ((op->clock - op->depth) & AIBRIX_IX_STAMP_MASK);

    (void) aibrix_ix_cas(&slot->bucket->tag[slot->way], slot->word, word);
}


static int
table_block_live(const aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot)
{
    uint32_t  cell, peer;
    uint64_t  words[AIBRIX_IX_WORDS], age;
    unsigned  i;

    aibrix_ix_read(slot, words, 0);

    for (i = 0; i < AIBRIX_IX_CELLS; i++) {
        cell = aibrix_ix_cell_at(words, i);
        peer = aibrix_ix_cell_peer(cell);

        if (peer < AIBRIX_MAX_PEERS && aibrix_ix_cell_counts(op, cell, peer)) {
            return 1;
        }
    }

    if (!aibrix_ix_cell_is_mask(aibrix_ix_cell_at(words,
                                                  AIBRIX_IX_CELLS - 1)))
    {
        return 0;
    }

    /* the groups are elsewhere; that somebody asked for it has to do */

    age = aibrix_ix_stamp_age(op, slot->word) * op->ix->shape.stamp_unit;

    return age < op->ttl * op->ix->shape.unit;
}


static int
table_group_live(const aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot)
{
    uint64_t  words[AIBRIX_IX_WORDS], age;
    unsigned  i;

    aibrix_ix_read(slot, words, 1);

    for (i = 0; i < AIBRIX_IX_WORDS; i++) {
        age = (op->epoch + 1 - (words[i] >> AIBRIX_IX_GROUP))
              & AIBRIX_IX_EPOCH_MASK;

        if (age <= AIBRIX_IX_EPOCHS && (words[i] & AIBRIX_IX_GROUP_MASK)) {
            return 1;
        }
    }

    return 0;
}


int
aibrix_ix_live(const aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot)
{
    return aibrix_ix_is_block(slot->word) ? table_block_live(op, slot)
                                          : table_group_live(op, slot);
}


/* Free, or left by one who was killed before it was filled. */
static int
table_is_free(const aibrix_ix_op_t *op, uint64_t word)
{
    return word == 0
           || (aibrix_ix_tag_of(word) == 0
               && aibrix_ix_stamp_age(op, word) > AIBRIX_IX_QUANTUM);
}


static int
table_free_way(const aibrix_ix_op_t *op, aibrix_ix_slot_t *slot)
{
    for (slot->way = 0; slot->way < AIBRIX_IX_WAYS; slot->way++) {
        slot->word = aibrix_ix_load(&slot->bucket->tag[slot->way]);

        if (table_is_free(op, slot->word)) {
            return 1;
        }
    }

    return 0;
}


/*
 * The way to fill: a free one, else one that nobody knows any more, else the
 * oldest.  Among equals it is left to the hash, or the same one would always
 * go, and it the newest.  NULL in slot.bucket when there is none, or when
 * what is to be made was just made by somebody else.
 */
static aibrix_ix_slot_t
table_victim(const aibrix_ix_op_t *op, aibrix_ix_key_t key, int *live)
{
    int               alive;
    uint32_t          age, oldest;
    unsigned          i;
    aibrix_ix_slot_t  slot, victim;

    *live = 0;
    oldest = 0;
    slot.bucket = key.bucket;
    victim.bucket = NULL;

    if (table_free_way(op, &slot)) {
        return slot;
    }

    for (i = 0; i < AIBRIX_IX_WAYS; i++) {
        slot.way = ((key.tag >> 1) + i) % AIBRIX_IX_WAYS;
        slot.word = aibrix_ix_load(&slot.bucket->tag[slot.way]);

        if (aibrix_ix_tag_of(slot.word) == key.tag) {
            victim.bucket = NULL;
            break;
        }

        if (aibrix_ix_tag_of(slot.word) == 0) {
            continue;
        }

        age = aibrix_ix_stamp_age(op, slot.word);
        alive = aibrix_ix_live(op, &slot);

        if (victim.bucket == NULL
            || alive < *live
            || (alive == *live && age > oldest))
        {
            victim = slot;
            oldest = age;
            *live = alive;
        }
    }

    return victim;
}


/*
 * Takes the entry away from what it held, so that nothing in it counts, then
 * fills it, then gives it the new tag.  Whoever dies in between leaves an
 * entry that is free after a quantum.
 */
static int
table_fill(aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot, int live,
    uint64_t tagged, const uint64_t *words)
{
    uint64_t   claim, *tag;
    unsigned   i;

    tag = &slot->bucket->tag[slot->way];
    claim = (op->clock | 1) & AIBRIX_IX_STAMP_MASK;

    if (!aibrix_ix_cas(tag, slot->word, claim)) {
        return 0;
    }

    op->evictions += live;
    op->blocks -= aibrix_ix_is_block(slot->word);

    for (i = 0; i < AIBRIX_IX_WORDS; i++) {
        __atomic_store_n(&aibrix_ix_words(slot)[i], words[i],
                         __ATOMIC_RELEASE);
    }

    if (!aibrix_ix_cas(tag, claim, tagged)) {
        return 0;
    }

    op->blocks += aibrix_ix_is_block(tagged);
    op->inserts += aibrix_ix_is_block(tagged);

    return 1;
}


/*
 * Two may have made the same entry at once.  Then both see it and take back
 * theirs, or the second one does; none that holds anything is lost.
 */
static int
table_only_one(aibrix_ix_op_t *op, aibrix_ix_slot_t *slot, uint64_t tagged)
{
    if (aibrix_ix_ways(slot->bucket, aibrix_ix_tag_of(tagged))
        == 1u << slot->way)
    {
        return 1;
    }

    slot->word = tagged;
    aibrix_ix_drop(op, slot);

    return 0;
}


/*
 * In a bucket of blocks that are asked for, what is new is always the oldest.
 * It gets a place nevertheless, or nothing new ever would, but a tail not
 * that of its own head.
 */
static int
table_is_further_up(const aibrix_ix_op_t *op, uint64_t word, uint32_t stamp)
{
    uint32_t  younger;

    younger = ((uint32_t) word - stamp) & AIBRIX_IX_STAMP_MASK;

    return younger != 0 && younger <= op->depth;
}


int
aibrix_ix_insert(aibrix_ix_op_t *op, aibrix_ix_key_t key,
    const uint64_t *words)
{
    int               live;
    uint32_t          stamp;
    uint64_t          tagged;
    aibrix_ix_slot_t  slot;

    slot = table_victim(op, key, &live);

    if (slot.bucket == NULL) {
        return 0;
    }

    stamp = op->instant - op->depth;
    tagged = key.tag << AIBRIX_IX_TAG_SHIFT;

    if (aibrix_ix_is_block(tagged)) {
        stamp -= op->probation;

        if (live && table_is_further_up(op, slot.word, stamp)) {
            return 1;
        }
    }

    tagged |= stamp & AIBRIX_IX_STAMP_MASK;

    return table_fill(op, &slot, live, tagged, words)
           && table_only_one(op, &slot, tagged);
}


void
aibrix_ix_drop(aibrix_ix_op_t *op, const aibrix_ix_slot_t *slot)
{
    if (aibrix_ix_cas(&slot->bucket->tag[slot->way], slot->word, 0)) {
        op->blocks -= aibrix_ix_is_block(slot->word);
    }
}


int
aibrix_ix_change(const aibrix_ix_slot_t *slot, unsigned i, uint64_t old,
    uint64_t word)
{
    if (!aibrix_ix_cas(&aibrix_ix_words(slot)[i], old, word)) {
        return 0;
    }

    if (!aibrix_ix_still(slot)) {
        (void) aibrix_ix_cas(&aibrix_ix_words(slot)[i], word, old);
        return 0;
    }

    return 1;
}
