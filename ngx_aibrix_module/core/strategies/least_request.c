
#include "strategy.h"


/*
 * AIBrix v0.7.0, algorithms/least_request.go: the least requests in flight,
 * uniformly among equals.
 */

void
aibrix_choose_least_request(aibrix_view_t *v, aibrix_choice_t *c)
{
    c->index = aibrix_least_loaded(v);
    c->selection = AIBRIX_LEAST_REQUEST;
}
