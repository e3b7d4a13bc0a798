
#include "ngx_http_aibrix_module.h"


#define NGX_HTTP_AIBRIX_TTL   (20 * 60 * 1000)
#define NGX_HTTP_AIBRIX_WALK  65536   /* blocks: less than a millisecond */


static ngx_int_t ngx_http_aibrix_init_zone(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_uint_t ngx_http_aibrix_is_resized(ngx_shm_zone_t *shm_zone);
static ngx_int_t ngx_http_aibrix_check_zone(ngx_http_aibrix_zone_t *zone,
    ngx_log_t *log);
static ngx_int_t ngx_http_aibrix_register_peers(ngx_http_aibrix_zone_t *zone,
    ngx_log_t *log);
static uint32_t ngx_http_aibrix_register(ngx_http_aibrix_zone_t *zone,
    ngx_str_t *upstream, ngx_http_upstream_rr_peer_t *peer);
static uint32_t ngx_http_aibrix_start_time(ngx_pid_t pid);
static uint64_t ngx_http_aibrix_owner(ngx_pid_t pid);
static int ngx_http_aibrix_alive(uint64_t owner);


ngx_http_aibrix_zone_t *
ngx_http_aibrix_add_zone(ngx_conf_t *cf, ngx_str_t *name, size_t size)
{
    size_t                         min;
    ngx_http_aibrix_zone_t        *zone, **zp;
    ngx_http_aibrix_main_conf_t   *amcf;

    /* what the slab allocator keeps to itself: a descriptor for each page */

    min = aibrix_zone_min_size();
    min += 8 * ngx_pagesize + min / ngx_pagesize * sizeof(ngx_slab_page_t);

    if (size < min) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is too small, give it at least %uzk",
                           name, (min + 1023) / 1024);
        return NULL;
    }

    amcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_aibrix_module);

    zone = ngx_pcalloc(cf->pool, sizeof(ngx_http_aibrix_zone_t));
    if (zone == NULL) {
        return NULL;
    }

    zone->ttl = NGX_HTTP_AIBRIX_TTL;
    zone->umcf = ngx_http_conf_get_module_main_conf(cf,
                                                    ngx_http_upstream_module);

    zone->shm_zone = ngx_shared_memory_add(cf, name, size,
                                           &ngx_http_aibrix_module);
    if (zone->shm_zone == NULL) {
        return NULL;
    }

    if (zone->shm_zone->data) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is declared twice, remove one", name);
        return NULL;
    }

    zone->shm_zone->init = ngx_http_aibrix_init_zone;
    zone->shm_zone->data = zone;

    zp = ngx_array_push(&amcf->zones);
    if (zp == NULL) {
        return NULL;
    }

    *zp = zone;

    return zone;
}


static ngx_int_t
ngx_http_aibrix_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    void                    *mem;
    size_t                   size;
    uint64_t                 seed;
    ngx_log_t               *log;
    ngx_http_aibrix_zone_t  *zone;

    zone = shm_zone->data;
    log = shm_zone->shm.log;

    zone->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    /* whether memory is reused is what the memory itself says */

    if (zone->shpool->data) {
        zone->z = zone->shpool->data;

        if (ngx_http_aibrix_check_zone(zone, log) != NGX_OK) {
            return NGX_ERROR;
        }

        return ngx_http_aibrix_register_peers(zone, log);
    }

    if (ngx_http_aibrix_is_resized(shm_zone)) {
        ngx_log_error(NGX_LOG_NOTICE, log, 0,
                      "aibrix_zone \"%V\" has a new size: its index and "
                      "counters start empty", &shm_zone->shm.name);
    }

    zone->shpool->log_nomem = 0;

    size = zone->shpool->pfree * ngx_pagesize;

    mem = ngx_slab_alloc(zone->shpool, size);
    if (mem == NULL) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "aibrix_zone \"%V\": no memory", &shm_zone->shm.name);
        return NGX_ERROR;
    }

    seed = zone->seed_set ? zone->seed
                          : ((uint64_t) ngx_random() << 42)
                            ^ ((uint64_t) ngx_random() << 21) ^ ngx_random()
                            ^ ((uint64_t) ngx_pid << 32);

    zone->z = aibrix_zone_init(mem, size, seed, zone->ttl);

    if (zone->z == NULL) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "aibrix_zone \"%V\" is too small, raise its size",
                      &shm_zone->shm.name);
        return NGX_ERROR;
    }

    zone->shpool->data = zone->z;

    return ngx_http_aibrix_register_peers(zone, log);
}


/* nginx hands no old data over when the size differs; old: ngx_cycle */

static ngx_uint_t
ngx_http_aibrix_is_resized(ngx_shm_zone_t *shm_zone)
{
    ngx_uint_t        i;
    ngx_str_t        *name;
    ngx_shm_zone_t   *old;
    ngx_list_part_t  *part;

    name = &shm_zone->shm.name;

    for (part = (ngx_list_part_t *) &ngx_cycle->shared_memory.part;
         part;
         part = part->next)
    {
        old = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (old[i].tag == shm_zone->tag
                && old[i].shm.size != shm_zone->shm.size
                && old[i].shm.name.len == name->len
                && ngx_strncmp(old[i].shm.name.data, name->data, name->len)
                   == 0)
            {
                return 1;
            }
        }
    }

    return 0;
}


static ngx_int_t
ngx_http_aibrix_check_zone(ngx_http_aibrix_zone_t *zone, ngx_log_t *log)
{
    uint64_t     max;
    ngx_str_t   *name;
    const char  *broken;

    name = &zone->shm_zone->shm.name;

    broken = aibrix_zone_check(zone->z, zone->z->size);

    if (broken) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "aibrix_zone \"%V\" cannot be used again: %s; change "
                      "its name or restart nginx", name, broken);
        return NGX_ERROR;
    }

    if (zone->seed_set && zone->seed != zone->z->seed) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "aibrix_zone \"%V\" lives with another seed; keep the "
                      "seed, change the zone's name or restart nginx", name);
        return NGX_ERROR;
    }

    max = aibrix_index_max_ttl(aibrix_zone_index(zone->z));

    if (zone->ttl > max) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "aibrix_zone \"%V\" lives with a clock too fine for "
                      "this ttl; set at most %uLs, change the zone's name or "
                      "restart nginx", name, max / 1000);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* So that a zone without room for its peers fails "nginx -t". */

static ngx_int_t
ngx_http_aibrix_register_peers(ngx_http_aibrix_zone_t *zone, ngx_log_t *log)
{
    ngx_uint_t                       i;
    ngx_http_aibrix_srv_conf_t      *conf;
    ngx_http_upstream_rr_peer_t     *peer;
    ngx_http_upstream_rr_peers_t    *peers;
    ngx_http_upstream_srv_conf_t   **uscfp;
    ngx_http_upstream_main_conf_t   *umcf;

    umcf = zone->umcf;
    uscfp = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (uscfp[i]->srv_conf == NULL) {
            continue;
        }

        conf = ngx_http_conf_upstream_srv_conf(uscfp[i],
                                               ngx_http_aibrix_module);

        if (conf->zone != zone) {
            continue;
        }

        for (peers = uscfp[i]->peer.data; peers; peers = peers->next) {

            for (peer = peers->peer; peer; peer = peer->next) {

                if (ngx_http_aibrix_register(zone, &conf->upstream, peer)
                    == AIBRIX_NO_PEER)
                {
                    ngx_log_error(NGX_LOG_EMERG, log, 0,
                                  "aibrix_zone \"%V\" has room for %uD "
                                  "servers, upstream \"%V\" in %s:%ui does "
                                  "not fit; raise the size of the zone",
                                  &zone->shm_zone->shm.name,
                                  zone->z->max_peers, &conf->upstream,
                                  uscfp[i]->file_name, uscfp[i]->line);
                    return NGX_ERROR;
                }
            }
        }
    }

    return NGX_OK;
}


static uint32_t
ngx_http_aibrix_register(ngx_http_aibrix_zone_t *zone, ngx_str_t *upstream,
    ngx_http_upstream_rr_peer_t *peer)
{
    uint32_t       id;
    aibrix_span_t  u, n, s;

    u.data = (char *) upstream->data;
    u.len = upstream->len;

    n.data = (char *) peer->name.data;
    n.len = peer->name.len;

    s.data = (char *) peer->server.data;
    s.len = peer->server.len;

    ngx_shmtx_lock(&zone->shpool->mutex);

    id = aibrix_zone_register(zone->z, &u, &n, &s, ngx_current_msec);

    ngx_shmtx_unlock(&zone->shpool->mutex);

    return id;
}


ngx_uint_t
ngx_http_aibrix_map_is_stale(ngx_http_aibrix_srv_conf_t *conf,
    ngx_http_aibrix_map_t *map, ngx_http_upstream_rr_peers_t *peers)
{
    return map->peers != peers
           || map->number != peers->number
           || map->generation != ngx_http_aibrix_generation(peers)
           || map->recycled != conf->zone->z->recycled;
}


ngx_int_t
ngx_http_aibrix_update_map(ngx_http_aibrix_srv_conf_t *conf,
    ngx_http_aibrix_map_t *map, ngx_http_upstream_rr_peers_t *peers)
{
    void                         *mem;
    ngx_uint_t                    i, n;
    ngx_http_upstream_rr_peer_t  *peer;

    n = 0;

    for (peer = peers->peer; peer; peer = peer->next) {
        n++;
    }

    if (n > map->capacity) {
        ngx_http_aibrix_free_map(map);

        mem = ngx_alloc(n * (sizeof(ngx_http_upstream_rr_peer_t *)
                             + sizeof(aibrix_candidate_t)
                             + sizeof(ngx_uint_t) + sizeof(uint32_t)),
                        ngx_cycle->log);
        if (mem == NULL) {
            return NGX_ERROR;
        }

        map->candidates = mem;
        map->eligible = (void *) (map->candidates + n);
        map->at = (void *) (map->eligible + n);
        map->ids = (void *) (map->at + n);
        map->capacity = n;
    }

    /* read first: a number given away while this runs makes it stale again */

    map->recycled = conf->zone->z->recycled;
    map->peers = peers;
    map->number = peers->number;
    map->generation = ngx_http_aibrix_generation(peers);

    ngx_memzero(&map->set, sizeof(aibrix_peerset_t));

    for (peer = peers->peer, i = 0; peer; peer = peer->next, i++) {
        map->ids[i] = ngx_http_aibrix_register(conf->zone, &conf->upstream,
                                               peer);

        if (map->ids[i] == AIBRIX_NO_PEER) {
            ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                          "aibrix_zone \"%V\" has no room for server %V of "
                          "upstream \"%V\": it is balanced without its load "
                          "and prefixes; raise the size of the zone",
                          &conf->zone->shm_zone->shm.name, &peer->name,
                          &conf->upstream);
            continue;
        }

        map->set.word[map->ids[i] / 64] |= (uint64_t) 1 << map->ids[i] % 64;
    }

    map->count = i;

    return NGX_OK;
}


void
ngx_http_aibrix_free_map(ngx_http_aibrix_map_t *map)
{
    if (map->candidates) {
        ngx_free(map->candidates);
    }

    ngx_memzero(map, sizeof(ngx_http_aibrix_map_t));
}


uint32_t
ngx_http_aibrix_row(ngx_http_aibrix_zone_t *zone)
{
    if (!zone->attached) {
        zone->row = aibrix_load_attach(aibrix_zone_load(zone->z),
                                       ngx_http_aibrix_owner(ngx_pid));
        zone->attached = 1;

        if (zone->row == 0) {
            ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                          "aibrix_zone \"%V\" has no load row left for this "
                          "process: its counts would not survive a crash",
                          &zone->shm_zone->shm.name);
        }
    }

    return zone->row;
}


void
ngx_http_aibrix_detach(ngx_http_aibrix_zone_t *zone)
{
    if (zone->attached) {
        aibrix_load_detach(aibrix_zone_load(zone->z), zone->row);
        zone->attached = 0;
    }
}


void
ngx_http_aibrix_sweep(ngx_http_aibrix_zone_t *zone, ngx_uint_t force)
{
    uint32_t  n;
    uint64_t  now;

    now = ngx_time();

    if (!force && __atomic_load_n(&zone->z->swept, __ATOMIC_RELAXED) == now) {
        return;
    }

    __atomic_store_n(&zone->z->swept, now, __ATOMIC_RELAXED);

    n = aibrix_load_sweep(aibrix_zone_load(zone->z),
                          ngx_http_aibrix_owner(ngx_pid),
                          ngx_http_aibrix_alive);

    if (n) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "aibrix_zone \"%V\": took back the counts of %uD dead "
                      "processes", &zone->shm_zone->shm.name, n);
    }
}


uint64_t
ngx_http_aibrix_oldest(ngx_http_aibrix_zone_t *zone)
{
    uint64_t  part;

    if (zone->walked_at == 0) {
        zone->walked = 0;
    }

    part = aibrix_index_oldest_part(aibrix_zone_index(zone->z),
                                    &zone->walked_at,
                                    NGX_HTTP_AIBRIX_WALK,
                                    ngx_current_msec, zone->ttl);

    zone->walked = ngx_max(zone->walked, part);

    if (zone->walked_at == 0) {
        zone->oldest = zone->walked;
    }

    return ngx_max(zone->oldest, zone->walked);
}


/*
 * In clock ticks since boot, from proc(5); 0 where there is no /proc, and
 * then a process that got a dead one's pid keeps its row alive.
 */

static uint32_t
ngx_http_aibrix_start_time(ngx_pid_t pid)
{
    u_char     *p, *last, buf[1024], path[sizeof("/proc//stat")
                                          + NGX_INT64_LEN];
    ssize_t     n;
    ngx_fd_t    fd;
    ngx_uint_t  field;

    *ngx_sprintf(path, "/proc/%P/stat", pid) = '\0';

    fd = ngx_open_file(path, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        return 0;
    }

    n = read(fd, buf, sizeof(buf));

    (void) ngx_close_file(fd);

    if (n <= 0) {
        return 0;
    }

    /* the second field is a name in parentheses that may hold anything */

    last = buf + n;

    for (p = last; p > buf && p[-1] != ')'; p--) { /* void */ }

    for (field = 2; field < 22 && p < last; p++) {
        if (*p == ' ') {
            field++;
        }
    }

    for (n = 0; p < last && *p >= '0' && *p <= '9'; p++) {
        n = (n * 10 + (*p - '0')) & 0xffffffff;
    }

    return (uint32_t) n;
}


static uint64_t
ngx_http_aibrix_owner(ngx_pid_t pid)
{
    static uint64_t  owner;

    if (owner >> 32 != (uint64_t) pid) {
        owner = (uint64_t) pid << 32 | ngx_http_aibrix_start_time(pid);
    }

    return owner;
}


static int
ngx_http_aibrix_alive(uint64_t owner)
{
    uint32_t   start, now;
    ngx_pid_t  pid;

    pid = (ngx_pid_t) (owner >> 32);
    start = (uint32_t) owner;

    if (kill(pid, 0) == -1 && ngx_errno == ESRCH) {
        return 0;
    }

    now = ngx_http_aibrix_start_time(pid);

    return start == 0 || now == 0 || start == now;
}
