
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "stats.h"


#define AIBRIX_NAME_WORDS     (AIBRIX_MODEL_MAX / 8)
#define AIBRIX_CELL_BUCKETS   15
#define AIBRIX_PROBES         64        /* keys looked at before giving up */
#define AIBRIX_CLAIMS         8         /* lost races before giving up */

/*
 * Keys of the two sparse tables.  A live one has the top bit set and below
 * it: incarnation (32 bits), peer (13), model (7), strategy (6), class (3).
 */
#define AIBRIX_KEY_EMPTY      0         /* ends a chain */
#define AIBRIX_KEY_FREE       1         /* zeroed; a chain goes on behind */
#define AIBRIX_KEY_BUSY       2         /* being zeroed */
#define AIBRIX_KEY_LIVE       (1ULL << 63)


typedef struct {
    uint64_t   bucket[AIBRIX_CELL_BUCKETS];
    uint64_t   sum;
} aibrix_cell_hist_t;


/* Only uint64_t in here: it is zeroed and read word by word. */
typedef struct {
    uint64_t             outcomes[AIBRIX_OUTCOMES];
    uint64_t             prompt_tokens;
    uint64_t             completion_tokens;
    uint64_t             cached_tokens;
    aibrix_cell_hist_t   ttft;
    aibrix_cell_hist_t   gap;
    aibrix_cell_hist_t   duration;
} aibrix_cell_t;


/*
 * The same.  requests and cell are those of models that count as "other" (and
 * requests, of strategies that do too): what the sparse tables have no room
 * for is counted here.
 */
typedef struct {
    uint64_t        decisions;
    uint64_t        fails;
    uint64_t        blocks;
    uint64_t        matched;
    uint64_t        requests[AIBRIX_CLASSES];
    aibrix_cell_t   cell;
} aibrix_row_counts_t;


typedef struct {
    uint64_t              turns;    /* odd while reset; incarnation * 2 */
    uint64_t              claimed;  /* sparse series made, or nearly */
    aibrix_row_counts_t   c;
} aibrix_row_t;


typedef struct {
    uint64_t   key;
    uint64_t   count;
} aibrix_request_cell_t;


typedef struct {
    uint64_t   selections[AIBRIX_SELECTIONS];
    uint64_t   percents[AIBRIX_PERCENTS];
    uint64_t   errors[AIBRIX_ERRORS];
    uint64_t   imbalances;
    uint64_t   blocks;
    uint64_t   matched;
    uint64_t   latency[AIBRIX_BUCKETS];
    uint64_t   latency_sum;
} aibrix_model_cell_t;


typedef struct {
    uint64_t   seq;                 /* its place among all decisions, from 1 */
    uint64_t   what;                /* small fields, packed */
    uint64_t   blocks;              /* and matched ones, 32 bits each */
    uint64_t   ns;
    uint64_t   at;
    uint64_t   turns;               /* of the peer */
    uint64_t   pad;
    uint64_t   check;               /* hash of the words above */
} aibrix_recent_t;


struct aibrix_stats_s {
    uint32_t              max_peers;
    uint32_t              series_bits;
    uint32_t              requests_bits;
    uint32_t              pad;
    uint64_t              rows_at;      /* aibrix_row_t[max_peers + 1] */
    uint64_t              keys_at;      /* uint64_t[1 << series_bits] */
    uint64_t              cells_at;     /* aibrix_cell_t, one a key */
    uint64_t              requests_at;  /* aibrix_request_cell_t */
    uint64_t              recent_head;
    uint64_t              fallbacks[AIBRIX_STRATEGIES][AIBRIX_FALLBACKS];
    uint64_t              name_hash[AIBRIX_MODELS];     /* 0 is free */
    uint64_t              name_len[AIBRIX_MODELS];      /* plus 1; 0 is none */
    uint64_t              name[AIBRIX_MODELS][AIBRIX_NAME_WORDS];
    aibrix_model_cell_t   models[AIBRIX_MODELS + 1];
    aibrix_recent_t       recent[AIBRIX_RECENT] __attribute__((aligned(64)));
};


static const uint64_t  aibrix_ttft_bounds[AIBRIX_CELL_BUCKETS - 1] = {
    5, 10, 20, 50, 100, 200, 300, 500, 1000, 2000, 5000, 10000, 30000, 60000
};

static const uint64_t  aibrix_gap_bounds[AIBRIX_CELL_BUCKETS - 1] = {
    1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 500, 1000, 2000, 5000
};

static const uint64_t  aibrix_duration_bounds[AIBRIX_CELL_BUCKETS - 1] = {
    50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000,
    300000, 600000
};

/* AIBrix v0.7.0's 10 us * 2^k, k = 0 .. 14, with finer ones below. */
static const uint64_t  aibrix_latency_bounds[AIBRIX_BUCKETS - 1] = {
    1000, 2000, 5000, 10000, 20000, 40000, 80000, 160000, 320000, 640000,
    1280000, 2560000, 5120000, 10240000, 20480000, 40960000, 81920000,
    163840000
};


static uint64_t
aibrix_get(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}


static void
aibrix_set(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}


static void
aibrix_add(uint64_t *p, uint64_t n)
{
    (void) __atomic_fetch_add(p, n, __ATOMIC_RELAXED);
}


static void
aibrix_copy_words(void *dst, const void *src, size_t size)
{
    size_t           i;
    uint64_t        *d;
    const uint64_t  *s;

    d = dst;
    s = src;

    for (i = 0; i < size / sizeof(uint64_t); i++) {
        aibrix_set(&d[i], aibrix_get(&s[i]));
    }
}


static void
aibrix_zero_words(void *dst, size_t size)
{
    size_t     i;
    uint64_t  *d;

    d = dst;

    for (i = 0; i < size / sizeof(uint64_t); i++) {
        aibrix_set(&d[i], 0);
    }
}


static int
aibrix_any_word(const void *src, size_t size)
{
    size_t           i;
    const uint64_t  *s;

    s = src;

    for (i = 0; i < size / sizeof(uint64_t); i++) {
        if (s[i] != 0) {
            return 1;
        }
    }

    return 0;
}


/* The number of bounds below v, which is its bucket. */

static uint32_t
aibrix_bucket(const uint64_t *bounds, uint32_t n, uint64_t v)
{
    uint32_t  i, b;

    b = 0;

    for (i = 0; i < n; i++) {
        b += (v > bounds[i]);
    }

    return b;
}


static void
aibrix_observe(aibrix_cell_hist_t *h, const uint64_t *bounds, uint64_t v,
    uint64_t n)
{
    uint32_t  b;

    b = aibrix_bucket(bounds, AIBRIX_CELL_BUCKETS - 1, v);

    aibrix_add(&h->bucket[b], n);
    aibrix_add(&h->sum, v * n);
}


/* Layout */

static uint32_t
aibrix_bits(uint64_t at_least)
{
    uint32_t  bits;

    bits = 1;

    while ((1ULL << bits) < at_least) {
        bits++;
    }

    return bits;
}


static size_t
aibrix_lay_out(aibrix_stats_t *st, uint32_t max_peers)
{
    size_t  at;

    st->max_peers = max_peers;
    st->series_bits = aibrix_bits((max_peers > 128) ? 2 * max_peers : 256);
    st->requests_bits = aibrix_bits((max_peers > 64) ? 16 * max_peers : 1024);

    at = sizeof(aibrix_stats_t);

    st->rows_at = at;
    at += ((size_t) max_peers + 1) * sizeof(aibrix_row_t);

    st->keys_at = at;
    at += sizeof(uint64_t) << st->series_bits;

    st->cells_at = at;
    at += sizeof(aibrix_cell_t) << st->series_bits;

    st->requests_at = at;
    at += sizeof(aibrix_request_cell_t) << st->requests_bits;

    return at;
}


static void *
aibrix_stats_at(const aibrix_stats_t *st, uint64_t at)
{
    return (void *) ((char *) (uintptr_t) st + at);
}


static uint64_t *
aibrix_series_keys(const aibrix_stats_t *st)
{
    return aibrix_stats_at(st, st->keys_at);
}


static aibrix_cell_t *
aibrix_series_cells(const aibrix_stats_t *st)
{
    return aibrix_stats_at(st, st->cells_at);
}


static aibrix_request_cell_t *
aibrix_request_cells(const aibrix_stats_t *st)
{
    return aibrix_stats_at(st, st->requests_at);
}


static uint32_t
aibrix_row_number(const aibrix_stats_t *st, uint32_t peer)
{
    return (peer < st->max_peers) ? peer : st->max_peers;
}


static uint32_t
aibrix_row_peer(const aibrix_stats_t *st, uint32_t row)
{
    return (row < st->max_peers) ? row : UINT32_MAX;
}


static aibrix_row_t *
aibrix_row(const aibrix_stats_t *st, uint32_t row)
{
    return (aibrix_row_t *) aibrix_stats_at(st, st->rows_at) + row;
}


size_t
aibrix_stats_size(uint32_t max_peers)
{
    aibrix_stats_t  st;

    return aibrix_lay_out(&st, max_peers);
}


aibrix_stats_t *
aibrix_stats_init(void *mem, uint32_t max_peers)
{
    (void) aibrix_lay_out(mem, max_peers);

    return mem;
}


static uint32_t
aibrix_strategy_number(uint32_t strategy)
{
    return (strategy < AIBRIX_STRATEGY_OTHER) ? strategy
                                              : AIBRIX_STRATEGY_OTHER;
}


static uint32_t
aibrix_model_number(uint32_t model)
{
    return (model < AIBRIX_MODELS) ? model : AIBRIX_MODEL_OTHER;
}


/* Keys and the sparse tables */

/* What is counted while a peer is reset is its new owner's already. */

static uint64_t
aibrix_incarnation(const aibrix_row_t *row)
{
    return ((aibrix_get(&row->turns) + 1) >> 1) & UINT32_MAX;
}


static uint64_t
aibrix_key(const aibrix_stats_t *st, uint32_t row, uint32_t model,
    uint32_t strategy, uint32_t class)
{
    return AIBRIX_KEY_LIVE
           | aibrix_incarnation(aibrix_row(st, row)) << 29
           | (uint64_t) row << 16
           | model << 9
           | strategy << 3
           | class;
}


static uint32_t
aibrix_key_row(uint64_t key)
{
    return (key >> 16) & 0x1fff;
}


static uint32_t
aibrix_key_model(uint64_t key)
{
    return (key >> 9) & 0x7f;
}


static int
aibrix_key_current(const aibrix_stats_t *st, uint64_t key)
{
    return (key & AIBRIX_KEY_LIVE)
           && ((key >> 29) & UINT32_MAX)
              == aibrix_incarnation(aibrix_row(st, aibrix_key_row(key)));
}


static uint32_t
aibrix_home(uint64_t key, uint32_t bits)
{
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15;

    return (uint32_t) (key >> (64 - bits));
}


/*
 * Both tables through one code: a key every stride words.  Returns the slot
 * of key, or AIBRIX_NO_SLOT; *spare is the slot that key may claim.
 */

#define AIBRIX_NO_SLOT  UINT32_MAX

static uint32_t
aibrix_probe(const uint64_t *keys, uint32_t stride, uint32_t bits,
    uint64_t key, uint32_t *spare)
{
    uint32_t  i, at, mask;
    uint64_t  k;

    mask = (1U << bits) - 1;
    at = aibrix_home(key, bits);
    *spare = AIBRIX_NO_SLOT;

    for (i = 0; i < AIBRIX_PROBES; i++) {
        k = __atomic_load_n(&keys[(size_t) at * stride], __ATOMIC_ACQUIRE);

        if (k == key) {
            return at;
        }

        if (k <= AIBRIX_KEY_FREE && *spare == AIBRIX_NO_SLOT) {
            *spare = at;
        }

        if (k == AIBRIX_KEY_EMPTY) {
            break;
        }

        at = (at + 1) & mask;
    }

    return AIBRIX_NO_SLOT;
}


static uint32_t
aibrix_claim(aibrix_stats_t *st, uint64_t *keys, uint32_t stride,
    uint32_t bits, uint64_t key)
{
    uint32_t  i, at, spare;
    uint64_t  k;

    for (i = 0; i < AIBRIX_CLAIMS; i++) {
        at = aibrix_probe(keys, stride, bits, key, &spare);

        if (at != AIBRIX_NO_SLOT) {
            return at;
        }

        if (spare == AIBRIX_NO_SLOT) {
            break;
        }

        if (i == 0) {
            aibrix_add(&aibrix_row(st, aibrix_key_row(key))->claimed, 1);
        }

        k = __atomic_load_n(&keys[(size_t) spare * stride], __ATOMIC_RELAXED);

        if (k <= AIBRIX_KEY_FREE
            && __atomic_compare_exchange_n(&keys[(size_t) spare * stride], &k,
                                           key, 0, __ATOMIC_ACQ_REL,
                                           __ATOMIC_RELAXED))
        {
            return spare;
        }
    }

    return AIBRIX_NO_SLOT;
}


static aibrix_cell_t *
aibrix_cell(aibrix_stats_t *st, uint32_t peer, uint32_t model)
{
    uint32_t  at, row;

    row = aibrix_row_number(st, peer);

    if (model < AIBRIX_MODELS) {
        at = aibrix_claim(st, aibrix_series_keys(st), 1, st->series_bits,
                          aibrix_key(st, row, model, 0, 0));

        if (at != AIBRIX_NO_SLOT) {
            return &aibrix_series_cells(st)[at];
        }
    }

    return &aibrix_row(st, row)->c.cell;
}


static void
aibrix_count_request(aibrix_stats_t *st, uint32_t peer, uint32_t model,
    uint32_t strategy, uint32_t class)
{
    uint32_t                at, row;
    aibrix_request_cell_t  *cells;

    at = AIBRIX_NO_SLOT;
    row = aibrix_row_number(st, peer);
    cells = aibrix_request_cells(st);

    if (model != AIBRIX_MODEL_OTHER || strategy != AIBRIX_STRATEGY_OTHER) {
        at = aibrix_claim(st, &cells->key, 2, st->requests_bits,
                          aibrix_key(st, row, model, strategy, class));
    }

    if (at == AIBRIX_NO_SLOT) {
        aibrix_add(&aibrix_row(st, row)->c.requests[class], 1);
        return;
    }

    aibrix_add(&cells[at].count, 1);
}


/* Model names */

/* The length of the UTF-8 sequence at p, 0 when it is not one. */

static size_t
aibrix_utf8(const unsigned char *p, size_t len)
{
    size_t    i, n;
    uint32_t  c, least;

    if (p[0] < 0x80) {
        return 1;
    }

    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        n = 2;
        least = 0x80;

    } else if ((p[0] & 0xf0) == 0xe0) {
        n = 3;
        least = 0x800;

    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        n = 4;
        least = 0x10000;

    } else {
        return 0;
    }

    if (n > len) {
        return 0;
    }

    c = p[0] & (0xff >> (n + 1));

    for (i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }

        c = c << 6 | (p[i] & 0x3f);
    }

    if (c < least || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) {
        return 0;
    }

    return n;
}


/* C0, DEL and, as UTF-8, C1. */

static int
aibrix_control(const unsigned char *p, size_t n)
{
    return (n == 1 && (p[0] < 0x20 || p[0] == 0x7f))
           || (n == 2 && p[0] == 0xc2 && p[1] < 0xa0);
}


/*
 * Copies printable UTF-8, with U+FFFD for each byte of anything else, as far
 * as whole characters fit.  escape() gives an ASCII character's form when it
 * is not itself, control characters included.
 */

typedef size_t (*aibrix_escape_pt)(char *buf, unsigned char c);

static size_t
aibrix_escape(char *dst, size_t size, const aibrix_span_t *src,
    aibrix_escape_pt escape)
{
    char                  buf[8];
    size_t                at, out, n, len;
    const char           *text;
    const unsigned char  *p;

    at = 0;
    out = 0;

    while (at < src->len) {
        p = (const unsigned char *) src->data + at;
        n = aibrix_utf8(p, src->len - at);
        len = (n == 1 && escape != NULL) ? escape(buf, p[0]) : 0;

        if (len != 0) {
            text = buf;

        } else if (n == 0 || aibrix_control(p, n)) {
            text = "\xef\xbf\xbd";
            len = 3;

        } else {
            text = (const char *) p;
            len = n;
        }

        if (out + len > size) {
            break;
        }

        memcpy(dst + out, text, len);
        out += len;
        at += (n != 0) ? n : 1;
    }

    return out;
}


static size_t
aibrix_escape_label_char(char *buf, unsigned char c)
{
    if (c != '\\' && c != '"' && c != '\n') {
        return 0;
    }

    buf[0] = '\\';
    buf[1] = (c == '\n') ? 'n' : (char) c;

    return 2;
}


static size_t
aibrix_escape_json_char(char *buf, unsigned char c)
{
    static const char  hex[] = "0123456789abcdef";

    if (c == '\\' || c == '"') {
        buf[0] = '\\';
        buf[1] = (char) c;

        return 2;
    }

    if (c >= 0x20 && c != 0x7f) {
        return 0;
    }

    memcpy(buf, "\\u00", 4);
    buf[4] = hex[c >> 4];
    buf[5] = hex[c & 15];

    return 6;
}


size_t
aibrix_escape_label(char *dst, size_t size, const aibrix_span_t *src)
{
    return aibrix_escape(dst, size, src, aibrix_escape_label_char);
}


size_t
aibrix_escape_json(char *dst, size_t size, const aibrix_span_t *src)
{
    return aibrix_escape(dst, size, src, aibrix_escape_json_char);
}


static int
aibrix_plain(const aibrix_span_t *s)
{
    size_t         i;
    unsigned       bad;
    unsigned char  c;

    if (s->len > AIBRIX_MODEL_MAX) {
        return 0;
    }

    bad = 0;

    for (i = 0; i < s->len; i++) {
        c = (unsigned char) s->data[i];
        bad |= (c < 0x20) | (c > 0x7e);
    }

    return !bad;
}


/*
 * Whoever finds the name of its hash unwritten writes it: the same words, so
 * it does not matter who is first or how many there are.
 */

static void
aibrix_name_write(aibrix_stats_t *st, uint32_t model, const char *name,
    size_t len)
{
    size_t    i;
    uint64_t  words[AIBRIX_NAME_WORDS];

    memset(words, 0, sizeof(words));
    memcpy(words, name, len);

    for (i = 0; i < AIBRIX_NAME_WORDS; i++) {
        aibrix_set(&st->name[model][i], words[i]);
    }

    __atomic_store_n(&st->name_len[model], len + 1, __ATOMIC_RELEASE);
}


static uint32_t
aibrix_name_find(aibrix_stats_t *st, uint64_t hash)
{
    uint32_t  i, at;
    uint64_t  h;

    for (i = 0; i < AIBRIX_MODELS; i++) {
        at = (uint32_t) (hash + i) % AIBRIX_MODELS;
        h = aibrix_get(&st->name_hash[at]);

        if (h == hash) {
            return at;
        }

        if (h == 0
            && (__atomic_compare_exchange_n(&st->name_hash[at], &h, hash, 0,
                                            __ATOMIC_RELAXED,
                                            __ATOMIC_RELAXED)
                || h == hash))
        {
            return at;
        }
    }

    return AIBRIX_MODEL_OTHER;
}


uint32_t
aibrix_stats_model(aibrix_stats_t *st, const aibrix_span_t *name)
{
    char           buf[AIBRIX_MODEL_MAX];
    uint32_t       model;
    uint64_t       hash;
    aibrix_span_t  s;

    s = *name;

    if (!aibrix_plain(&s)) {
        s.len = aibrix_escape(buf, sizeof(buf), name, NULL);
        s.data = buf;
    }

    /* Taken by what counts as other, and no label may come twice. */

    if (s.len == 5 && memcmp(s.data, "other", 5) == 0) {
        return AIBRIX_MODEL_OTHER;
    }

    hash = XXH64(s.data, s.len, 0);
    hash += (hash == 0);

    model = aibrix_name_find(st, hash);

    if (model != AIBRIX_MODEL_OTHER
        && __atomic_load_n(&st->name_len[model], __ATOMIC_ACQUIRE) == 0)
    {
        aibrix_name_write(st, model, s.data, s.len);
    }

    return model;
}


aibrix_span_t
aibrix_stats_model_name(const aibrix_stats_t *st, uint32_t model)
{
    uint64_t       len;
    aibrix_span_t  s;

    s.data = "other";
    s.len = 5;

    if (model < AIBRIX_MODELS) {
        len = __atomic_load_n(&st->name_len[model], __ATOMIC_ACQUIRE);

        s.data = (len != 0) ? (const char *) st->name[model] : NULL;
        s.len = (len != 0) ? len - 1 : 0;
    }

    return s;
}


/* Counting */

static uint64_t
aibrix_recent_check(const aibrix_recent_t *r)
{
    return XXH64(r, offsetof(aibrix_recent_t, check), 0);
}


/*
 * No slot is ever locked.  Two writers may mix their words in one when 128
 * decisions are made while a third is written, and a writer may be killed:
 * the check word is then wrong until the slot is written again.
 */

static void
aibrix_remember(aibrix_stats_t *st, const aibrix_decision_t *d, uint32_t row)
{
    uint32_t         percent;
    aibrix_recent_t  r;

    percent = (d->percent < 100) ? d->percent : 100;

    r.seq = __atomic_add_fetch(&st->recent_head, 1, __ATOMIC_RELAXED);

    r.what = (uint64_t) row << 32
             | aibrix_model_number(d->model) << 24
             | aibrix_strategy_number(d->strategy) << 16
             | (uint32_t) d->selection << 9
             | percent << 2
             | (d->imbalanced != 0);

    r.blocks = (uint64_t) d->blocks << 32 | d->matched;
    r.ns = d->ns;
    r.at = d->at;
    r.turns = aibrix_get(&aibrix_row(st, row)->turns);
    r.pad = 0;
    r.check = aibrix_recent_check(&r);

    aibrix_copy_words(&st->recent[r.seq % AIBRIX_RECENT], &r, sizeof(r));
}


static uint32_t
aibrix_percent_step(uint32_t percent)
{
    if (percent == 0) {
        return AIBRIX_PERCENT_0;
    }

    return (percent < 100) ? AIBRIX_PERCENT_25 + (percent - 1) / 25
                           : AIBRIX_PERCENT_100;
}


void
aibrix_stats_decision(aibrix_stats_t *st, const aibrix_decision_t *d)
{
    uint32_t              b, row;
    aibrix_model_cell_t  *m;
    aibrix_row_counts_t  *c;

    m = &st->models[aibrix_model_number(d->model)];

    aibrix_add(&m->selections[d->selection], 1);
    aibrix_add(&m->percents[aibrix_percent_step(d->percent)], 1);
    aibrix_add(&m->blocks, d->blocks);
    aibrix_add(&m->matched, d->matched);

    if (d->imbalanced) {
        aibrix_add(&m->imbalances, 1);
    }

    b = aibrix_bucket(aibrix_latency_bounds, AIBRIX_BUCKETS - 1, d->ns);
    aibrix_add(&m->latency[b], 1);
    aibrix_add(&m->latency_sum, d->ns);

    row = aibrix_row_number(st, d->peer);
    c = &aibrix_row(st, row)->c;

    aibrix_add(&c->decisions, 1);
    aibrix_add(&c->blocks, d->blocks);
    aibrix_add(&c->matched, d->matched);

    aibrix_remember(st, d, row);
}


void
aibrix_stats_first_token(aibrix_stats_t *st, uint32_t peer, uint32_t model,
    uint64_t ms)
{
    aibrix_observe(&aibrix_cell(st, peer, model)->ttft, aibrix_ttft_bounds,
                   ms, 1);
}


void
aibrix_stats_gap(aibrix_stats_t *st, uint32_t peer, uint32_t model,
    uint64_t ms)
{
    aibrix_stats_gaps(st, peer, model, ms, 1);
}


void
aibrix_stats_gaps(aibrix_stats_t *st, uint32_t peer, uint32_t model,
    uint64_t ms, uint64_t n)
{
    aibrix_observe(&aibrix_cell(st, peer, model)->gap, aibrix_gap_bounds, ms,
                   n);
}


void
aibrix_stats_done(aibrix_stats_t *st, const aibrix_done_t *d)
{
    uint32_t        class;
    aibrix_cell_t  *c;

    class = d->status / 100;

    if (class >= AIBRIX_CLASSES) {
        class = 0;
    }

    aibrix_count_request(st, d->peer, aibrix_model_number(d->model),
                         aibrix_strategy_number(d->strategy), class);

    c = aibrix_cell(st, d->peer, d->model);

    aibrix_add(&c->outcomes[d->outcome], 1);
    aibrix_observe(&c->duration, aibrix_duration_bounds, d->duration_ms, 1);

    if (d->prompt_tokens != 0) {
        aibrix_add(&c->prompt_tokens, d->prompt_tokens);
    }

    if (d->completion_tokens != 0) {
        aibrix_add(&c->completion_tokens, d->completion_tokens);
    }

    if (d->cached_tokens != 0) {
        aibrix_add(&c->cached_tokens, d->cached_tokens);
    }
}


void
aibrix_stats_fail(aibrix_stats_t *st, uint32_t peer)
{
    aibrix_add(&aibrix_row(st, aibrix_row_number(st, peer))->c.fails, 1);
}


void
aibrix_stats_error(aibrix_stats_t *st, uint32_t model, uint32_t reason)
{
    if (reason < AIBRIX_ERRORS) {
        aibrix_add(&st->models[aibrix_model_number(model)].errors[reason], 1);
    }
}


void
aibrix_stats_fallback(aibrix_stats_t *st, uint32_t strategy, uint32_t reason)
{
    if (reason < AIBRIX_FALLBACKS) {
        strategy = aibrix_strategy_number(strategy);
        aibrix_add(&st->fallbacks[strategy][reason], 1);
    }
}


/* A new owner for a peer number */

/*
 * Only a holder of the caller's lock makes a key BUSY, so one that is found
 * in that state was left behind by a process that died.
 */

static void
aibrix_recycle(uint64_t *key, void *cell, size_t size)
{
    __atomic_store_n(key, AIBRIX_KEY_BUSY, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);

    aibrix_zero_words(cell, size);

    __atomic_store_n(key, AIBRIX_KEY_FREE, __ATOMIC_RELEASE);
}


static int
aibrix_stale(const aibrix_stats_t *st, uint64_t key)
{
    return key == AIBRIX_KEY_BUSY
           || ((key & AIBRIX_KEY_LIVE) && !aibrix_key_current(st, key));
}


static void
aibrix_recycle_stale(aibrix_stats_t *st)
{
    uint32_t                i;
    uint64_t               *keys;
    aibrix_cell_t          *cells;
    aibrix_request_cell_t  *requests;

    keys = aibrix_series_keys(st);
    cells = aibrix_series_cells(st);

    for (i = 0; i < (1U << st->series_bits); i++) {
        if (aibrix_stale(st, aibrix_get(&keys[i]))) {
            aibrix_recycle(&keys[i], &cells[i], sizeof(aibrix_cell_t));
        }
    }

    requests = aibrix_request_cells(st);

    for (i = 0; i < (1U << st->requests_bits); i++) {
        if (aibrix_stale(st, aibrix_get(&requests[i].key))) {
            aibrix_recycle(&requests[i].key, &requests[i].count,
                           sizeof(uint64_t));
        }
    }
}


void
aibrix_stats_reset_peer(aibrix_stats_t *st, uint32_t peer)
{
    uint64_t       turns, claimed;
    aibrix_row_t  *row;

    if (peer >= st->max_peers) {
        return;
    }

    row = aibrix_row(st, peer);
    turns = aibrix_get(&row->turns);

    __atomic_store_n(&row->turns, turns | 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);

    aibrix_zero_words(&row->c, sizeof(aibrix_row_counts_t));

    claimed = __atomic_exchange_n(&row->claimed, 0, __ATOMIC_RELAXED);

    /* Odd already: a call that did not come to its end. */

    if (claimed != 0 || (turns & 1)) {
        aibrix_recycle_stale(st);
    }

    __atomic_store_n(&row->turns, (turns | 1) + 1, __ATOMIC_RELEASE);
}


/* Reading */

static void
aibrix_hist_read(aibrix_hist_t *h, const uint64_t *bounds, uint32_t n,
    uint32_t per_second, const uint64_t *bucket, uint64_t sum)
{
    uint32_t  i;

    memset(h, 0, sizeof(aibrix_hist_t));

    h->bounds = bounds;
    h->n = n;
    h->per_second = per_second;
    h->sum = sum;

    for (i = 0; i <= n; i++) {
        h->bucket[i] = bucket[i];
        h->count += bucket[i];
    }
}


static void
aibrix_series_fill(aibrix_series_t *s, uint32_t peer, uint32_t model,
    const aibrix_cell_t *c)
{
    s->peer = peer;
    s->model = model;
    s->prompt_tokens = c->prompt_tokens;
    s->completion_tokens = c->completion_tokens;
    s->cached_tokens = c->cached_tokens;

    memcpy(s->outcomes, c->outcomes, sizeof(s->outcomes));

    aibrix_hist_read(&s->ttft, aibrix_ttft_bounds, AIBRIX_CELL_BUCKETS - 1,
                     1000, c->ttft.bucket, c->ttft.sum);
    aibrix_hist_read(&s->gap, aibrix_gap_bounds, AIBRIX_CELL_BUCKETS - 1,
                     1000, c->gap.bucket, c->gap.sum);
    aibrix_hist_read(&s->duration, aibrix_duration_bounds,
                     AIBRIX_CELL_BUCKETS - 1, 1000, c->duration.bucket,
                     c->duration.sum);
}


/* Copies what belongs to key; 0 when it is (or was meanwhile) recycled. */

static int
aibrix_copy_keyed(void *dst, const uint64_t *key_at, const void *src,
    size_t size, uint64_t key)
{
    if (__atomic_load_n(key_at, __ATOMIC_ACQUIRE) != key) {
        return 0;
    }

    aibrix_copy_words(dst, src, size);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);

    return aibrix_get(key_at) == key;
}


/* src: size bytes of that row. */

static int
aibrix_copy_row(const aibrix_row_t *row, void *dst, const void *src,
    size_t size)
{
    uint64_t  turns;

    turns = aibrix_get(&row->turns);

    return !(turns & 1)
           && aibrix_copy_keyed(dst, &row->turns, src, size, turns);
}


static void
aibrix_sum_words(void *dst, const void *src, size_t size)
{
    size_t           i;
    uint64_t        *d;
    const uint64_t  *s;

    d = dst;
    s = src;

    for (i = 0; i < size / sizeof(uint64_t); i++) {
        d[i] += s[i];
    }
}


/*
 * A key may be found twice in its chain: claimed at the end by one process
 * while another claimed a slot that was freed before it.  Its value is the
 * sum, told for the first place only, which must be the slot first (unless
 * that is AIBRIX_NO_SLOT).  Returns 0 when it is not, or when nothing was
 * counted.
 */

static int
aibrix_gather(const uint64_t *keys, uint32_t stride, uint32_t bits,
    uint64_t key, uint32_t first, const void *values, size_t value_stride,
    uint64_t *sum, size_t size)
{
    uint32_t     i, at, seen;
    uint64_t     k, part[sizeof(aibrix_cell_t) / sizeof(uint64_t)];
    const char  *v;

    seen = 0;
    at = aibrix_home(key, bits);
    memset(sum, 0, size);

    for (i = 0; i < AIBRIX_PROBES; i++) {
        k = __atomic_load_n(&keys[(size_t) at * stride], __ATOMIC_ACQUIRE);

        if (k == AIBRIX_KEY_EMPTY) {
            break;
        }

        if (k == key) {
            if (!seen && first != AIBRIX_NO_SLOT && at != first) {
                return 0;
            }

            v = (const char *) values + at * value_stride;

            if (aibrix_copy_keyed(part, &keys[(size_t) at * stride], v, size,
                                  key))
            {
                aibrix_sum_words(sum, part, size);
            }

            seen = 1;
        }

        at = (at + 1) & ((1U << bits) - 1);
    }

    return aibrix_any_word(sum, size);
}


static int
aibrix_series_sparse(const aibrix_stats_t *st, uint32_t at,
    aibrix_series_t *out)
{
    uint32_t        row;
    uint64_t        key, *keys;
    aibrix_cell_t   c;

    keys = aibrix_series_keys(st);
    key = __atomic_load_n(&keys[at], __ATOMIC_ACQUIRE);

    if (!aibrix_key_current(st, key)
        || !aibrix_gather(keys, 1, st->series_bits, key, at,
                          aibrix_series_cells(st), sizeof(c), (uint64_t *) &c,
                          sizeof(c)))
    {
        return 0;
    }

    row = aibrix_key_row(key);
    aibrix_series_fill(out, aibrix_row_peer(st, row), aibrix_key_model(key),
                       &c);

    return 1;
}


static int
aibrix_series_dense(const aibrix_stats_t *st, uint32_t row,
    aibrix_series_t *out)
{
    aibrix_cell_t  c;
    aibrix_row_t  *r;

    r = aibrix_row(st, row);

    if (!aibrix_copy_row(r, &c, &r->c.cell, sizeof(c))
        || !aibrix_any_word(&c, sizeof(c)))
    {
        return 0;
    }

    aibrix_series_fill(out, aibrix_row_peer(st, row), AIBRIX_MODEL_OTHER, &c);

    return 1;
}


int
aibrix_stats_series(const aibrix_stats_t *st, uint32_t *at,
    aibrix_series_t *out)
{
    int       found;
    uint32_t  i, rows, end;

    rows = st->max_peers + 1;
    end = rows + (1U << st->series_bits);

    while (*at < end) {
        i = (*at)++;

        found = (i < rows) ? aibrix_series_dense(st, i, out)
                           : aibrix_series_sparse(st, i - rows, out);

        if (found) {
            return 1;
        }
    }

    return 0;
}


static int
aibrix_requests_dense(const aibrix_stats_t *st, uint32_t i,
    aibrix_requests_t *out)
{
    uint32_t       row, class;
    aibrix_row_t  *r;

    row = i / AIBRIX_CLASSES;
    class = i % AIBRIX_CLASSES;
    r = aibrix_row(st, row);

    if (!aibrix_copy_row(r, &out->count, &r->c.requests[class],
                         sizeof(uint64_t)))
    {
        return 0;
    }

    out->peer = aibrix_row_peer(st, row);
    out->model = AIBRIX_MODEL_OTHER;
    out->strategy = AIBRIX_STRATEGY_OTHER;
    out->status = class;

    return out->count != 0;
}


static int
aibrix_requests_sparse(const aibrix_stats_t *st, uint32_t at,
    aibrix_requests_t *out)
{
    uint64_t                key;
    aibrix_request_cell_t  *cells;

    cells = aibrix_request_cells(st);
    key = __atomic_load_n(&cells[at].key, __ATOMIC_ACQUIRE);

    if (!aibrix_key_current(st, key)
        || !aibrix_gather(&cells->key, 2, st->requests_bits, key, at,
                          &cells->count, sizeof(aibrix_request_cell_t),
                          &out->count, sizeof(uint64_t)))
    {
        return 0;
    }

    out->peer = aibrix_row_peer(st, aibrix_key_row(key));
    out->model = aibrix_key_model(key);
    out->strategy = (key >> 3) & 0x3f;
    out->status = key & 7;

    return 1;
}


int
aibrix_stats_requests(const aibrix_stats_t *st, uint32_t *at,
    aibrix_requests_t *out)
{
    int       found;
    uint32_t  i, dense, end;

    dense = (st->max_peers + 1) * AIBRIX_CLASSES;
    end = dense + (1U << st->requests_bits);

    while (*at < end) {
        i = (*at)++;

        found = (i < dense) ? aibrix_requests_dense(st, i, out)
                            : aibrix_requests_sparse(st, i - dense, out);

        if (found) {
            return 1;
        }
    }

    return 0;
}


int
aibrix_stats_model_read(const aibrix_stats_t *st, uint32_t model,
    aibrix_model_stats_t *out)
{
    aibrix_model_cell_t  c;

    if (model > AIBRIX_MODEL_OTHER
        || aibrix_stats_model_name(st, model).data == NULL)
    {
        return 0;
    }

    aibrix_copy_words(&c, &st->models[model], sizeof(c));

    memcpy(out->selections, c.selections, sizeof(c.selections));
    memcpy(out->percents, c.percents, sizeof(c.percents));
    memcpy(out->errors, c.errors, sizeof(c.errors));

    out->imbalances = c.imbalances;
    out->blocks = c.blocks;
    out->matched = c.matched;

    aibrix_hist_read(&out->latency, aibrix_latency_bounds, AIBRIX_BUCKETS - 1,
                     1000000000, c.latency, c.latency_sum);

    return 1;
}


/* Adds what the sparse table has of that row. */

static void
aibrix_sum_models(const aibrix_stats_t *st, uint32_t row, aibrix_cell_t *sum)
{
    uint32_t       model;
    uint64_t       key;
    aibrix_cell_t  c;

    for (model = 0; model < AIBRIX_MODELS; model++) {
        if (aibrix_get(&st->name_hash[model]) == 0) {
            continue;
        }

        key = aibrix_key(st, row, model, 0, 0);

        if (aibrix_gather(aibrix_series_keys(st), 1, st->series_bits, key,
                          AIBRIX_NO_SLOT, aibrix_series_cells(st), sizeof(c),
                          (uint64_t *) &c, sizeof(c)))
        {
            aibrix_sum_words(sum, &c, sizeof(c));
        }
    }
}


int
aibrix_stats_peer_read(const aibrix_stats_t *st, uint32_t peer,
    aibrix_peer_stats_t *out)
{
    uint32_t             row;
    uint64_t             turns;
    aibrix_row_t        *r;
    aibrix_row_counts_t  c;

    row = aibrix_row_number(st, peer);
    r = aibrix_row(st, row);
    turns = aibrix_get(&r->turns);

    if (!aibrix_copy_row(r, &c, &r->c, sizeof(c))) {
        return 0;
    }

    aibrix_sum_models(st, row, &c.cell);

    out->decisions = c.decisions;
    out->fails = c.fails;
    out->blocks = c.blocks;
    out->matched = c.matched;

    aibrix_series_fill(&out->all, peer, AIBRIX_MODEL_OTHER, &c.cell);

    return __atomic_load_n(&r->turns, __ATOMIC_ACQUIRE) == turns;
}


uint64_t
aibrix_stats_fallbacks(const aibrix_stats_t *st, uint32_t strategy,
    uint32_t reason)
{
    if (strategy >= AIBRIX_STRATEGIES || reason >= AIBRIX_FALLBACKS) {
        return 0;
    }

    return aibrix_get(&st->fallbacks[strategy][reason]);
}


static int
aibrix_recall(const aibrix_stats_t *st, uint64_t seq, aibrix_decision_t *d)
{
    uint32_t         row;
    aibrix_recent_t  r;

    aibrix_copy_words(&r, &st->recent[seq % AIBRIX_RECENT], sizeof(r));

    if (r.seq != seq || r.check != aibrix_recent_check(&r)) {
        return 0;
    }

    row = (uint32_t) (r.what >> 32);

    if (row > st->max_peers || aibrix_get(&aibrix_row(st, row)->turns)
                               != r.turns)
    {
        return 0;
    }

    d->model = (r.what >> 24) & 0x7f;
    d->peer = aibrix_row_peer(st, row);
    d->strategy = (r.what >> 16) & 0x3f;
    d->selection = (r.what >> 9) & 0x3f;
    d->percent = (r.what >> 2) & 0x7f;
    d->imbalanced = r.what & 1;
    d->blocks = (uint32_t) (r.blocks >> 32);
    d->matched = (uint32_t) r.blocks;
    d->ns = r.ns;
    d->at = r.at;

    return 1;
}


size_t
aibrix_stats_recent(const aibrix_stats_t *st, aibrix_decision_t *out,
    size_t max)
{
    size_t    n;
    uint64_t  head, seq;

    n = 0;
    head = aibrix_get(&st->recent_head);

    for (seq = head; seq != 0 && n < max; seq--) {
        if (head - seq >= AIBRIX_RECENT) {
            break;
        }

        n += (size_t) aibrix_recall(st, seq, &out[n]);
    }

    return n;
}


/* Histograms and labels */

void
aibrix_hist_merge(aibrix_hist_t *h, const aibrix_hist_t *from)
{
    uint32_t  i;

    for (i = 0; i <= from->n; i++) {
        h->bucket[i] += from->bucket[i];
    }

    h->count += from->count;
    h->sum += from->sum;
}


double
aibrix_hist_quantile(const aibrix_hist_t *h, double q)
{
    double    rank, low, high;
    uint32_t  i;
    uint64_t  below;

    below = 0;
    q = (q > 0) ? ((q < 1) ? q : 1) : 0;
    rank = q * (double) h->count;

    for (i = 0; i < h->n; i++) {
        if (h->bucket[i] == 0 || (double) (below + h->bucket[i]) < rank) {
            below += h->bucket[i];
            continue;
        }

        low = (i > 0) ? (double) h->bounds[i - 1] : 0;
        high = (double) h->bounds[i];

        return low + (high - low) * (rank - (double) below)
                     / (double) h->bucket[i];
    }

    return (h->count != 0) ? (double) h->bounds[h->n - 1] : 0;
}


const char *
aibrix_outcome_label(uint32_t outcome)
{
    static const char *const  labels[AIBRIX_OUTCOMES] = {
        "finished", "client_gone", "replica_gone", "error_status"
    };

    return (outcome < AIBRIX_OUTCOMES) ? labels[outcome] : "other";
}


const char *
aibrix_percent_label(uint32_t percent)
{
    static const char *const  labels[AIBRIX_PERCENTS] = {
        "0", "1-25", "26-50", "51-75", "76-100"
    };

    return (percent < AIBRIX_PERCENTS) ? labels[percent] : "other";
}


const char *
aibrix_error_label(uint32_t error)
{
    static const char *const  labels[AIBRIX_ERRORS] = {
        "tokenize_failed", "load_imbalance_no_target", "no_target_pod",
        "post_route_update_failed"
    };

    return (error < AIBRIX_ERRORS) ? labels[error] : "other";
}


const char *
aibrix_fallback_label(uint32_t fallback)
{
    static const char *const  labels[AIBRIX_FALLBACKS] = {
        "no_body", "not_json", "no_prompt", "no_memory", "no_peer"
    };

    return (fallback < AIBRIX_FALLBACKS) ? labels[fallback] : "other";
}
