
/*
 * What routing has learned of the engines behind an upstream, from what a
 * proxy sees: times to the first byte, and usage where engines report it.
 * Hints only: each is one word, changed without a lock, and what a race or a
 * killed process loses is one observation.
 */

#ifndef AIBRIX_LEARN_H_INCLUDED_
#define AIBRIX_LEARN_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>


#define AIBRIX_LEARN_NO_PEER  UINT32_MAX


typedef struct aibrix_learn_s  aibrix_learn_t;


/* What the index says of a prompt's longest known prefix and a peer. */
typedef enum {
    AIBRIX_LISTED_LAST = 0,     /* has it, and was the last to be sent it */
    AIBRIX_LISTED,              /* has it */
    AIBRIX_UNLISTED,            /* only others have it */
    AIBRIX_LISTINGS
} aibrix_listing_e;


/* How likely each has it cached indeed. */
typedef struct {
    double     cached[AIBRIX_LISTINGS];
    double     room;            /* requests in flight that do not wait */
} aibrix_learned_t;


/* A request as it was sent, in bytes of its prompt. */
typedef struct {
    uint64_t   prompt;
    uint64_t   known;           /* the chosen peer is listed with */
    uint64_t   longest;         /* some peer is listed with */
    uint32_t   inflight;        /* requests that the peer had before it */
    uint8_t    listing;         /* aibrix_listing_e */
    uint8_t    idle;            /* no other prompt waited there */
} aibrix_learn_sent_t;


/* A prefix that was asked for before. */
typedef struct {
    uint32_t   count;           /* in about the last minute */
    uint32_t   peer;            /* it was sent to last, or NO_PEER */
    double     rate;            /* per second */
} aibrix_learn_prefix_t;


size_t aibrix_learn_size(uint32_t peers);

/* In zeroed memory of aibrix_learn_size() bytes, 64-byte aligned. */
aibrix_learn_t *aibrix_learn_init(void *mem, uint32_t peers);

/*
 * The peer number has a new owner, in the upstream of that key (not 0): what
 * is learned, is learned for each upstream apart.
 */
void aibrix_learn_peer(aibrix_learn_t *ln, uint32_t peer, uint64_t upstream);

/* The peer begins anew, with nothing cached. */
void aibrix_learn_forget(aibrix_learn_t *ln, uint32_t peer);

/*
 * Before any outcome, what is listed counts as cached, and what is unlisted
 * with the likelihood start; with 0 once a prompt has come that no peer was
 * listed with: what engines hold has passed here, then, and is all listed.
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

/* A peer was chosen; used() is the number of choices before its last one. */
void aibrix_learn_chosen(aibrix_learn_t *ln, uint32_t peer);
uint64_t aibrix_learn_used(const aibrix_learn_t *ln, uint32_t peer);

/* The prefix that ends with the block of that hash was asked for. */
void aibrix_learn_ask(aibrix_learn_t *ln, uint64_t hash, uint32_t peer,
    uint64_t now_ms);
void aibrix_learn_asked(const aibrix_learn_t *ln, uint64_t hash,
    uint64_t now_ms, aibrix_learn_prefix_t *out);


#endif /* AIBRIX_LEARN_H_INCLUDED_ */
