
#ifndef _NGX_HTTP_AIBRIX_MODULE_H_INCLUDED_
#define _NGX_HTTP_AIBRIX_MODULE_H_INCLUDED_


#include "ngx_http_aibrix_compat.h"

#include "events.h"
#include "prefix.h"
#include "prompt.h"
#include "route.h"


#define NGX_HTTP_AIBRIX_ZONE_SIZE  (64 * 1024 * 1024)

/* ms; the index keeps no time beyond 2^40 ms apart */
#define NGX_HTTP_AIBRIX_MAX_TTL    (10000LL * 24 * 60 * 60 * 1000)


typedef struct {
    ngx_shm_zone_t                    *shm_zone;
    ngx_slab_pool_t                   *shpool;
    aibrix_zone_t                     *z;
    ngx_http_upstream_main_conf_t     *umcf;
    uint64_t                           ttl;         /* ms */
    uint64_t                           seed;
    uint32_t                           row;         /* of this process */
    uint64_t                           oldest;      /* ms, of the index */
    uint64_t                           walked;      /* the same, so far */
    uint64_t                           walked_at;
    unsigned                           seed_set:1;
    unsigned                           attached:1;
} ngx_http_aibrix_zone_t;


typedef struct {
    ngx_array_t                        zones;   /* ngx_http_aibrix_zone_t * */
    ngx_int_t                          request_id;  /* variable index */
    size_t                             max_prompt;  /* of any upstream */
} ngx_http_aibrix_main_conf_t;


/* What one list of peers (primary or backup) is known as in the zone. */

typedef struct {
    ngx_http_upstream_rr_peers_t      *peers;
    ngx_uint_t                         number;
    ngx_uint_t                         generation;
    uint64_t                           recycled;
    ngx_uint_t                         count;
    ngx_uint_t                         capacity;
    aibrix_peerset_t                   set;
    uint32_t                          *ids;         /* in list order */
    aibrix_candidate_t                *candidates;  /* scratch */
    ngx_http_upstream_rr_peer_t      **eligible;    /* scratch */
    ngx_uint_t                        *at;          /* scratch */
} ngx_http_aibrix_map_t;


typedef struct {
    ngx_uint_t                         enabled;
    ngx_http_complex_value_t          *strategy;
    ngx_str_t                          zone_name;
    ngx_http_aibrix_zone_t            *zone;
    ngx_str_t                          upstream;

    ngx_flag_t                         override;
    ngx_int_t                          block_size;
    ngx_int_t                          imbalance;
    ngx_int_t                          stddev_factor;   /* hundredths */
    size_t                             max_prompt;

    ngx_http_aibrix_map_t              map[2];      /* primary, backup */
} ngx_http_aibrix_srv_conf_t;


typedef struct {
    ngx_flag_t                         read_body;
    ngx_flag_t                         headers;
    ngx_flag_t                         sse;
    ngx_flag_t                         explain;
    ngx_uint_t                         control;     /* of aibrix_status */
} ngx_http_aibrix_loc_conf_t;


typedef struct ngx_http_aibrix_ctx_s   ngx_http_aibrix_ctx_t;


typedef struct {
    /* the round robin data must be first */
    ngx_http_upstream_rr_peer_data_t   rrp;

    ngx_http_request_t                *request;
    ngx_http_aibrix_ctx_t             *ctx;
    ngx_http_aibrix_srv_conf_t        *conf;

    aibrix_route_t                     route;
    aibrix_grant_t                     grant;
    uint64_t                          *hashes;

    ngx_str_t                          server;  /* as in the server line */
    ngx_str_t                          name;    /* address:port */
    ngx_str_t                          explain; /* why, when asked for */
    uint64_t                           ns;      /* what the decision took */
    uint32_t                           peer;
    uint32_t                           model;
    aibrix_selection_e                 selection;
    ngx_uint_t                         percent;
    ngx_msec_t                         start;   /* selection of this peer */
    ngx_msec_t                         first;   /* its first content */
    ngx_msec_t                         last;    /* its latest content */

    aibrix_events_t                    events;

    unsigned                           backup:1;
    unsigned                           chosen:1;
    unsigned                           answered:1;
    unsigned                           unused:1;    /* nothing passed on */
    unsigned                           refused:1;   /* by an error status */
    unsigned                           scanned:1;   /* events is in use */
    unsigned                           first_seen:1;
} ngx_http_aibrix_peer_data_t;


struct ngx_http_aibrix_ctx_s {
    ngx_http_request_t                *request;
    aibrix_prompt_t                   *prompt;
    ngx_http_aibrix_peer_data_t       *pd;      /* of the last peer.init */
    ngx_str_t                          model;
    size_t                             max_prompt;
    unsigned                           stream:1;
    unsigned                           fed:1;
    unsigned                           deaf:1;  /* nothing more matters */
    unsigned                           ended:1; /* the last byte was seen */
    unsigned                           parsed:1;
    unsigned                           json:1;  /* a JSON request it was */
    unsigned                           begun:1; /* read_body had its turn */
};


extern ngx_module_t  ngx_http_aibrix_module;


/* ngx_http_aibrix_zone.c */

/* Declares the shared memory; NULL with a message logged on failure. */
ngx_http_aibrix_zone_t *ngx_http_aibrix_add_zone(ngx_conf_t *cf,
    ngx_str_t *name, size_t size);

/* The load row of this process. */
uint32_t ngx_http_aibrix_row(ngx_http_aibrix_zone_t *zone);
void ngx_http_aibrix_detach(ngx_http_aibrix_zone_t *zone);

/* Takes back the counts of dead processes; at most once a second. */
void ngx_http_aibrix_sweep(ngx_http_aibrix_zone_t *zone, ngx_uint_t force);

/*
 * Age in ms of the block recorded longest ago that still counts.  Each call
 * goes a part of the way over the index: the answer is as of the last whole
 * walk, and at first of what was seen.
 */
uint64_t ngx_http_aibrix_oldest(ngx_http_aibrix_zone_t *zone);

/* Numbers the peers of a list anew when it has changed; under its lock. */
ngx_int_t ngx_http_aibrix_update_map(ngx_http_aibrix_srv_conf_t *conf,
    ngx_http_aibrix_map_t *map, ngx_http_upstream_rr_peers_t *peers);
ngx_uint_t ngx_http_aibrix_map_is_stale(ngx_http_aibrix_srv_conf_t *conf,
    ngx_http_aibrix_map_t *map, ngx_http_upstream_rr_peers_t *peers);
void ngx_http_aibrix_free_map(ngx_http_aibrix_map_t *map);


/* ngx_http_aibrix_request.c */

/* The request's context, found again after an internal redirect. */
ngx_http_aibrix_ctx_t *ngx_http_aibrix_get_ctx(ngx_http_request_t *r);
ngx_http_aibrix_ctx_t *ngx_http_aibrix_make_ctx(ngx_http_request_t *r,
    size_t max_prompt);

/* Ends the reading of the body: model and stream are known after it. */
void ngx_http_aibrix_parse(ngx_http_request_t *r, ngx_http_aibrix_ctx_t *ctx);
void ngx_http_aibrix_parse_again(ngx_http_request_t *r,
    ngx_http_aibrix_ctx_t *ctx, size_t max_prompt);
void ngx_http_aibrix_drop_prompt(ngx_http_aibrix_ctx_t *ctx);

/* The configuration of the upstream that r goes to, if it is ours. */
ngx_http_aibrix_srv_conf_t *ngx_http_aibrix_target(ngx_http_request_t *r);

ngx_int_t ngx_http_aibrix_request_init(ngx_conf_t *cf);


/* ngx_http_aibrix_headers.c */

/* The header of that name after the first skip ones of it, or NULL. */
ngx_table_elt_t *ngx_http_aibrix_find_header(ngx_list_t *headers,
    const char *name, ngx_uint_t skip);


/* ngx_http_aibrix_balancer.c */

ngx_int_t ngx_http_aibrix_init_upstream(ngx_conf_t *cf,
    ngx_http_upstream_srv_conf_t *us);


/* ngx_http_aibrix_error.c */

/*
 * Answers an OpenAI-shaped error from inside peer.init, which then returns
 * NGX_ERROR.
 */
void ngx_http_aibrix_refuse(ngx_http_request_t *r, ngx_uint_t status,
    ngx_str_t *message);


/* ngx_http_aibrix_response.c */

/*
 * The status that this replica answered with, or 0; headers_in of the upstream
 * may be those of a cached response or of the replica before.
 */
ngx_uint_t ngx_http_aibrix_replica_status(ngx_http_request_t *r);

/* The header of the replica that will be used: no retry after it. */
void ngx_http_aibrix_answered(ngx_http_request_t *r,
    ngx_http_aibrix_peer_data_t *pd);

ngx_int_t ngx_http_aibrix_response_init(ngx_conf_t *cf);


/* ngx_http_aibrix_variables.c */

ngx_int_t ngx_http_aibrix_add_variables(ngx_conf_t *cf);


/* ngx_http_aibrix_explain.c */

/* Sets pd->explain, or leaves it empty; candidates as they were chosen from. */
void ngx_http_aibrix_explain(ngx_http_aibrix_peer_data_t *pd,
    const aibrix_view_t *v, const aibrix_choice_t *choice);


/* ngx_http_aibrix_metrics.c */

char *ngx_http_aibrix_metrics(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


/* ngx_http_aibrix_status.c */

char *ngx_http_aibrix_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


/* ngx_http_aibrix_control.c */

/* Does what a POST to aibrix_status asks for. */
ngx_int_t ngx_http_aibrix_control(ngx_http_request_t *r);


#endif /* _NGX_HTTP_AIBRIX_MODULE_H_INCLUDED_ */
