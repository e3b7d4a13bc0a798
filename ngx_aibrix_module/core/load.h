
/*
 * What every peer is doing now: requests in flight and prompt bytes sent that
 * no first byte has answered.
 *
 * Every process counts in a row of its own and readers sum over the rows, so
 * the counts of a process that died are taken back by zeroing its row.  An
 * owner is any non-zero number that tells one process from all others, dead
 * ones included (say, pid and start time).
 */

#ifndef AIBRIX_LOAD_H_INCLUDED_
#define AIBRIX_LOAD_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>


typedef struct aibrix_load_s  aibrix_load_t;


typedef struct {
    uint32_t   inflight;        /* requests */
    uint32_t   waiting;         /* of them, without a first byte */
    uint64_t   queued;          /* prompt bytes */
} aibrix_load_sum_t;


size_t aibrix_load_size(uint32_t rows, uint32_t peers);

/* In zeroed memory of aibrix_load_size() bytes, 64-byte aligned. */
aibrix_load_t *aibrix_load_init(void *mem, uint32_t rows, uint32_t peers);

/*
 * The row of owner, claimed if it has none yet.  When all rows are taken it
 * is row 0, which all late-comers share and nothing can recover.
 */
uint32_t aibrix_load_attach(aibrix_load_t *ld, uint64_t owner);
void aibrix_load_detach(aibrix_load_t *ld, uint32_t row);

/* Zeroes the rows whose owner alive() denies.  Returns how many. */
uint32_t aibrix_load_sweep(aibrix_load_t *ld, uint64_t self,
    int (*alive)(uint64_t owner));

void aibrix_load_reserve(aibrix_load_t *ld, uint32_t row, uint32_t peer,
    uint64_t queued);
/* The first byte has come: queued is what reserve() was given. */
void aibrix_load_answered(aibrix_load_t *ld, uint32_t row, uint32_t peer,
    uint64_t queued);
/* queued is 0 after answered(), else what reserve() was given. */
void aibrix_load_release(aibrix_load_t *ld, uint32_t row, uint32_t peer,
    uint64_t queued);

/* A request in flight begins or ends to wait for its first byte. */
void aibrix_load_wait(aibrix_load_t *ld, uint32_t row, uint32_t peer);
void aibrix_load_waited(aibrix_load_t *ld, uint32_t row, uint32_t peer);

void aibrix_load_sum(const aibrix_load_t *ld, uint32_t peer,
    aibrix_load_sum_t *sum);


#endif /* AIBRIX_LOAD_H_INCLUDED_ */
