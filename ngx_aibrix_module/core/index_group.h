
/*
 * Groups: who knows a block that more than a few peers know, as bitmaps of 48
 * peers that are entries of the same table.  Private to index*.c.
 */

#ifndef AIBRIX_INDEX_GROUP_H_INCLUDED_
#define AIBRIX_INDEX_GROUP_H_INCLUDED_

#include "index_table.h"


/*
 * The peer knew the block at that time.  Returns 0 when a group cannot say
 * so: the peer was forgotten after the epoch had begun, or a race was lost.
 */
int aibrix_ix_group_put(aibrix_ix_op_t *op, uint64_t hash, uint32_t peer,
    uint64_t time);
void aibrix_ix_group_take(const aibrix_index_t *ix, uint64_t hash,
    uint32_t peer);

/* Is there no group of the block left that the bit of its mask stands for? */
int aibrix_ix_group_none(const aibrix_ix_op_t *op, uint64_t hash,
    uint32_t bit);


#endif /* AIBRIX_INDEX_GROUP_H_INCLUDED_ */
