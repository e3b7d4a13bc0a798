
#include <string.h>

#include "events.h"


/* Where a line is; below AIBRIX_LINE_COLON, how much of "data" was seen. */
enum {
    AIBRIX_LINE_START = 0,
    AIBRIX_LINE_FIELD = 4,      /* all of it */
    AIBRIX_LINE_COLON,          /* a space may follow */
    AIBRIX_LINE_DATA,
    AIBRIX_LINE_SKIP
};


/* Where a JSON text is. */
enum {
    AIBRIX_AT_START = 0,
    AIBRIX_AT_TOKEN,            /* between tokens, at a level that matters */
    AIBRIX_AT_KEY,
    AIBRIX_AT_TYPE,             /* in the string that is the type */
    AIBRIX_AT_TEXT,             /* before the first byte of such a string */
    AIBRIX_AT_STRING,
    AIBRIX_AT_NUMBER,
    AIBRIX_AT_SKIP,             /* in a value that does not matter */
    AIBRIX_AT_MARK,             /* in [DONE] */
    AIBRIX_AT_CLOSED,
    AIBRIX_AT_JUNK
};


/* What a value means, by the path to it. */
enum {
    AIBRIX_IS_NOTHING = 0,
    AIBRIX_IS_KEY,              /* a key is due, not a value */
    AIBRIX_IS_TEXT,             /* content, unless empty */
    AIBRIX_IS_TYPE,
    AIBRIX_IS_ERROR,
    AIBRIX_IS_PROMPT,
    AIBRIX_IS_COMPLETION,
    AIBRIX_IS_CACHED,

    AIBRIX_IS_CHOICES,          /* arrays */
    AIBRIX_IS_CALLS,

    AIBRIX_IS_ROOT,             /* objects */
    AIBRIX_IS_CHOICE,
    AIBRIX_IS_CHAT_DELTA,
    AIBRIX_IS_CALL,
    AIBRIX_IS_FUNCTION,
    AIBRIX_IS_DELTA,            /* or content itself, when a string */
    AIBRIX_IS_BLOCK,
    AIBRIX_IS_HOLDER,
    AIBRIX_IS_USAGE,
    AIBRIX_IS_DETAILS,
    AIBRIX_IS_MAX
};


typedef struct {
    uint8_t       value;
    uint8_t       len;
    const char   *name;
} aibrix_key_t;


#define aibrix_key(name, is)  { AIBRIX_IS_ ## is, sizeof(name) - 1, name }
#define aibrix_no_key         { AIBRIX_IS_NOTHING, 0, NULL }


static const aibrix_key_t  aibrix_root_keys[] = {
    aibrix_key("choices", CHOICES),
    aibrix_key("usage", USAGE),
    aibrix_key("type", TYPE),
    aibrix_key("delta", DELTA),
    aibrix_key("error", ERROR),
    aibrix_key("message", HOLDER),
    aibrix_key("response", HOLDER),
    aibrix_key("content_block", BLOCK),
    aibrix_no_key
};

static const aibrix_key_t  aibrix_choice_keys[] = {
    aibrix_key("delta", CHAT_DELTA),
    aibrix_key("text", TEXT),
    aibrix_no_key
};

static const aibrix_key_t  aibrix_chat_delta_keys[] = {
    aibrix_key("content", TEXT),
    aibrix_key("reasoning_content", TEXT),
    aibrix_key("reasoning", TEXT),
    aibrix_key("refusal", TEXT),
    aibrix_key("tool_calls", CALLS),
    aibrix_key("function_call", FUNCTION),
    aibrix_no_key
};

static const aibrix_key_t  aibrix_call_keys[] = {
    aibrix_key("function", FUNCTION),
    aibrix_no_key
};

static const aibrix_key_t  aibrix_function_keys[] = {
    aibrix_key("arguments", TEXT),
    aibrix_key("name", TEXT),
    aibrix_no_key
};

static const aibrix_key_t  aibrix_delta_keys[] = {
    aibrix_key("text", TEXT),
    aibrix_key("partial_json", TEXT),
    aibrix_key("thinking", TEXT),
    aibrix_no_key
};

/* A tool's name is in the start of its block, as it is in OpenAI's delta. */
static const aibrix_key_t  aibrix_block_keys[] = {
    aibrix_key("text", TEXT),
    aibrix_key("thinking", TEXT),
    aibrix_key("name", TEXT),
    aibrix_no_key
};

static const aibrix_key_t  aibrix_holder_keys[] = {
    aibrix_key("usage", USAGE),
    aibrix_no_key
};

static const aibrix_key_t  aibrix_usage_keys[] = {
    aibrix_key("prompt_tokens", PROMPT),
    aibrix_key("input_tokens", PROMPT),
    aibrix_key("completion_tokens", COMPLETION),
    aibrix_key("output_tokens", COMPLETION),
    aibrix_key("cache_read_input_tokens", CACHED),
    aibrix_key("prompt_tokens_details", DETAILS),
    aibrix_key("input_tokens_details", DETAILS),
    aibrix_no_key
};

static const aibrix_key_t  aibrix_details_keys[] = {
    aibrix_key("cached_tokens", CACHED),
    aibrix_no_key
};

static const aibrix_key_t *const  aibrix_keys[AIBRIX_IS_MAX] = {
    [AIBRIX_IS_ROOT] = aibrix_root_keys,
    [AIBRIX_IS_CHOICE] = aibrix_choice_keys,
    [AIBRIX_IS_CHAT_DELTA] = aibrix_chat_delta_keys,
    [AIBRIX_IS_CALL] = aibrix_call_keys,
    [AIBRIX_IS_FUNCTION] = aibrix_function_keys,
    [AIBRIX_IS_DELTA] = aibrix_delta_keys,
    [AIBRIX_IS_BLOCK] = aibrix_block_keys,
    [AIBRIX_IS_HOLDER] = aibrix_holder_keys,
    [AIBRIX_IS_USAGE] = aibrix_usage_keys,
    [AIBRIX_IS_DETAILS] = aibrix_details_keys
};


static const char  aibrix_mark[] = "[DONE]";


static void
aibrix_content(aibrix_events_t *e)
{
    if (!e->counted) {
        e->counted = 1;
        e->contents++;
    }
}


static uint8_t
aibrix_find_key(const aibrix_key_t *key, const char *name, size_t len)
{
    for ( /* void */ ; key->name != NULL; key++) {
        if (key->len == len && key->name[0] == name[0]
            && memcmp(key->name, name, len) == 0)
        {
            return key->value;
        }
    }

    return AIBRIX_IS_NOTHING;
}


static void
aibrix_key_end(aibrix_events_t *e, const char *name, size_t len)
{
    e->value = aibrix_find_key(aibrix_keys[e->open[e->depth - 1]], name, len);
    e->state = AIBRIX_AT_TOKEN;
}


static int
aibrix_same(const char *s, size_t len, const char *name)
{
    return len == strlen(name) && memcmp(s, name, len) == 0;
}


static void
aibrix_type_end(aibrix_events_t *e, const char *type, size_t len)
{
    e->state = AIBRIX_AT_TOKEN;

    if (aibrix_same(type, len, "error")) {
        e->failed = 1;
    }

    if (e->json) {
        return;
    }

    if (aibrix_same(type, len, "response.failed")) {
        e->failed = 1;
        e->done = 1;
    }

    if (aibrix_same(type, len, "message_stop")
        || aibrix_same(type, len, "response.completed")
        || aibrix_same(type, len, "response.incomplete"))
    {
        e->done = 1;
    }
}


/* Strings */

/* The first quote or backslash, or end. */

static const char *
aibrix_find_quote(const char *p, const char *end)
{
#if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)

    uint64_t  w, q, b;

    /* The lowest bit set of the usual zero-byte test is always right. */

    while (end - p >= 8) {
        memcpy(&w, p, 8);

        q = w ^ 0x2222222222222222;
        b = w ^ 0x5c5c5c5c5c5c5c5c;

        w = ((q - 0x0101010101010101) & ~q) | ((b - 0x0101010101010101) & ~b);
        w &= 0x8080808080808080;

        if (w != 0) {
            return p + (__builtin_ctzll(w) >> 3);
        }

        p += 8;
    }

#endif

    while (p < end && *p != '"' && *p != '\\') {
        p++;
    }

    return p;
}


static const char *
aibrix_string(aibrix_events_t *e, const char *p, const char *end)
{
    if (e->escape && p < end) {
        e->escape = 0;
        p++;
    }

    for ( ;; ) {
        p = aibrix_find_quote(p, end);

        if (p == end) {
            return p;
        }

        if (*p++ == '"') {
            e->state = (e->skip != 0) ? AIBRIX_AT_SKIP : AIBRIX_AT_TOKEN;
            return p;
        }

        if (p == end) {
            e->escape = 1;
            return p;
        }

        p++;
    }
}


static void
aibrix_keep(aibrix_events_t *e, unsigned c)
{
    if (e->len < AIBRIX_EVENTS_KEY) {
        e->key[e->len] = (char) c;
    }

    if (e->len <= AIBRIX_EVENTS_KEY) {
        e->len++;
    }
}


static unsigned
aibrix_hex(unsigned char c)
{
    return (c <= '9') ? c - '0' : (c | 0x20) - 'a' + 10;
}


/* No key has a character that needs an escape: any of them is as good. */

static void
aibrix_unescape(aibrix_events_t *e, unsigned char c)
{
    if (e->escape > 1) {
        e->unit = (uint16_t) (e->unit << 4 | (aibrix_hex(c) & 15));

        if (++e->escape == 6) {
            e->escape = 0;
            aibrix_keep(e, (e->unit < 0x80) ? e->unit : 1);
        }

        return;
    }

    e->unit = 0;
    e->escape = (c == 'u') ? 2 : 0;

    if (c != 'u') {
        aibrix_keep(e, 1);
    }
}


/*
 * A key or the type.  One that lies before p as a whole and has no escapes is
 * compared in place, any other one is gathered.
 */

static const char *
aibrix_name(aibrix_events_t *e, const char *p, const char *end,
    void (*done)(aibrix_events_t *e, const char *s, size_t len))
{
    const char  *q;

    if (e->len == 0 && e->escape == 0) {
        q = aibrix_find_quote(p, end);

        if (q < end && *q == '"') {
            done(e, p, (size_t) (q - p));
            return q + 1;
        }
    }

    while (p < end) {
        if (e->escape != 0) {
            aibrix_unescape(e, (unsigned char) *p++);

        } else if (*p == '\\') {
            e->escape = 1;
            p++;

        } else if (*p == '"') {
            done(e, e->key, e->len);
            return p + 1;

        } else {
            aibrix_keep(e, (unsigned char) *p++);
        }
    }

    return p;
}


/* Values */

static const char *
aibrix_string_start(aibrix_events_t *e, const char *p, const char *end)
{
    uint8_t  value;

    value = e->value;
    e->value = AIBRIX_IS_NOTHING;

    switch (value) {

    case AIBRIX_IS_KEY:
        e->len = 0;
        e->state = AIBRIX_AT_KEY;
        return p;

    case AIBRIX_IS_TYPE:
        e->len = 0;
        e->state = AIBRIX_AT_TYPE;
        return p;

    case AIBRIX_IS_TEXT:
    case AIBRIX_IS_DELTA:
        e->state = AIBRIX_AT_TEXT;
        return p;

    case AIBRIX_IS_ERROR:
        e->failed = 1;
        break;
    }

    e->state = AIBRIX_AT_STRING;

    return aibrix_string(e, p, end);
}


static void
aibrix_number_end(aibrix_events_t *e)
{
    uint64_t  n;

    n = e->number;
    e->state = AIBRIX_AT_TOKEN;

    if (e->digits > 18) {
        return;
    }

    switch (e->value) {

    case AIBRIX_IS_PROMPT:
        e->usage.prompt = n;
        e->usage.known |= AIBRIX_USAGE_PROMPT;
        break;

    case AIBRIX_IS_COMPLETION:
        e->usage.completion = n;
        e->usage.known |= AIBRIX_USAGE_COMPLETION;
        break;

    default: /* AIBRIX_IS_CACHED */
        e->usage.cached = n;
        e->usage.known |= AIBRIX_USAGE_CACHED;
    }
}


/* Only a whole number of at most 18 digits counts. */

static const char *
aibrix_number(aibrix_events_t *e, const char *p, const char *end)
{
    for ( /* void */ ; p < end; p++) {

        switch (*p) {

        case '0': case '1': case '2': case '3': case '4':
        case '5': case '6': case '7': case '8': case '9':
            if (e->digits <= 18) {
                e->number = e->number * 10 + (uint64_t) (*p - '0');
                e->digits++;
            }

            break;

        case ',': case '}': case ']':
        case ' ': case '\t': case '\r': case '\n':
            aibrix_number_end(e);
            return p;

        default:
            e->digits = UINT8_MAX;
        }
    }

    return p;
}


/* The first byte of a number or literal. */

static void
aibrix_scalar(aibrix_events_t *e, char c)
{
    if (e->value == AIBRIX_IS_ERROR) {
        e->failed |= (c != 'n' && c != 'f');
        e->value = AIBRIX_IS_NOTHING;
    }

    if (e->value >= AIBRIX_IS_PROMPT && e->value <= AIBRIX_IS_CACHED
        && (c == '-' || (c >= '0' && c <= '9')))
    {
        e->number = 0;
        e->digits = 0;
        e->state = AIBRIX_AT_NUMBER;
    }
}


/* What comes first in a container, and after each comma. */

static uint8_t
aibrix_next(uint8_t container)
{
    switch (container) {

    case AIBRIX_IS_CHOICES:
        return AIBRIX_IS_CHOICE;

    case AIBRIX_IS_CALLS:
        return AIBRIX_IS_CALL;

    default:
        return AIBRIX_IS_KEY;
    }
}


static void
aibrix_open(aibrix_events_t *e, char c)
{
    uint8_t  value;

    value = e->value;
    e->value = AIBRIX_IS_NOTHING;

    if (value == AIBRIX_IS_ERROR) {
        e->failed = 1;
    }

    if (value >= ((c == '{') ? AIBRIX_IS_ROOT : AIBRIX_IS_CHOICES)
        && value < ((c == '{') ? AIBRIX_IS_MAX : AIBRIX_IS_ROOT))
    {
        e->open[e->depth++] = value;
        e->value = aibrix_next(value);
        e->state = AIBRIX_AT_TOKEN;
        return;
    }

    e->skip = 1;
    e->state = AIBRIX_AT_SKIP;
}


static void
aibrix_closed(aibrix_events_t *e)
{
    e->value = AIBRIX_IS_NOTHING;
    e->state = AIBRIX_AT_TOKEN;

    if (e->depth == 0) {
        e->state = AIBRIX_AT_CLOSED;
        e->done |= e->json;
    }
}


static const char *
aibrix_skip(aibrix_events_t *e, const char *p, const char *end)
{
    while (p < end) {

        switch (*p++) {

        case '"':
            e->state = AIBRIX_AT_STRING;
            p = aibrix_string(e, p, end);
            break;

        case '{': case '[':
            e->skip += (e->skip != UINT32_MAX);
            break;

        case '}': case ']':
            if (--e->skip == 0) {
                aibrix_closed(e);
                return p;
            }

            break;
        }
    }

    return p;
}


static const char *
aibrix_token(aibrix_events_t *e, const char *p, const char *end)
{
    char  c;

    while (p < end && e->state == AIBRIX_AT_TOKEN) {

        c = *p++;

        switch (c) {

        case '"':
            p = aibrix_string_start(e, p, end);
            break;

        case ',':
            e->value = aibrix_next(e->open[e->depth - 1]);
            break;

        case '{': case '[':
            aibrix_open(e, c);
            break;

        case '}': case ']':
            e->depth--;
            aibrix_closed(e);
            break;

        case ':': case ' ': case '\t': case '\r': case '\n':
            break;

        default:
            aibrix_scalar(e, c);

            if (e->state == AIBRIX_AT_NUMBER) {
                p = aibrix_number(e, p - 1, end);
            }
        }
    }

    return p;
}


/* The first bytes of a JSON text, which in an event may be [DONE]. */

static const char *
aibrix_start(aibrix_events_t *e, const char *p)
{
    switch (*p) {

    case ' ': case '\t': case '\r': case '\n':
        break;

    case '{':
        e->value = AIBRIX_IS_ROOT;
        aibrix_open(e, '{');
        break;

    case '[':
        if (e->json) {
            aibrix_open(e, '[');
            break;
        }

        e->len = 1;
        e->state = AIBRIX_AT_MARK;
        break;

    default:
        e->state = AIBRIX_AT_JUNK;
    }

    return p + 1;
}


static const char *
aibrix_mark_next(aibrix_events_t *e, const char *p)
{
    if (*p != aibrix_mark[e->len++]) {
        e->state = AIBRIX_AT_JUNK;

    } else if (aibrix_mark[e->len] == '\0') {
        e->done = 1;
        e->state = AIBRIX_AT_CLOSED;
    }

    return p + 1;
}


static void
aibrix_json(aibrix_events_t *e, const char *p, const char *end)
{
    while (p < end) {

        switch (e->state) {

        case AIBRIX_AT_START:
            p = aibrix_start(e, p);
            break;

        case AIBRIX_AT_TOKEN:
            p = aibrix_token(e, p, end);
            break;

        case AIBRIX_AT_KEY:
            p = aibrix_name(e, p, end, aibrix_key_end);
            break;

        case AIBRIX_AT_TYPE:
            p = aibrix_name(e, p, end, aibrix_type_end);
            break;

        case AIBRIX_AT_TEXT:
            if (*p != '"') {
                aibrix_content(e);
            }

            e->state = AIBRIX_AT_STRING;
            break;

        case AIBRIX_AT_STRING:
            p = aibrix_string(e, p, end);
            break;

        case AIBRIX_AT_NUMBER:
            p = aibrix_number(e, p, end);
            break;

        case AIBRIX_AT_SKIP:
            p = aibrix_skip(e, p, end);
            break;

        case AIBRIX_AT_MARK:
            p = aibrix_mark_next(e, p);
            break;

        default:
            return;
        }
    }
}


static void
aibrix_json_reset(aibrix_events_t *e)
{
    e->counted = 0;
    e->skip = 0;
    e->escape = 0;
    e->depth = 0;
    e->value = AIBRIX_IS_NOTHING;
    e->state = AIBRIX_AT_START;
}


/* Lines of an event stream */

/*
 * The lines of an event are joined with a newline.  One that follows a
 * complete object is taken as an event of its own, though, for servers that
 * leave out the empty line.
 */

static void
aibrix_data_start(aibrix_events_t *e)
{
    static const char  newline[] = "\n";

    if (e->data) {
        if (e->state == AIBRIX_AT_CLOSED) {
            aibrix_json_reset(e);

        } else {
            aibrix_json(e, newline, newline + 1);
        }
    }

    e->data = 1;
}


static void
aibrix_line_end(aibrix_events_t *e)
{
    if (e->line == AIBRIX_LINE_START && e->data) {
        e->data = 0;
        aibrix_json_reset(e);
    }

    e->line = AIBRIX_LINE_START;
}


/* The field's name, up to where data begins. */

static const char *
aibrix_line_field(aibrix_events_t *e, const char *p, const char *eol)
{
    if (e->line == AIBRIX_LINE_START && eol - p >= 6
        && memcmp(p, "data: ", 6) == 0)
    {
        e->line = AIBRIX_LINE_DATA;
        aibrix_data_start(e);

        return p + 6;
    }

    while (p < eol && e->line < AIBRIX_LINE_COLON) {
        if (*p++ != "data:"[e->line]) {
            e->line = AIBRIX_LINE_SKIP;

        } else if (++e->line == AIBRIX_LINE_COLON) {
            aibrix_data_start(e);
        }
    }

    if (p < eol && e->line == AIBRIX_LINE_COLON) {
        e->line = AIBRIX_LINE_DATA;

        if (*p == ' ') {
            p++;
        }
    }

    return p;
}


static void
aibrix_line(aibrix_events_t *e, const char *p, const char *eol)
{
    if (e->line < AIBRIX_LINE_DATA) {
        p = aibrix_line_field(e, p, eol);
    }

    if (e->line == AIBRIX_LINE_DATA) {
        aibrix_json(e, p, eol);
    }
}


static const char *
aibrix_find(const char *p, const char *end, char c)
{
    p = memchr(p, c, (size_t) (end - p));

    return (p != NULL) ? p : end;
}


static void
aibrix_lines(aibrix_events_t *e, const char *p, const char *end)
{
    const char  *lf, *cr, *eol;

    if (p == end) {
        return;
    }

    lf = aibrix_find(p, end, '\n');
    cr = aibrix_find(p, end, '\r');

    while (p < end) {

        /* Each byte is searched once, however the lines end. */

        if (lf < p) {
            lf = aibrix_find(p, end, '\n');
        }

        if (cr < p) {
            cr = aibrix_find(p, end, '\r');
        }

        if (e->cr) {
            e->cr = 0;

            if (lf == p) {
                p++;
                continue;
            }
        }

        eol = (lf < cr) ? lf : cr;

        aibrix_line(e, p, eol);

        if (eol == end) {
            return;
        }

        aibrix_line_end(e);

        e->cr = (eol == cr);
        p = eol + 1;
    }
}


void
aibrix_events_init(aibrix_events_t *e, aibrix_body_e body)
{
    memset(e, 0, sizeof(aibrix_events_t));

    e->json = (body == AIBRIX_BODY_JSON);
}


uint32_t
aibrix_events_feed(aibrix_events_t *e, const char *data, size_t len)
{
    uint64_t  before;

    before = e->contents;

    if (!e->json) {
        aibrix_lines(e, data, data + len);

    } else if (len != 0) {
        aibrix_content(e);
        aibrix_json(e, data, data + len);
    }

    return (uint32_t) (e->contents - before);
}
