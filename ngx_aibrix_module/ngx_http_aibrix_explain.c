
#include "ngx_http_aibrix_module.h"


#define NGX_HTTP_AIBRIX_EXPLAIN  1000   /* bytes of header */
#define NGX_HTTP_AIBRIX_MORE     (sizeof("; 4096 more") - 1)


static size_t ngx_http_aibrix_next(const aibrix_view_t *v, size_t chosen,
    size_t last);
static ngx_uint_t ngx_http_aibrix_precedes(const aibrix_view_t *v, size_t a,
    size_t b);
static u_char *ngx_http_aibrix_candidate(u_char *p, u_char *end,
    aibrix_zone_t *z, const aibrix_candidate_t *c);


/*
 * The chosen candidate comes first, then the others as the strategy values
 * them, as many as fit.
 */

void
ngx_http_aibrix_explain(ngx_http_aibrix_peer_data_t *pd,
    const aibrix_view_t *v, const aibrix_choice_t *choice)
{
    size_t   i, n;
    u_char  *p, *end, *next;

    p = ngx_pnalloc(pd->request->pool, NGX_HTTP_AIBRIX_EXPLAIN);
    if (p == NULL) {
        return;
    }

    pd->explain.data = p;
    end = p + NGX_HTTP_AIBRIX_EXPLAIN;

    p = ngx_slprintf(p, end, "%s %s blocks=%uD",
                     pd->route.strategy->name,
                     aibrix_selection_name(choice->selection), v->blocks);

    i = choice->index;

    for (n = 0; n < v->n; n++) {
        next = ngx_http_aibrix_candidate(p, end, pd->route.zone,
                                         &v->candidates[i]);

        if ((size_t) (end - next) < NGX_HTTP_AIBRIX_MORE) {
            p = ngx_slprintf(p, end, "; %uz more", v->n - n);
            break;
        }

        p = next;
        i = ngx_http_aibrix_next(v, choice->index, n ? i : v->n);
    }

    pd->explain.len = p - pd->explain.data;
}


/* The candidate that comes after last, which is v->n at first. */

static size_t
ngx_http_aibrix_next(const aibrix_view_t *v, size_t chosen, size_t last)
{
    size_t  i, next;

    next = v->n;

    for (i = 0; i < v->n; i++) {

        if (i == chosen
            || (last != v->n && !ngx_http_aibrix_precedes(v, last, i)))
        {
            continue;
        }

        if (next == v->n || ngx_http_aibrix_precedes(v, i, next)) {
            next = i;
        }
    }

    return next;
}


static ngx_uint_t
ngx_http_aibrix_precedes(const aibrix_view_t *v, size_t a, size_t b)
{
    const aibrix_candidate_t  *ca, *cb;

    ca = &v->candidates[a];
    cb = &v->candidates[b];

    if (ca->cost != cb->cost) {
        return ca->cost < cb->cost;
    }

    if (ca->matched != cb->matched) {
        return ca->matched > cb->matched;
    }

    if (ca->load != cb->load) {
        return ca->load < cb->load;
    }

    return a < b;
}


/* By its address, which is what target-pod-ip says. */

static u_char *
ngx_http_aibrix_candidate(u_char *p, u_char *end, aibrix_zone_t *z,
    const aibrix_candidate_t *c)
{
    ngx_str_t             name;
    const aibrix_peer_t  *peer;

    ngx_str_set(&name, "untracked");

    if (c->peer != AIBRIX_NO_PEER) {
        peer = aibrix_zone_peer(z, c->peer);
        name.data = (u_char *) peer->name;
        name.len = peer->name_len;
    }

    p = ngx_slprintf(p, end, "; %V match=%uD load=%uD", &name, c->matched,
                     c->inflight);

    if (c->weight != 1) {
        p = ngx_slprintf(p, end, "/%uD", c->weight);
    }

    p = ngx_slprintf(p, end, " queued=%uL", c->queued);

    if (c->cost != 0) {
        p = ngx_slprintf(p, end, " cost=%.0f", c->cost);
    }

    return p;
}
