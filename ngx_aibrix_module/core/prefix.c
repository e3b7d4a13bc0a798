
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#include "prefix.h"


/*
 * XXH64 over (parent, block) reads two places that are not next to each
 * other.  The library can only copy them together or be fed in turn (1.3 and
 * 1.9 times the cost, measured), so the common case, a block that lies in one
 * piece, is written out here.  Algorithm and constants: xxHash specification
 * 0.1.1, XXH64; libxxhash is the check in the unit test.
 */

#define PREFIX_PRIME_1  0x9e3779b185ebca87ull
#define PREFIX_PRIME_2  0xc2b2ae3d27d4eb4full
#define PREFIX_PRIME_3  0x165667b19e3779f9ull
#define PREFIX_PRIME_4  0x85ebca77c2b2ae63ull
#define PREFIX_PRIME_5  0x27d4eb2f165667c5ull

#define PREFIX_PARENT   8       /* bytes of the parent hash */
#define PREFIX_STRIPE   32      /* bytes that four lanes take at a time */


/* Where reading goes on in the text. */
typedef struct {
    const aibrix_span_t  *span;
    const aibrix_span_t  *end;
    size_t                offset;   /* in *span */
} prefix_cursor_t;


static inline uint64_t
prefix_read64(const char *p)
{
    uint64_t  v;

    memcpy(&v, p, sizeof(v));

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif

    return v;
}


static inline uint64_t
prefix_read32(const char *p)
{
    uint32_t  v;

    memcpy(&v, p, sizeof(v));

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif

    return v;
}


static inline uint64_t
prefix_rotl(uint64_t v, int bits)
{
    return (v << bits) | (v >> (64 - bits));
}


static inline uint64_t
prefix_round(uint64_t acc, uint64_t input)
{
    return prefix_rotl(acc + input * PREFIX_PRIME_2, 31) * PREFIX_PRIME_1;
}


static inline uint64_t
prefix_merge(uint64_t h, uint64_t lane)
{
    return (h ^ prefix_round(0, lane)) * PREFIX_PRIME_1 + PREFIX_PRIME_4;
}


static inline uint64_t
prefix_step8(uint64_t h, uint64_t input)
{
    h = prefix_rotl(h ^ prefix_round(0, input), 27);

    return h * PREFIX_PRIME_1 + PREFIX_PRIME_4;
}


static inline uint64_t
prefix_finish(uint64_t h, const char *p, size_t len)
{
    for ( /* void */ ; len >= 8; p += 8, len -= 8) {
        h = prefix_step8(h, prefix_read64(p));
    }

    if (len >= 4) {
        h ^= prefix_read32(p) * PREFIX_PRIME_1;
        h = prefix_rotl(h, 23) * PREFIX_PRIME_2 + PREFIX_PRIME_3;
        p += 4;
        len -= 4;
    }

    for ( /* void */ ; len != 0; p++, len--) {
        h ^= (unsigned char) *p * PREFIX_PRIME_5;
        h = prefix_rotl(h, 11) * PREFIX_PRIME_1;
    }

    h ^= h >> 33;
    h *= PREFIX_PRIME_2;
    h ^= h >> 29;
    h *= PREFIX_PRIME_3;

    return h ^ (h >> 32);
}


/* XXH64(parent || block), the block in one piece. */
static inline uint64_t
prefix_block(uint64_t parent, const char *p, size_t len, uint64_t seed)
{
    size_t    total;
    uint64_t  a, b, c, d, h;

    total = len + PREFIX_PARENT;

    if (total < PREFIX_STRIPE) {
        h = prefix_step8(seed + PREFIX_PRIME_5 + total, parent);
        return prefix_finish(h, p, len);
    }

    a = prefix_round(seed + PREFIX_PRIME_1 + PREFIX_PRIME_2, parent);
    b = prefix_round(seed + PREFIX_PRIME_2, prefix_read64(p));
    c = prefix_round(seed, prefix_read64(p + 8));
    d = prefix_round(seed - PREFIX_PRIME_1, prefix_read64(p + 16));
    p += PREFIX_STRIPE - PREFIX_PARENT;
    len -= PREFIX_STRIPE - PREFIX_PARENT;

    for ( /* void */ ; len >= PREFIX_STRIPE; len -= PREFIX_STRIPE) {
        a = prefix_round(a, prefix_read64(p));
        b = prefix_round(b, prefix_read64(p + 8));
        c = prefix_round(c, prefix_read64(p + 16));
        d = prefix_round(d, prefix_read64(p + 24));
        p += PREFIX_STRIPE;
    }

    h = prefix_rotl(a, 1) + prefix_rotl(b, 7) + prefix_rotl(c, 12)
        + prefix_rotl(d, 18);
    h = prefix_merge(h, a);
    h = prefix_merge(h, b);
    h = prefix_merge(h, c);
    h = prefix_merge(h, d);

    return prefix_finish(h + total, p, len);
}


/* A block over several spans, which the caller knows to hold all of it. */
static uint64_t
prefix_straddling(uint64_t parent, prefix_cursor_t *cur, size_t len,
    uint64_t seed)
{
    size_t         n;
    XXH64_state_t  state;

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    parent = __builtin_bswap64(parent);
#endif

    XXH64_reset(&state, seed);
    XXH64_update(&state, &parent, PREFIX_PARENT);

    while (len != 0) {
        n = cur->span->len - cur->offset;

        if (n == 0) {
            cur->span++;
            cur->offset = 0;
            continue;
        }

        n = (n < len) ? n : len;
        XXH64_update(&state, cur->span->data + cur->offset, n);
        cur->offset += n;
        len -= n;
    }

    return XXH64_digest(&state);
}


/* Is there a whole block from here on, over whatever many spans? */
static int
prefix_has_block(const prefix_cursor_t *cur, size_t len)
{
    size_t                n;
    const aibrix_span_t  *span;

    n = cur->span->len - cur->offset;

    for (span = cur->span + 1; n < len && span < cur->end; span++) {
        n += span->len;
    }

    return n >= len;
}


size_t
aibrix_prefix_hash(const aibrix_span_t *spans, size_t nspans,
    size_t block_size, uint64_t seed, uint64_t *hashes, size_t max)
{
    size_t           n;
    uint64_t         parent;
    prefix_cursor_t  cur;

    if (nspans == 0) {
        return 0;
    }

    n = 0;
    parent = seed;
    cur.span = spans;
    cur.end = spans + nspans;
    cur.offset = 0;

    while (n < max && cur.span < cur.end) {

        if (cur.span->len - cur.offset >= block_size) {
            parent = prefix_block(parent, cur.span->data + cur.offset,
                                  block_size, seed);
            cur.offset += block_size;

        } else if (prefix_has_block(&cur, block_size)) {
            parent = prefix_straddling(parent, &cur, block_size, seed);

        } else {
            break;
        }

        hashes[n++] = parent;
    }

    return n;
}
