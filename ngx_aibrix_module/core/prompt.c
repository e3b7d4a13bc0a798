
#define XXH_INLINE_ALL

#include "prompt.h"
#include "json.h"

#include <string.h>
#include <xxhash.h>


#define AIBRIX_PROMPT_CHUNK      4096   /* the first one, header included */
#define AIBRIX_PROMPT_KEY_MAX    16     /* longer than any key of interest */

/* A name as tenant() encodes it: kind, length, bytes, hash of the rest. */
#define AIBRIX_PROMPT_NAME_SIZE  (1 + 8 + AIBRIX_PROMPT_MODEL_MAX + 8)

#define AIBRIX_FNV32_PRIME       16777619U

#define bit(n)                   (1U << (n))


/* Sections in the order in which engines put them into the prompt. */
typedef enum {
    SECTION_TOOLS = 0,
    SECTION_FUNCTIONS,
    SECTION_SYSTEM,
    SECTION_INSTRUCTIONS,
    SECTION_MESSAGES,
    SECTION_PROMPT,
    SECTION_INPUT,
    SECTION_QUERY,
    SECTION_DOCUMENTS,
    SECTION_COUNT
} aibrix_prompt_section_e;


/* What names a KV cache, in the order in which tenant() hashes it. */
typedef enum {
    NAME_MODEL = 0,
    NAME_SALT,
    NAME_LORA,
    NAME_COUNT
} aibrix_prompt_name_e;


typedef enum {
    NAME_ABSENT = 0,
    NAME_STRING,
    NAME_RAW
} aibrix_prompt_name_kind_e;


typedef enum {
    KIND_OTHER = 0,
    KIND_STREAM,
    KIND_MODEL,                 /* string only */
    KIND_NAME,                  /* string, or anything raw */
    KIND_RAW,                   /* anything raw; [] counts as absent */
    KIND_TEXT,                  /* string, or anything raw */
    KIND_LIST                   /* string, or array of what takes says */
} aibrix_prompt_kind_e;


/* What a list may hold besides strings; messages hold no strings. */
typedef enum {
    TAKES_STRINGS = bit(0),
    TAKES_CONTENT = bit(1),     /* objects, for their content */
    TAKES_OBJECTS = bit(2),     /* objects, raw */
    TAKES_IDS = bit(3)          /* token ids, and arrays of them */
} aibrix_prompt_takes_e;


typedef struct {
    const char  *name;
    uint8_t      len;
    uint8_t      kind;          /* aibrix_prompt_kind_e */
    uint8_t      slot;          /* a section or a name */
    uint8_t      takes;         /* aibrix_prompt_takes_e */
} aibrix_prompt_field_t;


/* Where in the body the reader stands. */
typedef enum {
    LEVEL_NONE = 0,
    LEVEL_TOP,                  /* in the object that is the body */
    LEVEL_LIST,                 /* in an array of KIND_LIST */
    LEVEL_ITEM,                 /* in an object of that array */
    LEVEL_IDS                   /* in an array of that array */
} aibrix_prompt_level_e;


/* Where text goes. */
typedef enum {
    TARGET_NONE = 0,
    TARGET_KEY,
    TARGET_NAME,
    TARGET_SECTION,
    TARGET_ID,
    TARGET_STREAM
} aibrix_prompt_target_e;


typedef enum {
    HOLLOW_NO = 0,
    HOLLOW_BRACKET,             /* only the bracket and blanks so far */
    HOLLOW_NOTHING              /* an array, of which nothing was seen */
} aibrix_prompt_hollow_e;


typedef struct aibrix_prompt_chunk_s  aibrix_prompt_chunk_t;

struct aibrix_prompt_chunk_s {
    aibrix_prompt_chunk_t  *next;
    size_t                  size;
    size_t                  used;
    char                    data[];
};


/* Text goes to the first chunk from last on that has room. */
typedef struct {
    aibrix_prompt_chunk_t  *first;
    aibrix_prompt_chunk_t  *last;
    size_t                  len;
    uint8_t                 present;    /* the key is there, not null */
    uint8_t                 items;      /* it had an item that counts */
    uint8_t                 hollow;     /* aibrix_prompt_hollow_e */
} aibrix_prompt_section_t;


typedef struct {
    size_t         len;                 /* of all, not only of what is kept */
    XXH64_state_t  rest;                /* over the bytes not kept */
    uint8_t        kind;                /* aibrix_prompt_name_kind_e */
    char           data[AIBRIX_PROMPT_MODEL_MAX];
} aibrix_prompt_name_t;


struct aibrix_prompt_s {
    aibrix_alloc_t                alloc;
    size_t                        max;
    unsigned                      sections;     /* bits of those in use */
    aibrix_api_e                  api;

    const aibrix_prompt_field_t  *field;
    aibrix_prompt_section_t      *section;      /* being read */
    aibrix_prompt_name_t         *name;         /* being read */
    size_t                        mark;         /* where the content began */
    uint32_t                      id;
    uint8_t                       id_odd;
    uint8_t                       level;
    uint8_t                       target;
    uint8_t                       name_kind;
    uint8_t                       content;      /* the key was content */
    uint8_t                       stream;
    uint8_t                       failed;
    uint8_t                       ok;
    size_t                        key_len;
    char                          key[AIBRIX_PROMPT_KEY_MAX];

    aibrix_prompt_section_t       section_of[SECTION_COUNT];
    aibrix_prompt_name_t          name_of[NAME_COUNT];
    aibrix_json_t                 json;
};


static aibrix_json_take_e aibrix_prompt_begin(void *data,
    aibrix_json_type_e type);
static void aibrix_prompt_piece(void *data, const char *p, size_t len);
static void aibrix_prompt_end(void *data, aibrix_json_type_e type);
static void *aibrix_prompt_grow(void *data, void *old, size_t old_size,
    size_t size);

static const aibrix_prompt_field_t *aibrix_prompt_field(
    const aibrix_prompt_t *p);
static aibrix_json_take_e aibrix_prompt_value(aibrix_prompt_t *p,
    aibrix_json_type_e type);
static aibrix_json_take_e aibrix_prompt_name_value(aibrix_prompt_t *p,
    aibrix_json_type_e type);
static aibrix_json_take_e aibrix_prompt_section_value(aibrix_prompt_t *p,
    aibrix_json_type_e type);
static aibrix_json_take_e aibrix_prompt_list_value(aibrix_prompt_t *p,
    aibrix_json_type_e type);
static aibrix_json_take_e aibrix_prompt_item(aibrix_prompt_t *p,
    aibrix_json_type_e type);
static aibrix_json_take_e aibrix_prompt_content(aibrix_prompt_t *p,
    aibrix_json_type_e type);
static aibrix_json_take_e aibrix_prompt_id(aibrix_prompt_t *p);
static aibrix_json_take_e aibrix_prompt_text_value(aibrix_prompt_t *p,
    aibrix_json_type_e type);

static void aibrix_prompt_leave(aibrix_prompt_t *p);
static void aibrix_prompt_key_piece(aibrix_prompt_t *p, const char *data,
    size_t len);
static void aibrix_prompt_id_piece(aibrix_prompt_t *p, const char *data,
    size_t len);
static void aibrix_prompt_id_end(aibrix_prompt_t *p);
static void aibrix_prompt_name_piece(aibrix_prompt_name_t *name,
    const char *data, size_t len);

static void aibrix_prompt_join(aibrix_prompt_t *p);
static void aibrix_prompt_solid(aibrix_prompt_section_t *section,
    const char *data, size_t len);
static void aibrix_prompt_append(aibrix_prompt_t *p, const char *data,
    size_t len);
static aibrix_prompt_chunk_t *aibrix_prompt_chunk(aibrix_prompt_t *p,
    aibrix_prompt_section_t *section);
static void aibrix_prompt_truncate(aibrix_prompt_section_t *section,
    size_t len);
static unsigned aibrix_prompt_decide(const aibrix_prompt_t *p);
static size_t aibrix_prompt_walk(const aibrix_prompt_t *p,
    aibrix_span_t *spans, size_t max, size_t *len);
static int aibrix_prompt_apart(const aibrix_prompt_t *p, unsigned slot,
    size_t before);
static size_t aibrix_prompt_kept(const aibrix_prompt_name_t *name);
static size_t aibrix_prompt_encode(unsigned char *out,
    const aibrix_prompt_name_t *name);
static unsigned char *aibrix_prompt_encode_number(unsigned char *out,
    uint64_t n);


static const aibrix_json_reader_t  aibrix_prompt_reader = {
    aibrix_prompt_begin,
    aibrix_prompt_piece,
    aibrix_prompt_end,
    aibrix_prompt_grow
};


#define field(name, kind, slot, takes)  { name, sizeof(name) - 1, kind, slot, \
                                          takes }

static const aibrix_prompt_field_t  aibrix_prompt_fields[] = {

    field("stream", KIND_STREAM, 0, 0),

    field("model", KIND_MODEL, NAME_MODEL, 0),
    field("cache_salt", KIND_NAME, NAME_SALT, 0),
    field("lora_path", KIND_NAME, NAME_LORA, 0),
    field("lora_name", KIND_NAME, NAME_LORA, 0),
    field("adapter_id", KIND_NAME, NAME_LORA, 0),

    field("tools", KIND_RAW, SECTION_TOOLS, 0),
    field("functions", KIND_RAW, SECTION_FUNCTIONS, 0),
    field("system", KIND_TEXT, SECTION_SYSTEM, 0),
    field("instructions", KIND_TEXT, SECTION_INSTRUCTIONS, 0),
    field("query", KIND_TEXT, SECTION_QUERY, 0),

    field("messages", KIND_LIST, SECTION_MESSAGES, TAKES_CONTENT),
    field("prompt", KIND_LIST, SECTION_PROMPT, TAKES_STRINGS|TAKES_IDS),
    field("input", KIND_LIST, SECTION_INPUT,
          TAKES_STRINGS|TAKES_CONTENT|TAKES_IDS),
    field("documents", KIND_LIST, SECTION_DOCUMENTS,
          TAKES_STRINGS|TAKES_OBJECTS)
};

static const aibrix_prompt_field_t  aibrix_prompt_other
    = field("", KIND_OTHER, 0, 0);

#undef field


static const unsigned  aibrix_prompt_sections[] = {

    [AIBRIX_API_UNKNOWN] = bit(SECTION_COUNT) - 1,

    [AIBRIX_API_COMPLETIONS] = bit(SECTION_PROMPT),

    [AIBRIX_API_CHAT] = bit(SECTION_TOOLS)|bit(SECTION_FUNCTIONS)
                        |bit(SECTION_SYSTEM)|bit(SECTION_MESSAGES),

    [AIBRIX_API_RESPONSES] = bit(SECTION_TOOLS)|bit(SECTION_FUNCTIONS)
                             |bit(SECTION_INSTRUCTIONS)|bit(SECTION_INPUT),

    [AIBRIX_API_EMBEDDINGS] = bit(SECTION_INPUT),

    [AIBRIX_API_RERANK] = bit(SECTION_QUERY)|bit(SECTION_DOCUMENTS),

    [AIBRIX_API_CLASSIFY] = bit(SECTION_INPUT)
};


aibrix_api_e
aibrix_prompt_api(const char *path, size_t len)
{
    size_t       i, n;
    const char  *query;

    static const struct {
        const char    *tail;
        aibrix_api_e   api;
    } tails[] = {
        { "/chat/completions", AIBRIX_API_CHAT },
        { "/messages", AIBRIX_API_CHAT },
        { "/completions", AIBRIX_API_COMPLETIONS },
        { "/responses", AIBRIX_API_RESPONSES },
        { "/embeddings", AIBRIX_API_EMBEDDINGS },
        { "/rerank", AIBRIX_API_RERANK },
        { "/classify", AIBRIX_API_CLASSIFY }
    };

    query = len ? memchr(path, '?', len) : NULL;

    if (query != NULL) {
        len = (size_t) (query - path);
    }

    if (len && path[len - 1] == '/') {
        len--;
    }

    for (i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        n = strlen(tails[i].tail);

        if (len >= n && memcmp(path + len - n, tails[i].tail, n) == 0) {
            return tails[i].api;
        }
    }

    return AIBRIX_API_UNKNOWN;
}


aibrix_prompt_t *
aibrix_prompt_create(aibrix_api_e api, size_t max_prompt,
    const aibrix_alloc_t *alloc)
{
    aibrix_prompt_t  *p;

    p = alloc->alloc(alloc->data, sizeof(aibrix_prompt_t));
    if (p == NULL) {
        return NULL;
    }

    memset(p, 0, offsetof(aibrix_prompt_t, name_of));

    p->alloc = *alloc;
    p->max = max_prompt;
    p->api = api;
    p->sections = aibrix_prompt_sections[api];

    p->name_of[NAME_MODEL].kind = NAME_ABSENT;
    p->name_of[NAME_SALT].kind = NAME_ABSENT;
    p->name_of[NAME_LORA].kind = NAME_ABSENT;

    aibrix_json_init(&p->json, &aibrix_prompt_reader, p);

    return p;
}


void
aibrix_prompt_destroy(aibrix_prompt_t *p)
{
    void                   *nest;
    unsigned                i;
    aibrix_alloc_t          alloc;
    aibrix_prompt_chunk_t  *chunk, *next;

    alloc = p->alloc;

    for (i = 0; i < SECTION_COUNT; i++) {

        for (chunk = p->section_of[i].first; chunk != NULL; chunk = next) {
            next = chunk->next;
            alloc.free(alloc.data, chunk);
        }
    }

    nest = aibrix_json_memory(&p->json);

    if (nest != NULL) {
        alloc.free(alloc.data, nest);
    }

    alloc.free(alloc.data, p);
}


int
aibrix_prompt_feed(aibrix_prompt_t *p, const char *data, size_t len)
{
    return aibrix_json_feed(&p->json, data, len) && !p->failed;
}


int
aibrix_prompt_finish(aibrix_prompt_t *p, int complete)
{
    p->ok = !p->failed
            && (complete ? aibrix_json_done(&p->json)
                         : aibrix_json_started(&p->json));

    if (p->ok && p->api == AIBRIX_API_UNKNOWN) {
        p->sections = aibrix_prompt_decide(p);
    }

    return p->ok;
}


aibrix_span_t
aibrix_prompt_model(const aibrix_prompt_t *p)
{
    aibrix_span_t                span;
    const aibrix_prompt_name_t  *name;

    name = &p->name_of[NAME_MODEL];

    span.data = name->data;
    span.len = 0;

    if (p->ok && name->kind != NAME_ABSENT) {
        span.len = aibrix_prompt_kept(name);
    }

    return span;
}


int
aibrix_prompt_stream(const aibrix_prompt_t *p)
{
    return p->ok && p->stream;
}


/*
 * Each of model, cache_salt and LoRA name is hashed as one byte (0 absent,
 * 1 string, 2 other), its length as 8 bytes little-endian, its first
 * AIBRIX_PROMPT_MODEL_MAX bytes and, when it is longer, the XXH64 of the rest.
 */
uint64_t
aibrix_prompt_tenant(const aibrix_prompt_t *p, uint64_t seed)
{
    size_t          len;
    uint64_t        hash;
    unsigned        i, any;
    unsigned char   data[NAME_COUNT * AIBRIX_PROMPT_NAME_SIZE];

    if (!p->ok) {
        return 0;
    }

    any = 0;
    len = 0;

    for (i = 0; i < NAME_COUNT; i++) {
        any |= p->name_of[i].kind != NAME_ABSENT;
        len += aibrix_prompt_encode(data + len, &p->name_of[i]);
    }

    if (!any) {
        return 0;
    }

    hash = XXH64(data, len, seed);

    return hash ? hash : 1;
}


size_t
aibrix_prompt_text(const aibrix_prompt_t *p, aibrix_span_t *spans, size_t max)
{
    size_t  len;

    return aibrix_prompt_walk(p, spans, max, &len);
}


size_t
aibrix_prompt_text_len(const aibrix_prompt_t *p)
{
    size_t  len;

    aibrix_prompt_walk(p, NULL, 0, &len);

    return len;
}


static aibrix_json_take_e
aibrix_prompt_begin(void *data, aibrix_json_type_e type)
{
    aibrix_prompt_t  *p = data;

    if (type == AIBRIX_JSON_KEY) {
        p->key_len = 0;
        p->target = TARGET_KEY;
        return AIBRIX_JSON_READ;
    }

    switch (p->level) {

    case LEVEL_TOP:
        return aibrix_prompt_value(p, type);

    case LEVEL_LIST:
        return aibrix_prompt_item(p, type);

    case LEVEL_ITEM:
        return aibrix_prompt_content(p, type);

    case LEVEL_IDS:
        return type == AIBRIX_JSON_NUMBER ? aibrix_prompt_id(p)
                                          : AIBRIX_JSON_SKIP;

    default:
        p->level = LEVEL_TOP;
        return AIBRIX_JSON_READ;
    }
}


static void
aibrix_prompt_piece(void *data, const char *text, size_t len)
{
    aibrix_prompt_t  *p = data;

    switch (p->target) {

    case TARGET_SECTION:
        aibrix_prompt_solid(p->section, text, len);
        aibrix_prompt_append(p, text, len);
        break;

    case TARGET_KEY:
        aibrix_prompt_key_piece(p, text, len);
        break;

    case TARGET_NAME:
        aibrix_prompt_name_piece(p->name, text, len);
        break;

    case TARGET_ID:
        aibrix_prompt_id_piece(p, text, len);
        break;

    default:
        break;
    }
}


static void
aibrix_prompt_end(void *data, aibrix_json_type_e type)
{
    aibrix_prompt_t  *p = data;

    switch (p->target) {

    case TARGET_NONE:
        aibrix_prompt_leave(p);
        return;

    case TARGET_KEY:
        if (p->level == LEVEL_TOP) {
            p->field = aibrix_prompt_field(p);

        } else {
            p->content = p->key_len == sizeof("content") - 1
                         && memcmp(p->key, "content", p->key_len) == 0;
        }

        break;

    case TARGET_NAME:
        p->name->kind = p->name_kind;
        break;

    case TARGET_ID:
        aibrix_prompt_id_end(p);
        break;

    case TARGET_STREAM:
        p->stream = type == AIBRIX_JSON_TRUE;
        break;

    default:
        break;
    }

    p->target = TARGET_NONE;
}


static void *
aibrix_prompt_grow(void *data, void *old, size_t old_size, size_t size)
{
    void             *new;
    aibrix_prompt_t  *p = data;

    new = p->alloc.alloc(p->alloc.data, size);

    if (new == NULL) {
        p->failed = 1;
        return NULL;
    }

    if (old != NULL) {
        memcpy(new, old, old_size);
        p->alloc.free(p->alloc.data, old);
    }

    return new;
}


static const aibrix_prompt_field_t *
aibrix_prompt_field(const aibrix_prompt_t *p)
{
    size_t                        i, n;
    const aibrix_prompt_field_t  *field;

    n = sizeof(aibrix_prompt_fields) / sizeof(aibrix_prompt_fields[0]);

    for (i = 0; i < n; i++) {
        field = &aibrix_prompt_fields[i];

        if (p->key_len == field->len
            && memcmp(p->key, field->name, field->len) == 0)
        {
            return field;
        }
    }

    return &aibrix_prompt_other;
}


/* The value of a key of the body: the last of several with that key wins. */
static aibrix_json_take_e
aibrix_prompt_value(aibrix_prompt_t *p, aibrix_json_type_e type)
{
    switch (p->field->kind) {

    case KIND_STREAM:
        p->stream = 0;

        if (type != AIBRIX_JSON_TRUE) {
            return AIBRIX_JSON_SKIP;
        }

        p->target = TARGET_STREAM;
        return AIBRIX_JSON_READ;

    case KIND_MODEL:
    case KIND_NAME:
        return aibrix_prompt_name_value(p, type);

    case KIND_RAW:
    case KIND_TEXT:
    case KIND_LIST:
        return aibrix_prompt_section_value(p, type);

    default:
        return AIBRIX_JSON_SKIP;
    }
}


static aibrix_json_take_e
aibrix_prompt_name_value(aibrix_prompt_t *p, aibrix_json_type_e type)
{
    p->name = &p->name_of[p->field->slot];
    p->name->kind = NAME_ABSENT;
    p->name->len = 0;

    if (type == AIBRIX_JSON_STRING) {
        p->name_kind = NAME_STRING;
        p->target = TARGET_NAME;
        return AIBRIX_JSON_READ;
    }

    if (type == AIBRIX_JSON_NULL || p->field->kind == KIND_MODEL) {
        return AIBRIX_JSON_SKIP;
    }

    p->name_kind = NAME_RAW;
    p->target = TARGET_NAME;

    return AIBRIX_JSON_RAW;
}


static aibrix_json_take_e
aibrix_prompt_section_value(aibrix_prompt_t *p, aibrix_json_type_e type)
{
    if (!(p->sections & bit(p->field->slot))) {
        return AIBRIX_JSON_SKIP;
    }

    p->section = &p->section_of[p->field->slot];
    aibrix_prompt_truncate(p->section, 0);

    p->section->present = type != AIBRIX_JSON_NULL;
    p->section->items = 0;
    p->section->hollow = HOLLOW_NO;

    if (type == AIBRIX_JSON_NULL) {
        return AIBRIX_JSON_SKIP;
    }

    switch (p->field->kind) {

    case KIND_RAW:
        p->target = TARGET_SECTION;

        if (type == AIBRIX_JSON_ARRAY) {
            p->section->hollow = HOLLOW_NOTHING;
        }

        return AIBRIX_JSON_RAW;

    case KIND_TEXT:
        return aibrix_prompt_text_value(p, type);

    default:
        return aibrix_prompt_list_value(p, type);
    }
}


static aibrix_json_take_e
aibrix_prompt_list_value(aibrix_prompt_t *p, aibrix_json_type_e type)
{
    if (type == AIBRIX_JSON_ARRAY) {
        p->level = LEVEL_LIST;
        return AIBRIX_JSON_READ;
    }

    if ((type == AIBRIX_JSON_STRING && (p->field->takes & TAKES_STRINGS))
        || (type == AIBRIX_JSON_OBJECT && (p->field->takes & TAKES_OBJECTS)))
    {
        p->section->items = 1;
        return aibrix_prompt_text_value(p, type);
    }

    return AIBRIX_JSON_SKIP;
}


static aibrix_json_take_e
aibrix_prompt_item(aibrix_prompt_t *p, aibrix_json_type_e type)
{
    unsigned  takes;

    if (p->section->len == p->max) {
        return AIBRIX_JSON_SKIP;
    }

    takes = p->field->takes;

    switch (type) {

    case AIBRIX_JSON_STRING:
        if (takes & TAKES_STRINGS) {
            aibrix_prompt_join(p);
            return aibrix_prompt_text_value(p, type);
        }

        return AIBRIX_JSON_SKIP;

    case AIBRIX_JSON_OBJECT:
        if (takes & TAKES_OBJECTS) {
            aibrix_prompt_join(p);
            return aibrix_prompt_text_value(p, type);
        }

        if (takes & TAKES_CONTENT) {
            aibrix_prompt_join(p);
            p->mark = p->section->len;
            p->level = LEVEL_ITEM;
            return AIBRIX_JSON_READ;
        }

        return AIBRIX_JSON_SKIP;

    case AIBRIX_JSON_NUMBER:
        return takes & TAKES_IDS ? aibrix_prompt_id(p) : AIBRIX_JSON_SKIP;

    case AIBRIX_JSON_ARRAY:
        if (takes & TAKES_IDS) {
            p->level = LEVEL_IDS;
            return AIBRIX_JSON_READ;
        }

        return AIBRIX_JSON_SKIP;

    default:
        return AIBRIX_JSON_SKIP;
    }
}


/* A value in a message: a second content takes back the first. */
static aibrix_json_take_e
aibrix_prompt_content(aibrix_prompt_t *p, aibrix_json_type_e type)
{
    if (!p->content) {
        return AIBRIX_JSON_SKIP;
    }

    aibrix_prompt_truncate(p->section, p->mark);

    return aibrix_prompt_text_value(p, type);
}


static aibrix_json_take_e
aibrix_prompt_id(aibrix_prompt_t *p)
{
    p->target = TARGET_ID;
    p->id = 0;
    p->id_odd = 0;

    return AIBRIX_JSON_READ;
}


static aibrix_json_take_e
aibrix_prompt_text_value(aibrix_prompt_t *p, aibrix_json_type_e type)
{
    if (p->section->len == p->max) {
        return AIBRIX_JSON_SKIP;
    }

    p->target = TARGET_SECTION;

    return type == AIBRIX_JSON_STRING ? AIBRIX_JSON_READ : AIBRIX_JSON_RAW;
}


/* A container whose members were told of ends. */
static void
aibrix_prompt_leave(aibrix_prompt_t *p)
{
    switch (p->level) {

    case LEVEL_ITEM:
    case LEVEL_IDS:
        p->level = LEVEL_LIST;
        break;

    case LEVEL_LIST:
        p->level = LEVEL_TOP;
        break;

    default:
        p->level = LEVEL_NONE;
    }
}


static void
aibrix_prompt_key_piece(aibrix_prompt_t *p, const char *data, size_t len)
{
    if (len > sizeof(p->key) - p->key_len) {
        p->key_len = sizeof(p->key);
        return;
    }

    memcpy(p->key + p->key_len, data, len);
    p->key_len += len;
}


static void
aibrix_prompt_id_piece(aibrix_prompt_t *p, const char *data, size_t len)
{
    size_t    i;
    uint8_t   c;
    uint64_t  id;

    for (i = 0; i < len; i++) {
        c = (uint8_t) data[i];

        if (!p->id_odd && c >= '0' && c <= '9') {
            id = (uint64_t) p->id * 10 + (c - '0');

            if (id <= UINT32_MAX) {
                p->id = (uint32_t) id;
                continue;
            }
        }

        /* no token id: its characters are hashed, by FNV-1a */

        p->id_odd = 1;
        p->id = (p->id ^ c) * AIBRIX_FNV32_PRIME;
    }
}


static void
aibrix_prompt_id_end(aibrix_prompt_t *p)
{
    char  bytes[4];

    bytes[0] = (char) (p->id >> 24);
    bytes[1] = (char) (p->id >> 16);
    bytes[2] = (char) (p->id >> 8);
    bytes[3] = (char) p->id;

    aibrix_prompt_append(p, bytes, sizeof(bytes));
}


static void
aibrix_prompt_name_piece(aibrix_prompt_name_t *name, const char *data,
    size_t len)
{
    size_t  n;

    n = 0;

    if (name->len < sizeof(name->data)) {
        n = sizeof(name->data) - name->len;
        n = len < n ? len : n;

        memcpy(name->data + name->len, data, n);
        name->len += n;
    }

    if (n == len) {
        return;
    }

    if (name->len == sizeof(name->data)) {
        XXH64_reset(&name->rest, 0);
    }

    XXH64_update(&name->rest, data + n, len - n);
    name->len += len - n;
}


static void
aibrix_prompt_join(aibrix_prompt_t *p)
{
    if (p->section->items) {
        aibrix_prompt_append(p, " ", 1);
    }

    p->section->items = 1;
}


/* Looks for anything in an array that is taken raw. */
static void
aibrix_prompt_solid(aibrix_prompt_section_t *section, const char *data,
    size_t len)
{
    size_t  i;

    for (i = 0; i < len && section->hollow != HOLLOW_NO; i++) {

        if (section->hollow == HOLLOW_NOTHING) {
            section->hollow = HOLLOW_BRACKET;

        } else if (strchr(" \t\r\n]", data[i]) == NULL) {
            section->hollow = HOLLOW_NO;
        }
    }
}


static void
aibrix_prompt_append(aibrix_prompt_t *p, const char *data, size_t len)
{
    size_t                    n;
    aibrix_prompt_chunk_t    *chunk;
    aibrix_prompt_section_t  *section;

    section = p->section;
    n = p->max - section->len;
    len = len < n ? len : n;

    while (len) {
        chunk = section->last;

        if (chunk == NULL || chunk->used == chunk->size) {
            chunk = aibrix_prompt_chunk(p, section);

            if (chunk == NULL) {
                p->failed = 1;
                return;
            }
        }

        n = chunk->size - chunk->used;
        n = len < n ? len : n;

        memcpy(chunk->data + chunk->used, data, n);

        chunk->used += n;
        section->len += n;
        data += n;
        len -= n;
    }
}


/* Goes on to the next chunk, which is four times as large as the last. */
static aibrix_prompt_chunk_t *
aibrix_prompt_chunk(aibrix_prompt_t *p, aibrix_prompt_section_t *section)
{
    size_t                  size, left;
    aibrix_prompt_chunk_t  *chunk;

    if (section->last != NULL && section->last->next != NULL) {
        section->last = section->last->next;
        return section->last;
    }

    size = AIBRIX_PROMPT_CHUNK - sizeof(aibrix_prompt_chunk_t);

    if (section->last != NULL) {
        size = (section->last->size + sizeof(aibrix_prompt_chunk_t)) * 4
               - sizeof(aibrix_prompt_chunk_t);
    }

    left = p->max - section->len;
    size = size < left ? size : left;

    chunk = p->alloc.alloc(p->alloc.data,
                           sizeof(aibrix_prompt_chunk_t) + size);
    if (chunk == NULL) {
        return NULL;
    }

    chunk->next = NULL;
    chunk->size = size;
    chunk->used = 0;

    if (section->last == NULL) {
        section->first = chunk;

    } else {
        section->last->next = chunk;
    }

    section->last = chunk;

    return chunk;
}


static void
aibrix_prompt_truncate(aibrix_prompt_section_t *section, size_t len)
{
    aibrix_prompt_chunk_t  *chunk;

    section->len = len;
    section->last = section->first;

    for (chunk = section->first; chunk != NULL; chunk = chunk->next) {
        chunk->used = len < chunk->size ? len : chunk->size;
        len -= chunk->used;
    }
}


static unsigned
aibrix_prompt_decide(const aibrix_prompt_t *p)
{
    if (p->section_of[SECTION_MESSAGES].present) {
        return aibrix_prompt_sections[AIBRIX_API_CHAT];
    }

    if (p->section_of[SECTION_PROMPT].present) {
        return aibrix_prompt_sections[AIBRIX_API_COMPLETIONS];
    }

    if (p->section_of[SECTION_INPUT].present) {
        return aibrix_prompt_sections[AIBRIX_API_RESPONSES];
    }

    return aibrix_prompt_sections[AIBRIX_API_RERANK];
}


static size_t
aibrix_prompt_walk(const aibrix_prompt_t *p, aibrix_span_t *spans, size_t max,
    size_t *len)
{
    size_t                          n, size;
    unsigned                        i;
    const aibrix_prompt_chunk_t    *chunk;
    const aibrix_prompt_section_t  *section;

    n = 0;
    *len = 0;

    if (!p->ok) {
        return 0;
    }

    for (i = 0; i < SECTION_COUNT; i++) {
        section = &p->section_of[i];

        if (!(p->sections & bit(i)) || section->hollow != HOLLOW_NO) {
            continue;
        }

        if (aibrix_prompt_apart(p, i, *len) && *len < p->max) {

            if (n < max) {
                spans[n].data = " ";
                spans[n].len = 1;
            }

            n++;
            (*len)++;
        }

        for (chunk = section->first; chunk != NULL; chunk = chunk->next) {
            size = p->max - *len;
            size = chunk->used < size ? chunk->used : size;

            if (size == 0) {
                break;
            }

            if (n < max) {
                spans[n].data = chunk->data;
                spans[n].len = size;
            }

            n++;
            *len += size;
        }
    }

    return n;
}


/* Whether a space goes before the section, before bytes being there so far. */
static int
aibrix_prompt_apart(const aibrix_prompt_t *p, unsigned slot, size_t before)
{
    if (slot == SECTION_DOCUMENTS) {
        return p->section_of[SECTION_QUERY].present
               && p->section_of[slot].items;
    }

    return before && p->section_of[slot].len;
}


static size_t
aibrix_prompt_kept(const aibrix_prompt_name_t *name)
{
    return name->len < sizeof(name->data) ? name->len : sizeof(name->data);
}


/* Writes at most AIBRIX_PROMPT_NAME_SIZE bytes, returns how many. */
static size_t
aibrix_prompt_encode(unsigned char *out, const aibrix_prompt_name_t *name)
{
    size_t          kept;
    unsigned char  *p;

    p = out;
    *p++ = name->kind;

    if (name->kind == NAME_ABSENT) {
        return aibrix_prompt_encode_number(p, 0) - out;
    }

    kept = aibrix_prompt_kept(name);

    p = aibrix_prompt_encode_number(p, name->len);
    memcpy(p, name->data, kept);
    p += kept;

    if (name->len > kept) {
        p = aibrix_prompt_encode_number(p, XXH64_digest(&name->rest));
    }

    return p - out;
}


static unsigned char *
aibrix_prompt_encode_number(unsigned char *out, uint64_t n)
{
    unsigned  i;

    for (i = 0; i < 8; i++) {
        *out++ = (unsigned char) (n >> 8 * i);
    }

    return out;
}
