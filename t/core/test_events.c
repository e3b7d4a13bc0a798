
/* The scanner of response bodies: every shape, whole and at any cut. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "events.h"


#define NONE       UINT64_MAX           /* not known */
#define CUTS       60                   /* random ways to cut a body */
#define EVENT(s)   "data: " s "\n\n"
#define CHAT(s)    EVENT("{\"id\":\"x\",\"object\":\"chat.completion\"," \
                         "\"choices\":[{\"index\":0,\"delta\":" s "}]}")
#define CUT        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[\n\n"


typedef struct {
    uint64_t   contents;
    uint64_t   prompt;
    uint64_t   completion;
    uint64_t   cached;
    int        done;
    int        failed;
} want_t;


static uint64_t  seed = 0x9e3779b97f4a7c15;


static size_t
below(size_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;

    return (size_t) (seed % n);
}


static uint64_t
usage(const aibrix_events_t *e, uint64_t value, uint32_t bit)
{
    if (!(e->usage.known & bit)) {
        assert_int_equal(value, 0);
        return NONE;
    }

    return value;
}


static void
assert_result(const aibrix_events_t *e, const want_t *w)
{
    assert_int_equal(e->contents, w->contents);
    assert_int_equal(e->done, w->done);
    assert_int_equal(e->failed, w->failed);
    assert_int_equal(usage(e, e->usage.prompt, AIBRIX_USAGE_PROMPT),
                     w->prompt);
    assert_int_equal(usage(e, e->usage.completion, AIBRIX_USAGE_COMPLETION),
                     w->completion);
    assert_int_equal(usage(e, e->usage.cached, AIBRIX_USAGE_CACHED),
                     w->cached);
}


/* Pieces are copied to memory of their own size, for the sanitizer's sake. */

static uint32_t
feed(aibrix_events_t *e, const char *data, size_t len)
{
    char      *copy;
    uint32_t   n;

    copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, data, len);

    n = aibrix_events_feed(e, copy, len);
    memset(copy, '"', len);
    free(copy);

    return n;
}


static uint32_t
feed_text(aibrix_events_t *e, const char *text)
{
    return feed(e, text, strlen(text));
}


/* most: the longest piece; every way must come to the same. */

static void
feed_cut(aibrix_body_e kind, const char *body, size_t len, size_t most,
    const want_t *w)
{
    size_t           at, n;
    uint64_t         sum;
    aibrix_events_t  e;

    aibrix_events_init(&e, kind);
    sum = 0;

    for (at = 0; at < len; at += n) {
        n = (most == 1) ? 1 : below(most + 1);
        n = (n < len - at) ? n : len - at;
        sum += feed(&e, body + at, n);
    }

    assert_int_equal(sum, e.contents);
    assert_result(&e, w);
}


static void
check(aibrix_body_e kind, const char *body, const want_t *w)
{
    int              i;
    size_t           len, at;
    uint32_t         n;
    aibrix_events_t  e;

    len = strlen(body);

    aibrix_events_init(&e, kind);
    n = feed(&e, body, len);
    assert_int_equal(n, w->contents);
    assert_result(&e, w);

    feed_cut(kind, body, len, 1, w);

    for (at = 0; at <= len; at++) {
        aibrix_events_init(&e, kind);
        n = feed(&e, body, at);
        n += feed(&e, body + at, len - at);
        assert_int_equal(n, w->contents);
        assert_result(&e, w);
    }

    for (i = 0; i < CUTS; i++) {
        feed_cut(kind, body, len, 2 + below(30), w);
    }
}


/* The same stream with each kind of line end, and without spaces. */

static void
check_events(const char *body, const want_t *w)
{
    char        *s, *p;
    const char  *b;

    check(AIBRIX_BODY_EVENTS, body, w);

    s = malloc(2 * strlen(body) + 1);
    assert_non_null(s);

    for (p = s, b = body; *b; b++) {
        if (*b == '\n') {
            *p++ = '\r';
        }

        *p++ = *b;
    }

    *p = '\0';
    check(AIBRIX_BODY_EVENTS, s, w);

    for (p = s, b = body; *b; b++) {
        *p++ = (*b == '\n') ? '\r' : *b;
    }

    *p = '\0';
    check(AIBRIX_BODY_EVENTS, s, w);

    for (p = s, b = body; *b; b++) {
        *p++ = *b;

        if (p - s >= 5 && memcmp(p - 5, "data:", 5) == 0 && b[1] == ' ') {
            b++;
        }
    }

    *p = '\0';
    check(AIBRIX_BODY_EVENTS, s, w);

    free(s);
}


static void
test_chat(void **state)
{
    const want_t  w = { 3, 11, 3, 8, 1, 0 };
    const want_t  none = { 0, NONE, NONE, NONE, 0, 0 };

    (void) state;

    check_events(
        CHAT("{\"role\":\"assistant\",\"content\":\"\"}")
        ": keep-alive\n\n"
        CHAT("{\"content\":\"Hel\"}")
        CHAT("{\"content\":\"\\\"lo\\\\\"}")
        CHAT("{\"content\":null}")
        CHAT("{\"content\":\" \"}")
        CHAT("{}")
        EVENT("{\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":11,"
              "\"completion_tokens\":3,\"total_tokens\":14,"
              "\"prompt_tokens_details\":{\"audio_tokens\":1,"
              "\"cached_tokens\":8}}}")
        EVENT("[DONE]"), &w);

    check_events(CHAT("{\"role\":\"assistant\"}"), &none);
    check_events(CHAT("{\"content\":[\"text\"]}"), &none);
    check_events(CHAT("{\"content\":{\"content\":\"a\"}}"), &none);
    check_events(CHAT("{\"other\":\"text\",\"content\":\"\"}"), &none);
}


static void
test_chat_fields(void **state)
{
    const want_t  one = { 1, NONE, NONE, NONE, 0, 0 };
    const want_t  none = { 0, NONE, NONE, NONE, 0, 0 };

    (void) state;

    check_events(CHAT("{\"reasoning_content\":\"a\"}"), &one);
    check_events(CHAT("{\"reasoning\":\"a\"}"), &one);
    check_events(CHAT("{\"refusal\":\"a\"}"), &one);
    check_events(CHAT("{\"content\":\"a\",\"reasoning\":\"b\"}"), &one);
    check_events(CHAT("{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\""
                      ":{\"name\":\"f\",\"arguments\":\"\"}}]}"), &one);
    check_events(CHAT("{\"tool_calls\":[{\"index\":0},{\"function\":{"
                      "\"arguments\":\"{\\\"a\\\"\"}}]}"), &one);
    check_events(CHAT("{\"tool_calls\":[{\"function\":{\"name\":\"\"}}]}"),
                 &none);
    check_events(CHAT("{\"function_call\":{\"arguments\":\"{\"}}"), &one);
    check_events(CHAT("{\"co\\u006etent\":\"a\"}"), &one);
    check_events(CHAT("{\"cont\\u0065\\u006Et\":\"a\"}"), &one);
    check_events(CHAT("{\"content\\u0000\":\"a\",\"cont\\\\ent\":\"b\"}"),
                 &none);

    /* Two choices in one event are one event; the second one counts, too. */

    check_events(EVENT("{\"choices\":[{\"delta\":{\"content\":\"a\"}},"
                       "{\"delta\":{\"content\":\"b\"}}]}"), &one);
    check_events(EVENT("{\"choices\":[{\"delta\":{}},"
                       "{\"delta\":{\"content\":\"b\"}}]}"), &one);

    /* The path counts, not the key. */

    check_events(EVENT("{\"content\":\"a\",\"text\":\"b\"}"), &none);
    check_events(EVENT("{\"x\":{\"choices\":[{\"text\":\"a\"}]}}"), &none);
    check_events(EVENT("{\"choices\":[[{\"text\":\"a\"}]]}"), &none);
    check_events(EVENT("{\"choices\":{\"text\":\"a\"}}"), &none);
    check_events(EVENT("{\"choices\":[{\"x\":[{\"text\":\"a\"}],\"y\":\""
                       "\\\"text\\\":\\\"b\\\"\"}]}"), &none);
}


static void
test_completions(void **state)
{
    const want_t  w = { 2, 5, 2, NONE, 1, 0 };

    (void) state;

    check_events(
        EVENT("{\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null}],"
              "\"usage\":null}")
        EVENT("{\"choices\":[{\"text\":\"a\",\"logprobs\":{\"tokens\":[\"a\"],"
              "\"text_offset\":[0]}}],\"usage\":null}")
        EVENT("{\"usage\":null,\"choices\":[{\"index\":0,\"text\":\"\\u00e9\"}"
              "]}")
        EVENT("{\"choices\":[],\"usage\":{\"prompt_tokens\":5,"
              "\"prompt_tokens_details\":null,\"completion_tokens\":2}}")
        EVENT("[DONE]"), &w);
}


static void
test_anthropic(void **state)
{
    const want_t  w = { 5, 25, 15, 20, 1, 0 };
    const want_t  failed = { 0, NONE, NONE, NONE, 0, 1 };

    (void) state;

    check_events(
        "event: message_start\n"
        EVENT("{\"type\":\"message_start\",\"message\":{\"id\":\"m\","
              "\"type\":\"message\",\"content\":[],\"usage\":{"
              "\"input_tokens\":25,\"cache_read_input_tokens\":20,"
              "\"cache_creation_input_tokens\":4,\"output_tokens\":1}}}")
        "event: content_block_start\n"
        EVENT("{\"type\":\"content_block_start\",\"index\":0,"
              "\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}}")
        "event: ping\n"
        EVENT("{\"type\":\"ping\"}")
        EVENT("{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{"
              "\"type\":\"thinking_delta\",\"thinking\":\"hm\"}}")
        EVENT("{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{"
              "\"type\":\"signature_delta\",\"signature\":\"Eq\"}}")
        EVENT("{\"type\":\"content_block_stop\",\"index\":0}")
        EVENT("{\"type\":\"content_block_delta\",\"index\":1,\"delta\":{"
              "\"type\":\"text_delta\",\"text\":\"Hi\"}}")
        EVENT("{\"type\":\"content_block_delta\",\"index\":1,\"delta\":{"
              "\"type\":\"text_delta\",\"text\":\"\"}}")
        EVENT("{\"type\":\"content_block_start\",\"index\":2,"
              "\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\","
              "\"name\":\"f\",\"input\":{}}}")
        EVENT("{\"type\":\"content_block_delta\",\"index\":2,\"delta\":{"
              "\"type\":\"input_json_delta\",\"partial_json\":\"{\"}}")
        EVENT("{\"type\":\"content_block_start\",\"content_block\":{"
              "\"type\":\"text\",\"text\":\"a\"}}")
        EVENT("{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":"
              "\"end_turn\",\"stop_sequence\":null},\"usage\":{"
              "\"output_tokens\":15}}")
        "event: message_stop\n"
        EVENT("{\"type\":\"message_stop\"}"), &w);

    check_events("event: error\n"
                 EVENT("{\"type\":\"error\",\"error\":{\"type\":"
                       "\"overloaded_error\",\"message\":\"Overloaded\"}}"),
                 &failed);
}


static void
test_responses(void **state)
{
    const want_t  w = { 3, 36, 87, 12, 1, 0 };
    const want_t  cut = { 0, NONE, NONE, NONE, 1, 0 };
    const want_t  failed = { 0, NONE, NONE, NONE, 1, 1 };
    const want_t  none = { 0, NONE, NONE, NONE, 0, 0 };

    (void) state;

    check_events(
        "event: response.created\n"
        EVENT("{\"type\":\"response.created\",\"response\":{\"id\":\"r\","
              "\"status\":\"in_progress\",\"error\":null,\"usage\":null}}")
        EVENT("{\"type\":\"response.output_item.added\",\"item\":{\"type\":"
              "\"message\",\"content\":[]}}")
        "event: response.output_text.delta\n"
        EVENT("{\"content_index\":0,\"delta\":\"Hi\",\"item_id\":\"m\","
              "\"output_index\":0,\"type\":\"response.output_text.delta\"}")
        EVENT("{\"type\":\"response.output_text.delta\",\"delta\":\"\"}")
        EVENT("{\"type\":\"response.reasoning_text.delta\",\"delta\":\"a\"}")
        EVENT("{\"type\":\"response.function_call_arguments.delta\","
              "\"delta\":\"{}\"}")
        EVENT("{\"type\":\"response.output_text.done\",\"text\":\"Hi\"}")
        "event: response.completed\n"
        EVENT("{\"response\":{\"id\":\"r\",\"error\":null,\"output\":[{"
              "\"content\":[{\"text\":\"Hi\"}]}],\"usage\":{"
              "\"input_tokens\":36,\"input_tokens_details\":{"
              "\"cached_tokens\":12},\"output_tokens\":87,"
              "\"output_tokens_details\":{\"reasoning_tokens\":3},"
              "\"total_tokens\":123}},\"type\":\"response.completed\"}"), &w);

    check_events(EVENT("{\"type\":\"response.incomplete\"}"), &cut);
    check_events(EVENT("{\"type\":\"response\\u002Ecompleted\"}"), &cut);
    check_events(EVENT("{\"type\":\"response.failed\",\"response\":{}}"),
                 &failed);
    check_events(EVENT("{\"type\":\"response.completed.not\"}"), &none);
    check_events(EVENT("{\"response\":{\"type\":\"response.completed\"}}"),
                 &none);
    check_events(EVENT("{\"type\":[\"message_stop\"]}"), &none);
}


static void
test_errors(void **state)
{
    const want_t  w = { 1, NONE, NONE, NONE, 1, 1 };
    const want_t  failed = { 0, NONE, NONE, NONE, 0, 1 };
    const want_t  none = { 0, NONE, NONE, NONE, 0, 0 };

    (void) state;

    check_events(CHAT("{\"content\":\"a\"}")
                 EVENT("{\"error\":{\"message\":\"died\",\"code\":500}}")
                 EVENT("[DONE]"), &w);

    check_events(EVENT("{\"error\":\"\"}"), &failed);
    check_events(EVENT("{\"error\":[]}"), &failed);
    check_events(EVENT("{\"error\": 1}"), &failed);
    check_events(EVENT("{\"error\":true}"), &failed);
    check_events(EVENT("{\"error\":null,\"x\":true}"), &none);
    check_events(EVENT("{\"error\":false,\"x\":1}"), &none);
    check_events(EVENT("{\"x\":{\"error\":1},\"y\":\"error\"}"), &none);
}


static void
test_lines(void **state)
{
    const want_t  one = { 1, NONE, NONE, NONE, 0, 0 };
    const want_t  two = { 2, NONE, NONE, NONE, 1, 0 };
    const want_t  none = { 0, NONE, NONE, NONE, 0, 0 };
    const want_t  done = { 0, NONE, NONE, NONE, 1, 0 };
    const want_t  split = { 1, 12, NONE, NONE, 0, 0 };

    (void) state;

    /* An object over several lines, cut between tokens. */

    check_events("data: {\"choices\":\ndata:\ndata: [{\"text\":\ndata\n"
                 "data: \"a\"}]\ndata: ,\"usage\":{\"prompt_tokens\":12\n"
                 "data: }}\n\n", &split);

    /* No empty line between events. */

    check_events("data: {\"choices\":[{\"text\":\"a\"}]}\n"
                 "data: {\"choices\":[{\"text\":\"b\"}]}\n"
                 "data: [DONE]\n", &two);

    /* Other fields, in any place; only "data" is data. */

    check_events("id: 7\nretry: 10\ndata: {\"choices\":[\n: comment\n"
                 "event: x\ndata: {\"text\":\"a\"}]}\nid\n\n", &one);
    check_events("datas: {\"choices\":[{\"text\":\"a\"}]}\n\n"
                 " data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
                 "dat: {\"choices\":[{\"text\":\"a\"}]}\n\n"
                 "data {\"choices\":[{\"text\":\"a\"}]}\n\n"
                 ":data: {\"choices\":[{\"text\":\"a\"}]}\n\n", &none);

    /* An event that is cut off does not reach into the next one. */

    check_events("data: {\"choices\":[{\"x\":\"\n\n"
                 EVENT("{\"choices\":[{\"text\":\"a\"}]}"), &one);
    check_events("data: {\"x\":[[{\"\\\n\n"
                 EVENT("{\"choices\":[{\"text\":\"a\"}]}"), &one);
    check_events("data: {\"x\":[[[\n\n"
                 EVENT("{\"choices\":[{\"text\":\"a\"}],\"usage\":{"
                       "\"prompt_tokens\":12}}"), &split);
    check_events(CUT CUT CUT CUT CUT CUT
                 "data: {\"choices\":[{\"text\":\"a\"}]}\n"
                 "data: {\"choices\":[{\"text\":\"b\"}]}\n"
                 "data: [DONE]\n", &two);
    check_events("data: {\"choices\":[{\"t\\u00\n\n"
                 EVENT("{\"choices\":[{\"text\":\"a\"}]}"), &one);
    check_events("data: junk {\"choices\":[{\"text\":\"a\"}]}\n\n", &none);

    check_events("\n\n\ndata: [DONE]", &done);
    check_events("data:  [DONE] \n\n", &done);
    check_events("data: [DONE\n\ndata: DONE]\n\ndata: [[DONE]]\n\n"
                 "data: \"[DONE]\"\n\nevent: [DONE]\n\n", &none);
    check_events("data: [DO\ndata: NE]\n\n", &none);
    check_events("", &none);
}


static void
test_numbers(void **state)
{
    uint32_t  i;
    char      body[128];
    want_t    w = { 0, NONE, NONE, NONE, 0, 0 };

    static const struct {
        const char  *text;
        uint64_t     n;
    } numbers[] = {
        { "0", 0 }, { "7", 7 }, { " 7 ", 7 }, { "123456", 123456 },
        { "999999999999999999", 999999999999999999 },
        { "1000000000000000000", NONE }, { "99999999999999999999999", NONE },
        { "-1", NONE }, { "1.5", NONE }, { "1e3", NONE }, { "\"7\"", NONE },
        { "null", NONE }, { "true", NONE }, { "[7]", NONE },
        { "{\"prompt_tokens\":7}", NONE }
    };

    (void) state;

    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        w.prompt = numbers[i].n;

        (void) snprintf(body, sizeof(body),
                        EVENT("{\"usage\":{\"prompt_tokens\":%s}}"),
                        numbers[i].text);
        check_events(body, &w);

        (void) snprintf(body, sizeof(body),
                        EVENT("{\"usage\":{\"prompt_tokens\":%s,\"a\":9}}"),
                        numbers[i].text);
        check_events(body, &w);
    }

    /* The last one that is told counts, and null tells nothing. */

    w.prompt = 5;
    w.completion = 3;
    check_events(EVENT("{\"usage\":{\"prompt_tokens\":4,"
                       "\"completion_tokens\":1}}")
                 EVENT("{\"usage\":{\"prompt_tokens\":5,"
                       "\"completion_tokens\":3}}")
                 EVENT("{\"usage\":{\"prompt_tokens\":null}}"), &w);

    w.prompt = NONE;
    w.completion = NONE;
    check_events(EVENT("{\"prompt_tokens\":4,\"x\":{\"usage\":{"
                       "\"prompt_tokens\":4}},\"usage\":{\"y\":{"
                       "\"prompt_tokens\":4}}}")
                 EVENT("{\"usage\":[{\"prompt_tokens\":4}]}")
                 EVENT("{\"usage\":{\"prompt_tokens_details\":{"
                       "\"prompt_tokens\":4},\"prompt_tokens_\":4,"
                       "\"output_tokens_details\":{\"cached_tokens\":4}}}"),
                 &w);
}


static void
test_json(void **state)
{
    const want_t  chat = { 1, 11, 3, 8, 1, 0 };
    const want_t  anthropic = { 1, 25, 15, 20, 1, 0 };
    const want_t  responses = { 1, 36, 87, 12, 1, 0 };
    const want_t  failed = { 1, NONE, NONE, NONE, 1, 1 };
    const want_t  plain = { 1, NONE, NONE, NONE, 1, 0 };
    const want_t  open = { 1, 11, NONE, NONE, 0, 0 };
    const want_t  junk = { 1, NONE, NONE, NONE, 0, 0 };
    const want_t  none = { 0, NONE, NONE, NONE, 0, 0 };

    (void) state;

    check(AIBRIX_BODY_JSON,
          "{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":"
          "\"a } \\\" ] b\",\"tool_calls\":[]}}],\r\n \"usage\" : {"
          "\"prompt_tokens\" : 11 , \"completion_tokens\":3,"
          "\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n", &chat);

    check(AIBRIX_BODY_JSON,
          "{\"type\":\"message\",\"content\":[{\"type\":\"text\",\"text\":"
          "\"Hi\"}],\"usage\":{\"input_tokens\":25,\"output_tokens\":15,"
          "\"cache_read_input_tokens\":20}}", &anthropic);

    check(AIBRIX_BODY_JSON,
          "{\"object\":\"response\",\"error\":null,\"output\":[{\"content\":[{"
          "\"text\":\"Hi\"}]}],\"usage\":{\"input_tokens\":36,"
          "\"input_tokens_details\":{\"cached_tokens\":12},"
          "\"output_tokens\":87}}", &responses);

    check(AIBRIX_BODY_JSON, "{\"error\":{\"message\":\"no\"}}", &failed);
    check(AIBRIX_BODY_JSON, " [{\"usage\":{\"prompt_tokens\":1}},\"]\"]",
          &plain);
    check(AIBRIX_BODY_JSON, "{}", &plain);
    check(AIBRIX_BODY_JSON, "{\"type\":\"message_stop\"}", &plain);
    check(AIBRIX_BODY_JSON, "{\"usage\":{\"prompt_tokens\":11}", &open);
    check(AIBRIX_BODY_JSON, "{\"usage\":{\"prompt_tokens\":11", &junk);
    check(AIBRIX_BODY_JSON, "{\"x\":\"}", &junk);
    check(AIBRIX_BODY_JSON, "{\"type\":\"message_stop\",", &junk);
    check(AIBRIX_BODY_JSON, "<html>{}</html>", &junk);
    check(AIBRIX_BODY_JSON, "\n", &junk);
    check(AIBRIX_BODY_JSON, "", &none);
}


/* The piece in which the first byte of content comes is the one told. */

static void
test_first(void **state)
{
    size_t           at, hi, you;
    uint32_t         n;
    aibrix_events_t  e;

    static const char  body[] =
        ": hello\n\n"
        CHAT("{\"role\":\"assistant\",\"content\":\"\"}")
        CHAT("{\"content\":\"Hi\"}")
        CHAT("{\"content\":\" you\"}");

    (void) state;

    hi = (size_t) (strstr(body, "Hi") - body);
    you = (size_t) (strstr(body, " you") - body);
    aibrix_events_init(&e, AIBRIX_BODY_EVENTS);

    for (at = 0; at < sizeof(body) - 1; at++) {
        n = feed(&e, body + at, 1);

        assert_int_equal(n, at == hi || at == you);
        assert_int_equal(e.contents, (at >= hi) + (at >= you));
    }

    assert_int_equal(e.contents, 2);
}


/* Megabytes in one event, and nesting without end, in constant memory. */

static void
test_huge(void **state)
{
    char             *big;
    size_t            i;
    uint32_t          n;
    const size_t      size = 4 * 1024 * 1024;
    aibrix_events_t   e;

    (void) state;

    assert_true(sizeof(aibrix_events_t) <= 256);

    big = malloc(size);
    assert_non_null(big);
    memset(big, 'x', size);

    aibrix_events_init(&e, AIBRIX_BODY_EVENTS);

    n = feed_text(&e, "data: {\"x\":\"");
    n += feed(&e, big, size);
    assert_int_equal(n, 0);
    n = feed_text(&e, "\",\"choices\":[{\"text\":\"");
    assert_int_equal(n, 0);
    n = feed(&e, big, size);
    assert_int_equal(n, 1);
    n = feed(&e, big, size);
    n += feed_text(&e, "\"}],\"usage\":{\"prompt_tokens\":3}}\n\n");
    assert_int_equal(n, 0);
    assert_int_equal(e.usage.prompt, 3);

    memset(big, '[', size);
    n = feed_text(&e, "data: {\"x\":");
    n += feed(&e, big, size);
    memset(big, ']', size);
    n += feed(&e, big, size);
    assert_int_equal(n, 0);
    n = feed_text(&e, ",\"choices\":[{\"text\":\"a\"}]}\n\n");
    assert_int_equal(n, 1);

    /* A key as long as memory; two that begin or end as one we know. */

    memset(big, 'u', size);
    (void) feed_text(&e, "data: {\"");
    (void) feed(&e, big, size);
    (void) feed_text(&e, "\":{\"prompt_tokens\":9},\"");
    (void) feed(&e, big, 256);
    (void) feed_text(&e, "usage\":{\"prompt_tokens\":9},\"usag");
    (void) feed_text(&e, "e\\u0000\":{\"prompt_tokens\":9}}\n\n");
    assert_int_equal(e.usage.prompt, 3);

    /* Line ends only: each byte is looked at a few times, not once a line. */

    memset(big, '\r', size);
    assert_int_equal(feed(&e, big, size), 0);
    memset(big, '\n', size);
    assert_int_equal(feed(&e, big, size), 0);

    for (i = 0; i < 100000; i++) {
        n = feed_text(&e, EVENT("{\"choices\":[{\"text\":\"a\"}]}"));
        assert_int_equal(n, 1);
    }

    assert_int_equal(e.contents, 100002);
    free(big);
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_chat_fields),
        cmocka_unit_test(test_completions),
        cmocka_unit_test(test_anthropic),
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_first),
        cmocka_unit_test(test_huge),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
