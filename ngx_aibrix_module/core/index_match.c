
#include <string.h>

#include "index_group.h"


#define MATCH_AHEAD   8         /* blocks that memory is asked for ahead */
#define MATCH_EPOCHS  (AIBRIX_IX_EPOCHS + 1)    /* and the one to come */


/*
 * The peers that know the chain so far are the bits of alive; only its words
 * that are not 0 are looked at.  A group may reach over the last word.
 */
typedef struct {
    aibrix_ix_op_t  op;
    unsigned        nwords;
    unsigned        ngroups;
    uint8_t         words[AIBRIX_PEER_WORDS];
    uint8_t         groups[AIBRIX_IX_GROUPS];
    uint64_t        alive[AIBRIX_PEER_WORDS + 1];
    uint64_t        known[AIBRIX_PEER_WORDS + 1];

    /* peers whose bits count, by group and age of the epoch, newest first */
    uint64_t        counts[AIBRIX_IX_GROUPS][MATCH_EPOCHS];
} match_t;


static void
match_begin(match_t *m, const aibrix_peerset_t *among)
{
    unsigned  i;

    m->nwords = 0;
    m->ngroups = 0;

    for (i = 0; i < AIBRIX_PEER_WORDS; i++) {
        m->alive[i] = among->word[i];

        if (m->alive[i] != 0) {
            m->words[m->nwords++] = i;
        }
    }

    m->alive[AIBRIX_PEER_WORDS] = 0;
}


/* The 48 bits of a group. */
static inline uint64_t
match_group_bits(const uint64_t *set, unsigned group)
{
    uint64_t  bits;
    unsigned  i, shift;

    i = group * AIBRIX_IX_GROUP / 64;
    shift = group * AIBRIX_IX_GROUP % 64;
    bits = set[i] >> shift;

    if (shift > 64 - AIBRIX_IX_GROUP) {
        bits |= set[i + 1] << (64 - shift);
    }

    return bits & AIBRIX_IX_GROUP_MASK;
}


static inline void
match_group_add(uint64_t *set, unsigned group, uint64_t bits)
{
    unsigned  i, shift;

    i = group * AIBRIX_IX_GROUP / 64;
    shift = group * AIBRIX_IX_GROUP % 64;
    set[i] |= bits << shift;

    if (shift > 64 - AIBRIX_IX_GROUP) {
        set[i + 1] |= bits >> (64 - shift);
    }
}


/* A bit counts if its epoch began within the ttl, after the last forget. */
static void
match_group_counts(match_t *m, unsigned group, uint64_t bits)
{
    uint32_t         peer;
    uint64_t         begin, forgotten;
    unsigned         i;
    aibrix_ix_op_t  *op;

    op = &m->op;
    memset(m->counts[group], 0, sizeof(m->counts[group]));

    for ( /* void */ ; bits != 0; bits &= bits - 1) {
        peer = group * AIBRIX_IX_GROUP + (unsigned) __builtin_ctzll(bits);
        forgotten = aibrix_ix_forgotten(op->ix, peer);

        for (i = 0; i < MATCH_EPOCHS; i++) {
            begin = (op->epoch + 1 - i) * op->ix->shape.epoch;

            if (aibrix_ix_reached(begin, forgotten)
                && !aibrix_ix_reached(op->now, begin + op->ttl))
            {
                m->counts[group][i] |= bits & -bits;
            }
        }
    }
}


/* Done when the first block with groups is met: few prompts have one. */
static void
match_groups_begin(match_t *m)
{
    uint64_t  bits;
    unsigned  group;

    if (m->ngroups != 0) {
        return;
    }

    for (group = 0; group < AIBRIX_IX_GROUPS; group++) {
        bits = match_group_bits(m->alive, group);

        if (bits != 0) {
            m->groups[m->ngroups++] = group;
            match_group_counts(m, group, bits);
        }
    }
}


/* Returns who of the group knows, and whether any peer does at all. */
static uint64_t
match_group(match_t *m, unsigned group, const aibrix_ix_slot_t *slot,
    int *any)
{
    uint64_t  words[AIBRIX_IX_WORDS], known;
    unsigned  i, age;

    known = 0;
    *any = 0;
    aibrix_ix_read(slot, words, 1);

    for (i = 0; i < AIBRIX_IX_WORDS; i++) {
        age = (m->op.epoch + 1 - (words[i] >> AIBRIX_IX_GROUP))
              & AIBRIX_IX_EPOCH_MASK;

        if (age < MATCH_EPOCHS) {
            known |= words[i] & m->counts[group][age];
            *any |= (words[i] & AIBRIX_IX_GROUP_MASK) != 0;
        }
    }

    if (!aibrix_ix_still(slot)) {
        *any = 0;
        return 0;
    }

    return known;
}


/* A mask keeps no time: its bits go when one is found to lead nowhere. */
static void
match_mask_prune(match_t *m, const aibrix_ix_slot_t *slot, uint64_t hash,
    uint32_t cell, uint32_t stale)
{
    uint64_t  old;
    uint32_t  bit, left;

    left = cell & AIBRIX_IX_TIME_MASK;

    for ( /* void */ ; stale != 0; stale &= stale - 1) {
        bit = stale & -stale;

        if (aibrix_ix_group_none(&m->op, hash, bit)) {
            left &= ~bit;
        }
    }

    old = aibrix_ix_load(&aibrix_ix_words(slot)[AIBRIX_IX_WORDS - 1]);

    if (old >> 32 == cell && left != (cell & AIBRIX_IX_TIME_MASK)) {
        cell = (left == 0) ? 0 : aibrix_ix_mask_cell(left);
        (void) aibrix_ix_change(slot, AIBRIX_IX_WORDS - 1, old,
                                aibrix_ix_with_cell(old, 1, cell));
    }
}


static void
match_groups(match_t *m, const aibrix_ix_slot_t *slot, uint64_t hash,
    uint32_t cell)
{
    int               any;
    uint32_t          bit, asked, found;
    uint64_t          bits, known;
    unsigned          i, n, group;
    uint8_t           groups[AIBRIX_IX_GROUPS];
    aibrix_ix_key_t   keys[AIBRIX_IX_GROUPS];
    aibrix_ix_slot_t  slots[AIBRIX_IX_GROUPS];

    n = 0;
    asked = 0;
    found = 0;
    match_groups_begin(m);

    for (i = 0; i < m->ngroups; i++) {
        group = m->groups[i];
        bit = aibrix_ix_mask_bit(group);
        bits = match_group_bits(m->alive, group);

        if ((cell & bit)
            && (bits & ~match_group_bits(m->known, group)) != 0)
        {
            keys[n] = aibrix_ix_group_key(m->op.ix, hash, group);
            aibrix_ix_prefetch_tags(keys[n]);
            groups[n++] = group;
            asked |= bit;
        }
    }

    for (i = 0; i < n; i++) {
        slots[i] = aibrix_ix_find(keys[i]);

        if (slots[i].bucket != NULL) {
            aibrix_ix_prefetch_words(&slots[i]);
        }
    }

    for (i = 0; i < n; i++) {

        if (slots[i].bucket == NULL) {
            continue;
        }

        known = match_group(m, groups[i], &slots[i], &any)
                & match_group_bits(m->alive, groups[i]);

        if (known != 0) {
            match_group_add(m->known, groups[i], known);
            aibrix_ix_touch(&m->op, &slots[i]);
        }

        if (any) {
            found |= aibrix_ix_mask_bit(groups[i]);
        }
    }

    if (asked & ~found) {
        match_mask_prune(m, slot, hash, cell, asked & ~found);
    }
}


static inline void
match_cell(match_t *m, uint32_t cell)
{
    uint32_t  peer;
    uint64_t  bit;

    peer = aibrix_ix_cell_peer(cell);

    if (peer < AIBRIX_MAX_PEERS) {
        bit = 1ull << peer % 64;

        if ((m->alive[peer / 64] & bit)
            && aibrix_ix_cell_counts(&m->op, cell, peer))
        {
            m->known[peer / 64] |= bit;
        }
    }
}


/* Leaves in known who of the peers alive knows the block. */
static void
match_block(match_t *m, const aibrix_ix_slot_t *slot, uint64_t hash)
{
    uint32_t  cell;
    uint64_t  words[AIBRIX_IX_WORDS];
    unsigned  i;

    for (i = 0; i < m->nwords; i++) {
        m->known[m->words[i]] = 0;
    }

    if (slot->bucket == NULL) {
        return;
    }

    aibrix_ix_read(slot, words, 0);

    if (!aibrix_ix_still(slot)) {
        return;
    }

    for (i = 0; i < AIBRIX_IX_WORDS; i++) {

        if (words[i] != 0) {
            match_cell(m, (uint32_t) words[i]);
            match_cell(m, (uint32_t) (words[i] >> 32));
        }
    }

    cell = aibrix_ix_cell_at(words, AIBRIX_IX_CELLS - 1);

    if (aibrix_ix_cell_is_mask(cell)) {
        match_groups(m, slot, hash, cell);
    }
}


/* Peers that do not know block i are out, with i blocks. */
static void
match_keep(match_t *m, size_t i, uint32_t *matched)
{
    uint64_t  lost;
    unsigned  k, n, w;

    n = 0;

    for (k = 0; k < m->nwords; k++) {
        w = m->words[k];
        lost = m->alive[w] & ~m->known[w];
        m->alive[w] &= m->known[w];

        if (m->alive[w] != 0) {
            m->words[n++] = w;
        }

        if (i == 0) {
            continue;
        }

        for ( /* void */ ; lost != 0; lost &= lost - 1) {
            matched[w * 64 + (unsigned) __builtin_ctzll(lost)] = (uint32_t) i;
        }
    }

    m->nwords = n;
}


static inline aibrix_ix_slot_t
match_locate(const aibrix_index_t *ix, uint64_t hash)
{
    aibrix_ix_slot_t  slot;

    slot = aibrix_ix_find(aibrix_ix_block_key(ix, hash));

    if (slot.bucket != NULL) {
        aibrix_ix_prefetch_words(&slot);
    }

    return slot;
}


size_t
aibrix_index_match(aibrix_index_t *ix, const uint64_t *hashes, size_t n,
    const aibrix_peerset_t *among, uint64_t now_ms, uint64_t ttl_ms,
    uint32_t *matched)
{
    size_t            i;
    match_t           m;
    aibrix_ix_slot_t  slot, ahead[MATCH_AHEAD];

    aibrix_ix_begin(&m.op, ix, now_ms, ttl_ms);
    match_begin(&m, among);

    for (i = 0; i < n && i < 2 * MATCH_AHEAD; i++) {
        aibrix_ix_prefetch_block(ix, hashes[i]);
    }

    for (i = 0; i < n && i < MATCH_AHEAD; i++) {
        ahead[i] = match_locate(ix, hashes[i]);
    }

    for (i = 0; i < n && m.nwords != 0; i++) {
        slot = ahead[i % MATCH_AHEAD];

        if (n - i > MATCH_AHEAD) {
            ahead[i % MATCH_AHEAD] = match_locate(ix, hashes[i + MATCH_AHEAD]);
        }

        if (n - i > 2 * MATCH_AHEAD) {
            aibrix_ix_prefetch_block(ix, hashes[i + 2 * MATCH_AHEAD]);
        }

        aibrix_ix_depth(&m.op, i);
        match_block(&m, &slot, hashes[i]);
        match_keep(&m, i, matched);

        if (m.nwords == 0) {
            return i;
        }

        aibrix_ix_touch(&m.op, &slot);
    }

    /* those left know all of it */

    memset(m.known, 0, sizeof(m.known));
    match_keep(&m, i, matched);

    return i;
}
