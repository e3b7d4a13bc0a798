
/* a prompt's text as tokens and as blocks of the prefix cache */

#include "ngx_http_engine_sim.h"

#include <math.h>

#define XXH_INLINE_ALL
#include <xxhash.h>


void
ngx_http_engine_sim_seed(ngx_http_engine_sim_query_t *q, const char *salt)
{
    q->seed = XXH64(q->model.data, q->model.len, 0);

    if (salt != NULL) {
        q->seed = XXH64(salt, ngx_strlen(salt), q->seed);
    }
}


/* where token n begins in the text */

static size_t
ngx_http_engine_sim_offset(ngx_http_engine_sim_query_t *q, ngx_uint_t n)
{
    double  offset;

    offset = ceil((double) n * q->unit);

    return ngx_min((size_t) offset, q->text.nelts);
}


uint64_t *
ngx_http_engine_sim_blocks(ngx_http_request_t *r, ngx_http_engine_sim_t *sim,
    ngx_http_engine_sim_query_t *q, ngx_uint_t *n)
{
    u_char      *text;
    size_t       start, end;
    uint64_t     hash, *blocks;
    ngx_uint_t   i;

    *n = q->prompt / sim->params.cache_block;

    blocks = ngx_palloc(r->pool, (*n + 1) * sizeof(uint64_t));
    if (blocks == NULL) {
        return NULL;
    }

    text = q->text.elts;
    hash = q->seed;
    start = 0;

    for (i = 0; i < *n; i++) {
        end = ngx_http_engine_sim_offset(q, (i + 1) * sim->params.cache_block);
        hash = XXH64(text + start, end - start, hash);
        blocks[i] = hash;
        start = end;
    }

    return blocks;
}


uint64_t
ngx_http_engine_sim_hash(ngx_http_engine_sim_query_t *q)
{
    return XXH64(q->text.elts, q->text.nelts, q->seed);
}


uint32_t
ngx_http_engine_sim_token_id(ngx_http_engine_sim_query_t *q, ngx_uint_t n)
{
    u_char    *text;
    size_t     start, end;

    text = q->text.elts;
    start = ngx_http_engine_sim_offset(q, n);
    end = ngx_http_engine_sim_offset(q, n + 1);

    return XXH32(text + start, end - start, 0) % 100000;
}
