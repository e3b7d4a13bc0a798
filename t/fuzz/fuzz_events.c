
/*
 * The scanner of response bodies against a slow reading of the same body:
 * lines split as the specification of event streams says, then json-c.  The
 * first byte says how the body is made (as it is, or out of the input as
 * instructions for a valid one), the second how it is cut.
 */

#define _GNU_SOURCE                     /* memmem() */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <json-c/json.h>

#include "events.h"


#define MOST   (1 << 16)                /* bytes of a body */
#define DEPTH  9                        /* of what is made */


typedef struct {
    char    data[MOST];
    size_t  len;
} text_t;


typedef struct {
    aibrix_usage_t  usage;
    uint64_t        contents;
    int             done;
    int             failed;
    int             unsure;             /* not JSON: anything goes */
} result_t;


static text_t  body, event;


static void
put(text_t *t, const char *s, size_t n)
{
    if (t->len + n <= MOST) {
        memcpy(t->data + t->len, s, n);
        t->len += n;
    }
}


/* Making a body */

static const uint8_t  *input;
static size_t          left;
static int             in_events;


static unsigned
take(unsigned n)
{
    if (left == 0) {
        return 0;
    }

    left--;

    return *input++ % n;
}


static void
puts_body(const char *s)
{
    put(&body, s, strlen(s));
}


/* Between two tokens; in an event stream a new data line may begin there. */

static void
make_space(void)
{
    static const char *const  spaces[] = {
        "", "", "", "", " ", "\t", "\ndata: ", "\r\ndata:", "\rdata:  "
    };

    puts_body(spaces[take(in_events ? 9 : 6)]);
}


static void
make_string(void)
{
    static const char *const  strings[] = {
        "", "a", " ", "\\\"", "\\\\", "\\u0041", "\\n", "[DONE]", "error",
        "message_stop", "response.completed", "response.incomplete",
        "response.failed", "}]", "data: ", "\xc3\xa9", "usage", ",\\\""
    };

    puts_body("\"");
    puts_body(strings[take(18)]);
    puts_body("\"");
}


/* Keys of one object come in this order, so none comes twice. */

static const char *const  keys[] = {
    "id", "type", "error", "response", "message", "content_block", "usage",
    "choices", "index", "text", "delta", "content", "reasoning_content",
    "reasoning", "refusal", "partial_json", "thinking", "tool_calls",
    "function_call", "function", "name", "arguments", "prompt_tokens",
    "input_tokens", "completion_tokens", "output_tokens",
    "cache_read_input_tokens", "prompt_tokens_details",
    "input_tokens_details", "cached_tokens", "cached_tokens_",
    "a key that is longer than any that we know"
};

#define KEYS  (sizeof(keys) / sizeof(keys[0]))


static void
make_key(const char *key)
{
    char      escape[8];
    size_t    i;
    unsigned  at;

    at = take(32);
    puts_body("\"");

    for (i = 0; key[i] != '\0'; i++) {
        if (at == i + 4) {
            (void) snprintf(escape, sizeof(escape), "\\u%04x", key[i]);
            puts_body(escape);

        } else {
            put(&body, &key[i], 1);
        }
    }

    puts_body("\"");
}


static void make_value(unsigned depth);


static void
make_object(unsigned depth)
{
    size_t    i;
    unsigned  n;

    puts_body("{");
    i = take(depth == 0 ? 11 : KEYS);

    for (n = take(5); n > 0 && i < KEYS; n--) {
        make_space();
        make_key(keys[i]);
        make_space();
        puts_body(":");
        make_space();
        make_value(depth + 1);
        make_space();

        i += 1 + take(4);

        if (n > 1 && i < KEYS) {
            puts_body(",");
        }
    }

    puts_body("}");
}


static void
make_array(unsigned depth)
{
    unsigned  n;

    puts_body("[");
    make_space();

    for (n = take(4); n > 0; n--) {
        make_value(depth + 1);
        make_space();

        if (n > 1) {
            puts_body(",");
            make_space();
        }
    }

    puts_body("]");
}


static void
make_value(unsigned depth)
{
    static const char *const  scalars[] = {
        "null", "true", "false", "0", "7", "12345", "-1", "1.5", "2e3",
        "999999999999999999", "1000000000000000000"
    };

    switch (take(depth < DEPTH ? 8 : 3)) {

    case 0:
        puts_body(scalars[take(11)]);
        break;

    case 1: case 2:
        make_string();
        break;

    case 3: case 4:
        make_array(depth);
        break;

    default:
        make_object(depth);
    }
}


static void
make_event(void)
{
    static const char *const  ends[] = {
        "\n\n", "\r\n\r\n", "\r\r", "\n\r\n"
    };
    static const char *const  others[] = {
        ": ping\n", "event: x\r\n", "id: 1\r", "data: [DONE]\n\n", "\n",
        "data:x\n\n", "data\n"
    };

    if (take(4) == 0) {
        puts_body(others[take(7)]);
        return;
    }

    puts_body(take(2) ? "data: " : "data:");
    make_object(0);
    puts_body(ends[take(4)]);
}


static void
make_body(void)
{
    body.len = 0;

    if (!in_events) {
        make_space();
        make_object(0);
        return;
    }

    while (left > 0 && body.len < MOST / 2) {
        make_event();
    }
}


/* The slow reading */

static int
not_empty(json_object *o)
{
    return json_object_is_type(o, json_type_string)
           && json_object_get_string_len(o) > 0;
}


static json_object *
member(json_object *o, const char *key)
{
    if (!json_object_is_type(o, json_type_object)) {
        return NULL;
    }

    return json_object_object_get(o, key);
}


static int
any_text(json_object *o, const char *const *names)
{
    for ( /* void */ ; *names != NULL; names++) {
        if (not_empty(member(o, *names))) {
            return 1;
        }
    }

    return 0;
}


static size_t
elements(json_object *o)
{
    return json_object_is_type(o, json_type_array)
           ? json_object_array_length(o) : 0;
}


static int
choice_has_content(json_object *choice)
{
    static const char *const  texts[] = {
        "content", "reasoning_content", "reasoning", "refusal", NULL
    };
    static const char *const  call[] = { "name", "arguments", NULL };

    size_t        i;
    json_object  *delta, *calls, *f;

    delta = member(choice, "delta");

    if (not_empty(member(choice, "text")) || any_text(delta, texts)
        || any_text(member(delta, "function_call"), call))
    {
        return 1;
    }

    calls = member(delta, "tool_calls");

    for (i = 0; i < elements(calls); i++) {
        f = member(json_object_array_get_idx(calls, i), "function");

        if (any_text(f, call)) {
            return 1;
        }
    }

    return 0;
}


static int
has_content(json_object *root)
{
    static const char *const  delta[] = {
        "text", "partial_json", "thinking", NULL
    };
    static const char *const  block[] = { "text", "thinking", "name", NULL };

    size_t        i;
    json_object  *choices;

    choices = member(root, "choices");

    for (i = 0; i < elements(choices); i++) {
        if (choice_has_content(json_object_array_get_idx(choices, i))) {
            return 1;
        }
    }

    return not_empty(member(root, "delta"))
           || any_text(member(root, "delta"), delta)
           || any_text(member(root, "content_block"), block);
}


static void
read_number(json_object *o, uint64_t *n, uint32_t bit, aibrix_usage_t *u)
{
    int64_t  v;

    if (!json_object_is_type(o, json_type_int)) {
        return;
    }

    v = json_object_get_int64(o);

    if (v >= 0 && v <= 999999999999999999) {
        *n = (uint64_t) v;
        u->known |= bit;
    }
}


/* In the order of the text: the last one counts. */

static void
read_usage(json_object *usage, aibrix_usage_t *u)
{
    if (!json_object_is_type(usage, json_type_object)) {
        return;
    }

    json_object_object_foreach(usage, key, val) {
        if (!strcmp(key, "prompt_tokens") || !strcmp(key, "input_tokens")) {
            read_number(val, &u->prompt, AIBRIX_USAGE_PROMPT, u);
        }

        if (!strcmp(key, "completion_tokens")
            || !strcmp(key, "output_tokens"))
        {
            read_number(val, &u->completion, AIBRIX_USAGE_COMPLETION, u);
        }

        if (!strcmp(key, "cache_read_input_tokens")) {
            read_number(val, &u->cached, AIBRIX_USAGE_CACHED, u);
        }

        if (!strcmp(key, "prompt_tokens_details")
            || !strcmp(key, "input_tokens_details"))
        {
            read_number(member(val, "cached_tokens"), &u->cached,
                        AIBRIX_USAGE_CACHED, u);
        }
    }
}


static void
read_root(json_object *root, int json, result_t *r)
{
    const char   *type;
    json_object  *error, *t;

    json_object_object_foreach(root, key, val) {
        if (!strcmp(key, "usage")) {
            read_usage(val, &r->usage);
        }

        if (!strcmp(key, "response") || !strcmp(key, "message")) {
            read_usage(member(val, "usage"), &r->usage);
        }
    }

    error = member(root, "error");

    if (error != NULL && !(json_object_is_type(error, json_type_boolean)
                           && !json_object_get_boolean(error)))
    {
        r->failed = 1;
    }

    t = member(root, "type");
    type = json_object_is_type(t, json_type_string)
           ? json_object_get_string(t) : "";

    if (!strcmp(type, "error") || (!json && !strcmp(type, "response.failed")))
    {
        r->failed = 1;
    }

    if (json) {
        r->done = 1;
        return;
    }

    r->contents += (uint64_t) has_content(root);

    if (!strcmp(type, "message_stop") || !strcmp(type, "response.completed")
        || !strcmp(type, "response.incomplete")
        || !strcmp(type, "response.failed"))
    {
        r->done = 1;
    }
}


static size_t
members(json_object *o)
{
    size_t  i, n;

    n = 0;

    if (json_object_is_type(o, json_type_object)) {
        json_object_object_foreach(o, key, val) {
            (void) key;
            n += 1 + members(val);
        }
    }

    for (i = 0; i < elements(o); i++) {
        n += members(json_object_array_get_idx(o, i));
    }

    return n;
}


/* The colons outside of strings, which are as many as members were sent. */

static size_t
colons(const char *p, size_t len)
{
    int     string;
    size_t  i, n;

    n = 0;
    string = 0;

    for (i = 0; i < len; i++) {
        if (string && p[i] == '\\') {
            i++;

        } else if (p[i] == '"') {
            string = !string;

        } else if (!string && p[i] == ':') {
            n++;
        }
    }

    return n;
}


static size_t
spaces(const char *p, size_t len)
{
    size_t  i;

    for (i = 0; i < len && strchr(" \t\r\n", p[i]) && p[i] != '\0'; i++) {
        /* void */
    }

    return i;
}


/* What json-c is lenient about, or gives back otherwise than it was sent. */

static int
doubtful(const char *p, size_t len)
{
    return memchr(p, '\0', len) != NULL
           || memmem(p, len, "\\u0000", 6) != NULL
           || memmem(p, len, "-0", 2) != NULL;
}


static void
read_json(const char *p, size_t len, int json, result_t *r)
{
    size_t         end;
    json_object   *root;
    json_tokener  *tok;

    tok = json_tokener_new_ex(256);
    json_tokener_set_flags(tok, JSON_TOKENER_STRICT
                                | JSON_TOKENER_ALLOW_TRAILING_CHARS);

    root = doubtful(p, len) ? NULL : json_tokener_parse_ex(tok, p, (int) len);
    end = json_tokener_get_parse_end(tok);

    if (root == NULL || !json_object_is_type(root, json_type_object)
        || (!json && end + spaces(p + end, len - end) != len)
        || members(root) != colons(p, end))
    {
        r->unsure = 1;

    } else {
        read_root(root, json, r);
    }

    json_object_put(root);
    json_tokener_free(tok);
}


static void
read_event(const text_t *t, result_t *r)
{
    size_t       len;
    const char  *p;

    p = t->data + spaces(t->data, t->len);
    len = t->len - (size_t) (p - t->data);

    if (len >= 6 && memcmp(p, "[DONE]", 6) == 0) {
        r->done = 1;
        r->unsure |= (memchr(p, '\n', len) != NULL);

    } else if (len > 0 && *p == '{') {
        read_json(p, len, 0, r);
    }
}


static void
read_line(const char *p, size_t len, int *any, result_t *r)
{
    if (len == 0) {
        read_event(&event, r);
        event.len = 0;
        *any = 0;
        return;
    }

    if (len < 4 || memcmp(p, "data", 4) != 0 || (len > 4 && p[4] != ':')) {
        return;
    }

    if (*any) {
        put(&event, "\n", 1);
    }

    *any = 1;
    p += (len > 4) ? 5 : 4;
    len -= (len > 4) ? 5 : 4;

    if (len > 0 && *p == ' ') {
        p++;
        len--;
    }

    put(&event, p, len);
}


static void
read_slowly(int json, result_t *r)
{
    int     any;
    size_t  i, from;

    memset(r, 0, sizeof(result_t));

    if (json) {
        r->contents = (body.len > 0);
        read_json(body.data, body.len, 1, r);
        return;
    }

    any = 0;
    from = 0;
    event.len = 0;

    for (i = 0; i < body.len; i++) {
        if (body.data[i] != '\n' && body.data[i] != '\r') {
            continue;
        }

        read_line(body.data + from, i - from, &any, r);

        if (body.data[i] == '\r' && i + 1 < body.len
            && body.data[i + 1] == '\n')
        {
            i++;
        }

        from = i + 1;
    }

    if (from < body.len) {
        read_line(body.data + from, body.len - from, &any, r);
    }

    read_event(&event, r);
}


/* The scanner */

static void
scan(int json, size_t most, uint32_t seed, aibrix_events_t *e)
{
    char      *copy;
    size_t     at, n;
    uint64_t   sum;

    sum = 0;
    aibrix_events_init(e, json ? AIBRIX_BODY_JSON : AIBRIX_BODY_EVENTS);

    for (at = 0; at < body.len; at += n) {
        seed = seed * 1664525 + 1013904223;
        n = 1 + (seed >> 8) % most;
        n = (n < body.len - at) ? n : body.len - at;

        copy = malloc(n);
        memcpy(copy, body.data + at, n);
        sum += aibrix_events_feed(e, copy, n);
        free(copy);
    }

    if (sum != e->contents) {
        abort();
    }
}


static int
same_usage(const aibrix_usage_t *a, const aibrix_usage_t *b)
{
    return a->known == b->known && a->prompt == b->prompt
           && a->completion == b->completion && a->cached == b->cached;
}


static void
show(const char *what, const aibrix_usage_t *u, uint64_t contents, int done,
    int failed)
{
    (void) fprintf(stderr, "%s: contents %llu done %d failed %d usage %u "
                   "%llu %llu %llu\n", what, (unsigned long long) contents,
                   done, failed, u->known, (unsigned long long) u->prompt,
                   (unsigned long long) u->completion,
                   (unsigned long long) u->cached);
}


static void
differ(const aibrix_events_t *e, const aibrix_usage_t *u, uint64_t contents,
    int done, int failed)
{
    show("this", &e->usage, e->contents, e->done, e->failed);
    show("want", u, contents, done, failed);
    (void) fwrite(body.data, 1, body.len, stderr);
    abort();
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int              json, i;
    result_t         r;
    aibrix_events_t  whole, cut;

    if (size < 2 || size > MOST / 4) {
        return 0;
    }

    json = data[0] & 1;
    in_events = !json;
    input = data + 2;
    left = size - 2;

    if (data[0] & 2) {
        make_body();

    } else {
        memcpy(body.data, input, left);
        body.len = left;
    }

    scan(json, SIZE_MAX, 0, &whole);

    for (i = 0; i < 4; i++) {
        scan(json, i == 0 ? 1 : 1U << (2 * i), data[1], &cut);

        if (cut.contents != whole.contents || cut.done != whole.done
            || cut.failed != whole.failed
            || !same_usage(&cut.usage, &whole.usage))
        {
            differ(&cut, &whole.usage, whole.contents, whole.done,
                   whole.failed);
        }
    }

    read_slowly(json, &r);

    if (!r.unsure
        && (whole.contents != r.contents || whole.done != (unsigned) r.done
            || whole.failed != (unsigned) r.failed
            || !same_usage(&whole.usage, &r.usage)))
    {
        differ(&whole, &r.usage, r.contents, r.done, r.failed);
    }

    return 0;
}
