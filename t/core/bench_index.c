
/*
 * Figures for docs/performance.md: what hashing, matching and recording cost.
 *
 *     bench_index [millions of blocks, default 1] [processes, default 1]
 *
 * Chains of 225 blocks, as of a prompt of 29 kB.  Every figure is the median
 * of rounds; with several processes each prints its own.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "index.h"
#include "prefix.h"


#define BENCH_CHAIN   225
#define BENCH_BLOCK   128
#define BENCH_TTL     (20 * 60 * 1000)
#define BENCH_ROUNDS  11
#define BENCH_CALLS   400


typedef struct {
    uint64_t          random;
    uint64_t          later;            /* ms that the clock is ahead */
    uint64_t          nchains;          /* that were recorded at first */
    uint64_t          fresh;            /* number of the next new chain */
    aibrix_index_t   *ix;
    aibrix_peerset_t  among;
    uint64_t          hashes[BENCH_CHAIN];
    uint32_t          matched[AIBRIX_MAX_PEERS];
} bench_t;


static uint64_t
bench_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;

    return z ^ (z >> 31);
}


static double
bench_now(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (double) ts.tv_sec * 1e9 + (double) ts.tv_nsec;
}


static uint64_t
bench_ms(bench_t *b)
{
    return (uint64_t) (bench_now() / 1e6) + b->later;
}


static void
bench_chain(bench_t *b, uint64_t chain)
{
    uint64_t  i;

    for (i = 0; i < BENCH_CHAIN; i++) {
        b->hashes[i] = bench_mix((chain << 16 | i) + 1);
    }
}


static uint32_t
bench_random(bench_t *b, uint32_t n)
{
    b->random += 0x9e3779b97f4a7c15ull;

    return (uint32_t) (bench_mix(b->random) % n);
}


static void
bench_known_chain(bench_t *b)
{
    bench_chain(b, bench_random(b, (uint32_t) b->nchains));
}


static void
bench_match(bench_t *b)
{
    (void) aibrix_index_match(b->ix, b->hashes, BENCH_CHAIN, &b->among,
                              bench_ms(b), BENCH_TTL, b->matched);
}


static void
bench_record(bench_t *b)
{
    aibrix_index_record(b->ix, b->hashes, BENCH_CHAIN, bench_random(b, 2),
                        bench_ms(b), BENCH_TTL);
}


static void
bench_record_fresh(bench_t *b)
{
    aibrix_index_record(b->ix, b->hashes, BENCH_CHAIN, 1, bench_ms(b),
                        BENCH_TTL);
}


static void
bench_fresh_chain(bench_t *b)
{
    bench_chain(b, b->fresh++);
}


static void
bench_hot_chain(bench_t *b)
{
    bench_chain(b, 1ull << 40);
}


static int
bench_compare(const void *a, const void *b)
{
    double  x, y;

    x = *(const double *) a;
    y = *(const double *) b;

    return (x > y) - (x < y);
}


static void
bench_run(bench_t *b, const char *name, void (*prepare)(bench_t *b),
    void (*run)(bench_t *b))
{
    int     i, round;
    double  start, spent, ns[BENCH_ROUNDS];

    for (round = 0; round < BENCH_ROUNDS; round++) {
        spent = 0;

        for (i = 0; i < BENCH_CALLS; i++) {
            prepare(b);
            start = bench_now();
            run(b);
            spent += bench_now() - start;
        }

        ns[round] = spent / BENCH_CALLS;
    }

    qsort(ns, BENCH_ROUNDS, sizeof(double), bench_compare);
    printf("%-38s %8.2f us a chain %7.1f ns a block  (best %.2f us)\n", name,
           ns[BENCH_ROUNDS / 2] / 1e3, ns[BENCH_ROUNDS / 2] / BENCH_CHAIN,
           ns[0] / 1e3);
    fflush(stdout);
}


static char  bench_text[BENCH_CHAIN * BENCH_BLOCK];


static void
bench_new_text(bench_t *b)
{
    size_t  i;

    for (i = 0; i < sizeof(bench_text); i++) {
        bench_text[i] = (char) bench_random(b, 256);
    }
}


static void
bench_hash(bench_t *b)
{
    aibrix_span_t  span;

    span.data = bench_text;
    span.len = sizeof(bench_text);

    (void) aibrix_prefix_hash(&span, 1, BENCH_BLOCK, 42, b->hashes,
                              BENCH_CHAIN);
}


static void
bench_all(bench_t *b)
{
    uint32_t  peer;

    bench_run(b, "hash", bench_new_text, bench_hash);

    memset(&b->among, 0, sizeof(b->among));
    b->among.word[0] = 3;

    bench_run(b, "match, 2 peers, cold chain", bench_known_chain, bench_match);
    bench_run(b, "record again, 2 peers, cold chain", bench_known_chain,
              bench_record);
    bench_run(b, "match of an unknown chain", bench_fresh_chain, bench_match);
    bench_run(b, "record of an unknown chain", bench_fresh_chain,
              bench_record_fresh);

    /* what was recorded by the million above is no rival then */

    b->later = BENCH_TTL / 2;
    bench_hot_chain(b);
    bench_record(b);
    bench_run(b, "match, 2 peers, hot chain", bench_hot_chain, bench_match);
    bench_run(b, "record again, 2 peers, hot chain", bench_hot_chain,
              bench_record);

    for (peer = 0; peer < 1024; peer++) {
        b->among.word[peer / 64] |= 1ull << peer % 64;
        aibrix_index_record(b->ix, b->hashes, BENCH_CHAIN, peer, bench_ms(b),
                            BENCH_TTL);
    }

    bench_run(b, "match, 1024 peers, hot chain", bench_hot_chain, bench_match);
    bench_run(b, "record, hot chain of 1024 peers", bench_hot_chain,
              bench_record);
}


int
main(int argc, char **argv)
{
    int                  i, processes;
    void                *mem;
    size_t               size;
    double               millions, start;
    uint64_t             c;
    static bench_t       b;
    aibrix_index_stat_t  st;

    millions = (argc > 1) ? atof(argv[1]) : 1;
    processes = (argc > 2) ? atoi(argv[2]) : 1;
    size = (size_t) (millions * 1e6 * 32) + aibrix_index_min_size();

    mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
               -1, 0);

    if (mem == MAP_FAILED) {
        perror("mmap");
        return 1;
    }

    b.ix = aibrix_index_init(mem, size, BENCH_TTL);
    b.nchains = (uint64_t) (millions * 1e6 * 0.75) / BENCH_CHAIN;
    start = bench_now();

    for (c = 0; c < b.nchains; c++) {
        bench_chain(&b, c);
        bench_record(&b);
    }

    aibrix_index_stat(b.ix, &st);
    printf("filled: %lu of %lu blocks, %lu evictions, %.1f ns a block\n",
           (unsigned long) st.blocks, (unsigned long) st.capacity,
           (unsigned long) st.evictions,
           (bench_now() - start) / ((double) b.nchains * BENCH_CHAIN));
    fflush(stdout);

    for (i = 0; i < processes; i++) {

        if (fork() == 0) {
            b.random = (uint64_t) i << 32;
            b.fresh = (uint64_t) (i + 1) << 32;
            bench_all(&b);
            exit(0);
        }
    }

    while (wait(NULL) > 0) { /* void */ }

    return 0;
}
