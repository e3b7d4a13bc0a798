
#include <math.h>

#include "replay.h"


/* splitmix64 */

void
replay_seed(replay_random_t *r, uint64_t seed)
{
    r->state = replay_mix(seed, 0x5851f42d4c957f2dULL);
}


uint64_t
replay_next(replay_random_t *r)
{
    r->state += 0x9e3779b97f4a7c15ULL;

    return replay_mix(r->state, 0);
}


double
replay_uniform(replay_random_t *r)
{
    return (double) (replay_next(r) >> 11) * 0x1p-53;
}


uint32_t
replay_below(replay_random_t *r, uint32_t n)
{
    return (uint32_t) ((replay_next(r) >> 32) * n >> 32);
}


double
replay_exponential(replay_random_t *r, double mean)
{
    return -mean * log1p(-replay_uniform(r));
}


double
replay_normal(replay_random_t *r)
{
    double  a, b;

    a = 1 - replay_uniform(r);
    b = replay_uniform(r);

    return sqrt(-2 * log(a)) * cos(2 * 3.14159265358979323846 * b);
}


uint64_t
replay_mix(uint64_t a, uint64_t b)
{
    uint64_t  x;

    x = a ^ (b * 0xd6e8feb86659fd93ULL + 0xa0761d6478bd642fULL);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;

    return x ^ (x >> 31);
}
