
/*
 * What routing has learned: which peers turned out to have more cached than
 * the index lists, which prefixes are asked for how often, who was chosen
 * when.  Hints only: each is one word, changed without a lock, and what a
 * race or a killed process loses is one observation.
 */

#ifndef AIBRIX_LEARN_H_INCLUDED_
#define AIBRIX_LEARN_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>


typedef struct aibrix_learn_s  aibrix_learn_t;


size_t aibrix_learn_size(uint32_t peers);

/* In zeroed memory of aibrix_learn_size() bytes, 64-byte aligned. */
aibrix_learn_t *aibrix_learn_init(void *mem, uint32_t peers);

/* That peer number has a new owner, or an owner that has lost its cache. */
void aibrix_learn_forget(aibrix_learn_t *ln, uint32_t peer);

/*
 * The belief that a peer has cached what another is known to have: the share
 * of hits among its last few requests of that kind, start before any.
 */
double aibrix_learn_belief(const aibrix_learn_t *ln, uint32_t peer,
    double start);
void aibrix_learn_outcome(aibrix_learn_t *ln, uint32_t peer, double start,
    int hit);

/* A peer was chosen; used() is the number of choices before its last one. */
void aibrix_learn_chosen(aibrix_learn_t *ln, uint32_t peer);
uint64_t aibrix_learn_used(const aibrix_learn_t *ln, uint32_t peer);

/*
 * The prefix that ends with the block of that hash was asked for; how often
 * in about the last minute, and its rate per second.
 */
void aibrix_learn_ask(aibrix_learn_t *ln, uint64_t hash, uint64_t now_ms);
uint32_t aibrix_learn_asked(const aibrix_learn_t *ln, uint64_t hash,
    uint64_t now_ms, double *rate);


#endif /* AIBRIX_LEARN_H_INCLUDED_ */
