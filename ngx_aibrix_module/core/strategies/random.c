
#include "strategy.h"


/* AIBrix v0.7.0, algorithms/random.go: uniform over the candidates. */

void
aibrix_choose_random(aibrix_view_t *v, aibrix_choice_t *c)
{
    c->index = aibrix_random(v, (uint32_t) v->n);
    c->selection = AIBRIX_RANDOM;
}
