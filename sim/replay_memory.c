
#include <stdlib.h>

#include "replay.h"


#define REPLAY_PIECE  (1 << 20)


typedef struct replay_piece_s  replay_piece_t;

struct replay_piece_s {
    replay_piece_t  *next;
    size_t           size;
    size_t           used;
    uint64_t         data[];
};


struct replay_memory_s {
    replay_piece_t  *pieces;
};


static void *
replay_must(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "replay: out of memory\n");
        exit(1);
    }

    return p;
}


replay_memory_t *
replay_memory(void)
{
    return replay_must(calloc(1, sizeof(replay_memory_t)));
}


void *
replay_alloc(replay_memory_t *m, size_t size)
{
    void            *p;
    size_t           room;
    replay_piece_t  *piece;

    size = (size + 15) & ~(size_t) 15;
    piece = m->pieces;

    if (piece == NULL || piece->size - piece->used < size) {
        room = (size > REPLAY_PIECE) ? size : REPLAY_PIECE;

        piece = replay_must(calloc(1, sizeof(replay_piece_t) + room));
        piece->size = room;
        piece->next = m->pieces;
        m->pieces = piece;
    }

    p = (char *) piece->data + piece->used;
    piece->used += size;

    return p;
}


void
replay_memory_free(replay_memory_t *m)
{
    replay_piece_t  *piece, *next;

    for (piece = m->pieces; piece != NULL; piece = next) {
        next = piece->next;
        free(piece);
    }

    free(m);
}
