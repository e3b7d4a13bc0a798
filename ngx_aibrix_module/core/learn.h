
/*
 * What routing has learned of the engines behind an upstream from what a
 * proxy sees: times to the first byte, and usage where engines report it.
 * Hints only: each is one word, changed without a lock, and what a race or a
 * killed process loses is one observation.
 */

#ifndef AIBRIX_LEARN_H_INCLUDED_
#define AIBRIX_LEARN_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>


typedef struct aibrix_learn_s  aibrix_learn_t;


/* Of one upstream. */
typedef struct {
    double     belief;          /* that a peer has what only others list */
    double     room;            /* requests in flight that do not wait */
    double     hit_ms;          /* to a first byte, all cached; 0: unknown */
    double     byte_ms;         /* the same for a byte; 0: unknown */
} aibrix_learned_t;


/* Before anything was learned, and of nothing that is not cached. */
extern const aibrix_learned_t  aibrix_learned_nothing;


/* A request as it was sent, in bytes of its prompt. */
typedef struct {
    uint64_t   prompt;
    uint64_t   known;           /* the chosen peer is listed with */
    uint64_t   longest;         /* some peer is listed with */
    uint32_t   inflight;        /* requests that the peer had before it */
    uint32_t   idle;            /* no other prompt waited there */
} aibrix_learn_sent_t;


size_t aibrix_learn_size(uint32_t peers);

/* In zeroed memory of aibrix_learn_size() bytes, 64-byte aligned. */
aibrix_learn_t *aibrix_learn_init(void *mem, uint32_t peers);

/* The peer belongs to the upstream of that key, which is not 0. */
void aibrix_learn_peer(aibrix_learn_t *ln, uint32_t peer, uint64_t upstream);

/*
 * Before any outcome the belief is start; it is 0 once a prompt has come that
 * no peer was listed with: what engines hold has passed here, then, and is
 * listed.
 */
void aibrix_learn_get(const aibrix_learn_t *ln, uint32_t peer, double start,
    aibrix_learned_t *out);

/* A prompt was sent that no peer was listed with. */
void aibrix_learn_unseen(aibrix_learn_t *ln, uint32_t peer);

/* The engine says how many bytes of the prompt it had. */
void aibrix_learn_usage(aibrix_learn_t *ln, uint32_t peer,
    const aibrix_learn_sent_t *sent, double start, double had);

/* The same, as far as the time to the first byte gives it away. */
void aibrix_learn_first_byte(aibrix_learn_t *ln, uint32_t peer,
    const aibrix_learn_sent_t *sent, double start, uint64_t ms);

/* A peer was chosen; used() tells who was, longer ago than others. */
void aibrix_learn_chosen(aibrix_learn_t *ln, uint32_t peer);
uint64_t aibrix_learn_used(const aibrix_learn_t *ln, uint32_t peer);

/* The prefix that ends with the block of that hash was asked for. */
void aibrix_learn_ask(aibrix_learn_t *ln, uint64_t hash, uint64_t now_ms);

/* How often in about the last minute, and its rate per second. */
uint32_t aibrix_learn_asked(const aibrix_learn_t *ln, uint64_t hash,
    uint64_t now_ms, double *rate);


#endif /* AIBRIX_LEARN_H_INCLUDED_ */
