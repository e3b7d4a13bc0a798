
/* What rivals know of a replica beyond what the core counts. */

#ifndef REPLAY_BOOKS_H_INCLUDED_
#define REPLAY_BOOKS_H_INCLUDED_

#include "replay.h"


typedef struct {
    double           t;
    double           cost;
} replay_past_t;


typedef struct {
    uint32_t         waiting;           /* requests without a first byte */
    uint32_t         active;            /* blocks in use, each once */
    uint64_t         tree;              /* bytes ever sent that were new */
    double           load;              /* seconds of work in the window */
    replay_past_t   *past;
    size_t           npast;
    size_t           oldest;
    size_t           size;
} replay_peer_t;


typedef struct {
    uint64_t         hash;
    uint32_t         peer;
} replay_point_t;


typedef struct {
    uint64_t         key;
    uint32_t         users;
} replay_cell_t;


struct replay_books_s {
    uint32_t         replicas;
    replay_peer_t   *peers;
    replay_point_t  *points;            /* a ring of hashes */
    size_t           npoints;
    replay_cell_t   *cells;             /* users of a block on a peer */
    size_t           mask;
    size_t           ncells;
};


/* How many leading blocks are in use on that peer now. */
uint32_t replay_books_active(const replay_books_t *b, uint32_t peer,
    const uint64_t *hashes, uint32_t n);

/* Seconds of work sent to that peer within the window. */
double replay_books_load(replay_books_t *b, uint32_t peer, double now);

/* Seconds that computing these bytes of prompt takes. */
double replay_books_prefill(uint64_t bytes);


#endif /* REPLAY_BOOKS_H_INCLUDED_ */
