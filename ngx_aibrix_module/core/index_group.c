
#include <string.h>

#include "index_group.h"


static inline int
group_same_epoch(uint64_t a, uint64_t b)
{
    return a >> AIBRIX_IX_GROUP == b >> AIBRIX_IX_GROUP;
}


/* The same word of a group holds every third epoch. */
static inline int
group_newer(uint64_t a, uint64_t b)
{
    uint64_t  later;

    later = (a >> AIBRIX_IX_GROUP) - (b >> AIBRIX_IX_GROUP);

    return aibrix_ix_is_group(a)
           && (later & AIBRIX_IX_EPOCH_MASK) == AIBRIX_IX_EPOCHS;
}


int
aibrix_ix_group_put(aibrix_ix_op_t *op, uint64_t hash, uint32_t peer,
    uint64_t time)
{
    int               tries;
    uint64_t          epoch, old, word, mine, words[AIBRIX_IX_WORDS];
    unsigned          i;
    aibrix_ix_key_t   key;
    aibrix_ix_slot_t  slot;

    epoch = time / op->ix->shape.epoch;

    if (!aibrix_ix_reached(epoch * op->ix->shape.epoch,
                           aibrix_ix_forgotten(op->ix, peer)))
    {
        return 0;
    }

    key = aibrix_ix_group_key(op->ix, hash, peer / AIBRIX_IX_GROUP);
    i = epoch % AIBRIX_IX_EPOCHS;
    mine = AIBRIX_IX_GROUP_MARK << 60
           | (epoch & AIBRIX_IX_EPOCH_MASK) << AIBRIX_IX_GROUP
           | 1ull << peer % AIBRIX_IX_GROUP;

    for (tries = 0; tries < AIBRIX_IX_TRIES; tries++) {
        slot = aibrix_ix_find(key);

        if (slot.bucket == NULL) {
            memset(words, 0, sizeof(words));
            words[i] = mine;

            if (aibrix_ix_insert(op, key, words)) {
                return 1;
            }

            continue;
        }

        aibrix_ix_touch(op, &slot);
        old = aibrix_ix_load(&aibrix_ix_words(&slot)[i]);

        if (group_newer(old, mine)) {
            return 0;
        }

        word = group_same_epoch(old, mine) ? (old | mine) : mine;

        if (word == old || aibrix_ix_change(&slot, i, old, word)) {
            return 1;
        }
    }

    return 0;
}


void
aibrix_ix_group_take(const aibrix_index_t *ix, uint64_t hash, uint32_t peer)
{
    int               tries;
    uint64_t          old, bit;
    unsigned          i;
    aibrix_ix_slot_t  slot;

    slot = aibrix_ix_find(aibrix_ix_group_key(ix, hash,
                                              peer / AIBRIX_IX_GROUP));

    if (slot.bucket == NULL) {
        return;
    }

    bit = 1ull << peer % AIBRIX_IX_GROUP;

    for (i = 0; i < AIBRIX_IX_WORDS; i++) {

        for (tries = 0; tries < AIBRIX_IX_TRIES; tries++) {
            old = aibrix_ix_load(&aibrix_ix_words(&slot)[i]);

            if (!aibrix_ix_is_group(old)
                || !(old & bit)
                || aibrix_ix_change(&slot, i, old, old & ~bit))
            {
                break;
            }
        }
    }
}


int
aibrix_ix_group_none(const aibrix_ix_op_t *op, uint64_t hash, uint32_t bit)
{
    unsigned          group;
    aibrix_ix_slot_t  slot;

    for (group = __builtin_ctz(bit);
         group < AIBRIX_IX_GROUPS;
         group += AIBRIX_IX_TIME_BITS)
    {
        slot = aibrix_ix_find(aibrix_ix_group_key(op->ix, hash, group));

        if (slot.bucket != NULL && aibrix_ix_live(op, &slot)) {
            return 0;
        }
    }

    return 1;
}
