
/* Every difference between nginx versions, and the only #if on them. */

#ifndef _NGX_HTTP_AIBRIX_COMPAT_H_INCLUDED_
#define _NGX_HTTP_AIBRIX_COMPAT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


/* 1.27.3: peers that change at run time, counted references to them */

#ifndef NGX_HTTP_UPSTREAM_MODIFY

#define NGX_HTTP_UPSTREAM_MODIFY  0

#define ngx_http_aibrix_generation(peers)  0
#define ngx_http_aibrix_changed(rrp)  0
#define ngx_http_aibrix_adopt(rrp)

#else

#define ngx_http_aibrix_generation(peers)                                     \
    ((peers)->config ? *(peers)->config : 0)

#define ngx_http_aibrix_changed(rrp)                                          \
    ((rrp)->peers->config && (rrp)->config != *(rrp)->peers->config)

#define ngx_http_aibrix_adopt(rrp)  (rrp)->config = *(rrp)->peers->config

#endif


#ifndef ngx_http_upstream_rr_peer_ref
#define ngx_http_upstream_rr_peer_ref(peers, peer)
#endif


/*
 * 1.29.6: sticky.  The peer that the hint names, if it may be used; called
 * under the lock of the peers.
 */

#if (NGX_HTTP_UPSTREAM_SID)

#define ngx_http_aibrix_set_sid(pc, peer)  (pc)->sid = &(peer)->sid

#define ngx_http_aibrix_sticky(rrp, pc, p)                                    \
    ngx_http_upstream_get_rr_peer_by_sid(rrp, (pc)->hint, p, 0)

#else

#define ngx_http_aibrix_set_sid(pc, peer)
#define ngx_http_aibrix_sticky(rrp, pc, p)  NULL

#endif


/* 1.23.0: headers are linked lists */

#if (nginx_version >= 1023000)
#define ngx_http_aibrix_header_last(h)  (h)->next = NULL
#else
#define ngx_http_aibrix_header_last(h)
#endif


#endif /* _NGX_HTTP_AIBRIX_COMPAT_H_INCLUDED_ */
