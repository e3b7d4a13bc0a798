
/* What rivals know of a replica beyond what the core counts. */

#include <stdlib.h>
#include <string.h>

#include "replay_books.h"


#define REPLAY_RING        256          /* points on the ring a replica */
#define REPLAY_WINDOW      180          /* seconds of history, Preble */
#define REPLAY_DECODE      (45 * 0.15)  /* seconds, Preble in AIBrix */
#define REPLAY_PREFILL     0.0003       /* seconds a token, l20-27b */
#define REPLAY_TOKEN       4            /* bytes, as AIBrix guesses */


static int
replay_by_hash(const void *a, const void *b)
{
    const replay_point_t  *x = a, *y = b;

    return (x->hash > y->hash) - (x->hash < y->hash);
}


static void *
replay_zeroed(size_t n, size_t size)
{
    void  *p;

    p = calloc(n, size);

    if (p == NULL) {
        fprintf(stderr, "replay: out of memory\n");
        exit(1);
    }

    return p;
}


replay_books_t *
replay_books(uint32_t replicas)
{
    size_t           i;
    replay_books_t  *b;

    b = replay_zeroed(1, sizeof(replay_books_t));

    b->replicas = replicas;
    b->peers = replay_zeroed(replicas, sizeof(replay_peer_t));

    b->npoints = (size_t) replicas * REPLAY_RING;
    b->points = replay_zeroed(b->npoints, sizeof(replay_point_t));

    for (i = 0; i < b->npoints; i++) {
        b->points[i].peer = (uint32_t) (i / REPLAY_RING);
        b->points[i].hash = replay_mix(i, 0x7269);
    }

    qsort(b->points, b->npoints, sizeof(replay_point_t), replay_by_hash);

    b->mask = 1023;
    b->cells = replay_zeroed(b->mask + 1, sizeof(replay_cell_t));

    return b;
}


void
replay_books_free(replay_books_t *b)
{
    uint32_t  i;

    for (i = 0; i < b->replicas; i++) {
        free(b->peers[i].past);
    }

    free(b->peers);
    free(b->points);
    free(b->cells);
    free(b);
}


static replay_cell_t *
replay_cell(const replay_books_t *b, uint64_t key)
{
    size_t  i;

    for (i = key & b->mask;
         b->cells[i].key != 0 && b->cells[i].key != key;
         i = (i + 1) & b->mask)
    {
        /* void */
    }

    return &b->cells[i];
}


static uint64_t
replay_key(uint32_t peer, uint64_t hash)
{
    return replay_mix(hash, peer) | 1;
}


static void
replay_grow(replay_books_t *b)
{
    size_t          i, n;
    replay_cell_t  *old;

    old = b->cells;
    n = b->mask + 1;

    b->mask = n * 2 - 1;
    b->cells = replay_zeroed(n * 2, sizeof(replay_cell_t));

    for (i = 0; i < n; i++) {
        if (old[i].key != 0) {
            *replay_cell(b, old[i].key) = old[i];
        }
    }

    free(old);
}


/* Blocks in use by requests under way; those that share one count it once. */

static void
replay_use(replay_books_t *b, uint32_t peer, const uint64_t *hashes,
    uint32_t n)
{
    uint32_t        i;
    replay_cell_t  *c;

    for (i = 0; i < n; i++) {
        c = replay_cell(b, replay_key(peer, hashes[i]));

        if (c->key == 0) {
            c->key = replay_key(peer, hashes[i]);

            if (++b->ncells * 2 > b->mask) {
                replay_grow(b);
                c = replay_cell(b, replay_key(peer, hashes[i]));
            }
        }

        if (c->users++ == 0) {
            b->peers[peer].active++;
        }
    }
}


uint32_t
replay_books_active(const replay_books_t *b, uint32_t peer,
    const uint64_t *hashes, uint32_t n)
{
    uint32_t  low, high, mid;

    low = 0;
    high = n;

    /* who uses a block uses all before it */

    while (low < high) {
        mid = low + (high - low) / 2;

        if (replay_cell(b, replay_key(peer, hashes[mid]))->users != 0) {
            low = mid + 1;

        } else {
            high = mid;
        }
    }

    return low;
}


double
replay_books_load(replay_books_t *b, uint32_t peer, double now)
{
    replay_peer_t  *p;

    p = &b->peers[peer];

    while (p->oldest < p->npast
           && p->past[p->oldest].t < now - REPLAY_WINDOW)
    {
        p->load -= p->past[p->oldest++].cost;
    }

    return p->load;
}


static void
replay_remember(replay_peer_t *p, double now, double cost)
{
    if (p->npast == p->size) {
        p->size = p->size ? p->size * 2 : 256;
        p->past = realloc(p->past, p->size * sizeof(replay_past_t));

        if (p->past == NULL) {
            fprintf(stderr, "replay: out of memory\n");
            exit(1);
        }
    }

    p->past[p->npast].t = now;
    p->past[p->npast++].cost = cost;
    p->load += cost;
}


double
replay_books_prefill(uint64_t bytes)
{
    return (double) bytes / REPLAY_TOKEN * REPLAY_PREFILL;
}


void
replay_books_sent(replay_books_t *b, const replay_view_t *v,
    const aibrix_candidate_t *c)
{
    uint64_t        missed, known;
    replay_peer_t  *p;

    p = &b->peers[c->peer];

    known = (uint64_t) c->matched * REPLAY_BLOCK;
    missed = (v->bytes > known) ? v->bytes - known : 0;

    p->waiting++;
    p->tree += missed;

    replay_use(b, c->peer, v->hashes, v->view.blocks);
    replay_remember(p, v->now, replay_books_prefill(missed) + REPLAY_DECODE);
}


void
replay_books_first(replay_books_t *b, uint32_t peer)
{
    b->peers[peer].waiting--;
}


void
replay_books_done(replay_books_t *b, uint32_t peer, const uint64_t *hashes,
    uint32_t n)
{
    uint32_t  i;

    for (i = 0; i < n; i++) {
        if (--replay_cell(b, replay_key(peer, hashes[i]))->users == 0) {
            b->peers[peer].active--;
        }
    }
}
