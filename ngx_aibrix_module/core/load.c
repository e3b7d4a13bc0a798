
#include "load.h"


#define AIBRIX_LOAD_SHARED  UINT64_MAX      /* the owner of row 0 */


typedef struct {
    int64_t    queued;
    int32_t    inflight;
    int32_t    waiting;
} aibrix_load_cell_t;


struct aibrix_load_s {
    uint32_t   rows;
    uint32_t   peers;
    uint32_t   used;            /* rows below this one have been claimed */
    uint32_t   pad;
    uint64_t   owner[];         /* then, aligned, rows * peers cells */
};


static size_t
aibrix_load_head(uint32_t rows)
{
    return (sizeof(aibrix_load_t) + rows * sizeof(uint64_t) + 63)
           & ~(size_t) 63;
}


static aibrix_load_cell_t *
aibrix_load_cell(const aibrix_load_t *ld, uint32_t row, uint32_t peer)
{
    size_t  at;

    at = aibrix_load_head(ld->rows)
         + ((size_t) row * ld->peers + peer) * sizeof(aibrix_load_cell_t);

    return (aibrix_load_cell_t *) (void *) ((char *) ld + at);
}


static void
aibrix_load_zero(aibrix_load_t *ld, uint32_t row)
{
    uint32_t             i;
    aibrix_load_cell_t  *c;

    for (i = 0; i < ld->peers; i++) {
        c = aibrix_load_cell(ld, row, i);

        __atomic_store_n(&c->inflight, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&c->waiting, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&c->queued, 0, __ATOMIC_RELAXED);
    }
}


size_t
aibrix_load_size(uint32_t rows, uint32_t peers)
{
    return aibrix_load_head(rows)
           + (size_t) rows * peers * sizeof(aibrix_load_cell_t);
}


aibrix_load_t *
aibrix_load_init(void *mem, uint32_t rows, uint32_t peers)
{
    aibrix_load_t  *ld;

    ld = mem;

    ld->rows = rows;
    ld->peers = peers;
    ld->used = 1;
    ld->owner[0] = AIBRIX_LOAD_SHARED;

    return ld;
}


uint32_t
aibrix_load_attach(aibrix_load_t *ld, uint64_t owner)
{
    uint32_t  i, used;
    uint64_t  none;

    for (i = 1; i < ld->rows; i++) {
        if (__atomic_load_n(&ld->owner[i], __ATOMIC_ACQUIRE) == owner) {
            return i;
        }
    }

    for (i = 1; i < ld->rows; i++) {
        none = 0;

        if (!__atomic_compare_exchange_n(&ld->owner[i], &none, owner, 0,
                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        {
            continue;
        }

        used = __atomic_load_n(&ld->used, __ATOMIC_RELAXED);

        while (used <= i
               && !__atomic_compare_exchange_n(&ld->used, &used, i + 1, 0,
                                               __ATOMIC_ACQ_REL,
                                               __ATOMIC_RELAXED))
        {
            /* void */
        }

        return i;
    }

    return 0;
}


void
aibrix_load_detach(aibrix_load_t *ld, uint32_t row)
{
    if (row == 0) {
        return;
    }

    aibrix_load_zero(ld, row);
    __atomic_store_n(&ld->owner[row], 0, __ATOMIC_RELEASE);
}


uint32_t
aibrix_load_sweep(aibrix_load_t *ld, uint64_t self,
    int (*alive)(uint64_t owner))
{
    uint32_t  i, n, used;
    uint64_t  owner;

    n = 0;
    used = __atomic_load_n(&ld->used, __ATOMIC_ACQUIRE);

    for (i = 1; i < used && i < ld->rows; i++) {
        owner = __atomic_load_n(&ld->owner[i], __ATOMIC_ACQUIRE);

        if (owner == 0 || owner == self || alive(owner)) {
            continue;
        }

        /*
         * The row becomes the sweeper's own before it is zeroed: a sweeper
         * that dies here leaves the row to the next one.
         */

        if (__atomic_compare_exchange_n(&ld->owner[i], &owner, self, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        {
            aibrix_load_detach(ld, i);
            n++;
        }
    }

    return n;
}


void
aibrix_load_reserve(aibrix_load_t *ld, uint32_t row, uint32_t peer,
    uint64_t queued)
{
    aibrix_load_cell_t  *c;

    c = aibrix_load_cell(ld, row, peer);

    __atomic_fetch_add(&c->inflight, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&c->queued, (int64_t) queued, __ATOMIC_RELAXED);
}


void
aibrix_load_answered(aibrix_load_t *ld, uint32_t row, uint32_t peer,
    uint64_t queued)
{
    aibrix_load_cell_t  *c;

    c = aibrix_load_cell(ld, row, peer);

    __atomic_fetch_sub(&c->queued, (int64_t) queued, __ATOMIC_RELAXED);
}


void
aibrix_load_release(aibrix_load_t *ld, uint32_t row, uint32_t peer,
    uint64_t queued)
{
    aibrix_load_cell_t  *c;

    c = aibrix_load_cell(ld, row, peer);

    __atomic_fetch_sub(&c->queued, (int64_t) queued, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&c->inflight, 1, __ATOMIC_RELAXED);
}


void
aibrix_load_wait(aibrix_load_t *ld, uint32_t row, uint32_t peer)
{
    __atomic_fetch_add(&aibrix_load_cell(ld, row, peer)->waiting, 1,
                       __ATOMIC_RELAXED);
}


void
aibrix_load_waited(aibrix_load_t *ld, uint32_t row, uint32_t peer)
{
    __atomic_fetch_sub(&aibrix_load_cell(ld, row, peer)->waiting, 1,
                       __ATOMIC_RELAXED);
}


void
aibrix_load_sum(const aibrix_load_t *ld, uint32_t peer,
    aibrix_load_sum_t *sum)
{
    int64_t              inflight, waiting, queued;
    uint32_t             i, used;
    aibrix_load_cell_t  *c;

    inflight = 0;
    waiting = 0;
    queued = 0;
    used = __atomic_load_n(&ld->used, __ATOMIC_ACQUIRE);

    for (i = 0; i < used && i < ld->rows; i++) {
        if (__atomic_load_n(&ld->owner[i], __ATOMIC_RELAXED) == 0) {
            continue;
        }

        c = aibrix_load_cell(ld, i, peer);

        inflight += __atomic_load_n(&c->inflight, __ATOMIC_RELAXED);
        waiting += __atomic_load_n(&c->waiting, __ATOMIC_RELAXED);
        queued += __atomic_load_n(&c->queued, __ATOMIC_RELAXED);
    }

    sum->inflight = (inflight > 0) ? (uint32_t) inflight : 0;
    sum->waiting = (waiting > 0) ? (uint32_t) waiting : 0;
    sum->queued = (queued > 0) ? (uint64_t) queued : 0;
}
