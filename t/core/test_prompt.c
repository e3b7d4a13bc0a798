
#define XXH_INLINE_ALL

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <xxhash.h>

#include "prompt.h"


#define MAX_PROMPT   (1024 * 1024)
#define SPANS        64
#define RANDOM_CUTS  20

#define WHOLE        SIZE_MAX
#define RANDOM       0

#define COMPLETIONS  AIBRIX_API_COMPLETIONS
#define CHAT         AIBRIX_API_CHAT
#define RESPONSES    AIBRIX_API_RESPONSES
#define EMBEDDINGS   AIBRIX_API_EMBEDDINGS
#define RERANK       AIBRIX_API_RERANK
#define CLASSIFY     AIBRIX_API_CLASSIFY
#define UNKNOWN      AIBRIX_API_UNKNOWN


typedef struct {
    size_t     live;
    size_t     calls;
    size_t     bytes;
    size_t     fail_at;         /* the call that fails, from 1; 0: none */
} heap_t;


typedef struct {
    int        ok;
    int        fed;             /* what the last feed() returned */
    size_t     stopped;         /* bytes fed until it returned 0 */
    int        stream;
    uint64_t   tenant;
    size_t     model_len;
    char       model[AIBRIX_PROMPT_MODEL_MAX];
    size_t     len;
    char      *text;
} result_t;


typedef struct {
    char      *data;
    size_t     len;
    size_t     size;
} buffer_t;


static uint64_t  seed;


static uint32_t
next_random(void)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t) (seed >> 33);
}


static void *
heap_alloc(void *data, size_t size)
{
    heap_t  *heap = data;

    heap->calls++;

    if (heap->calls == heap->fail_at) {
        return NULL;
    }

    heap->live++;
    heap->bytes += size;

    return malloc(size);
}


static void
heap_free(void *data, void *p)
{
    heap_t  *heap = data;

    assert_non_null(p);

    heap->live--;
    free(p);
}


static void
put(buffer_t *b, const void *data, size_t len)
{
    if (len > b->size - b->len) {
        b->size = (b->len + len) * 2;
        b->data = realloc(b->data, b->size);
        assert_non_null(b->data);
    }

    memcpy(b->data + b->len, data, len);
    b->len += len;
}


static void
puts_to(buffer_t *b, const char *s)
{
    put(b, s, strlen(s));
}


static void
repeat(buffer_t *b, const char *s, size_t times)
{
    size_t  i, n;

    n = strlen(s);

    for (i = 0; i < times; i++) {
        put(b, s, n);
    }
}


/* The bytes fed lie in a block of just their size, gone after the call. */
static int
feed_copy(aibrix_prompt_t *p, const char *data, size_t len)
{
    int    rc;
    char  *copy;

    copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, data, len);

    rc = aibrix_prompt_feed(p, copy, len);

    memset(copy, '"', len);
    free(copy);

    return rc;
}


static void
feed_all(aibrix_prompt_t *p, const char *body, size_t len, size_t step,
    result_t *r)
{
    size_t  n, at;

    r->fed = 1;
    r->stopped = len;

    for (at = 0; at < len; at += n) {
        n = step == RANDOM ? next_random() % 40 : step;
        n = n < len - at ? n : len - at;

        r->fed = feed_copy(p, body + at, n);

        if (!r->fed) {
            r->stopped = at + n;
            return;
        }
    }
}


static void
take_text(const aibrix_prompt_t *p, result_t *r)
{
    size_t         i, n, at;
    aibrix_span_t  spans[SPANS];

    n = aibrix_prompt_text(p, spans, SPANS);
    assert_true(n <= SPANS);

    r->len = aibrix_prompt_text_len(p);
    r->text = malloc(r->len + 1);
    assert_non_null(r->text);

    at = 0;

    for (i = 0; i < n; i++) {
        assert_true(spans[i].len > 0);
        assert_true(at + spans[i].len <= r->len);
        memcpy(r->text + at, spans[i].data, spans[i].len);
        at += spans[i].len;
    }

    assert_int_equal(at, r->len);
}


static result_t
run(aibrix_api_e api, const char *body, size_t len, size_t max, int complete,
    size_t step)
{
    heap_t            heap;
    result_t          r;
    aibrix_span_t     model;
    aibrix_alloc_t    alloc;
    aibrix_prompt_t  *p;

    memset(&r, 0, sizeof(r));
    memset(&heap, 0, sizeof(heap));

    alloc.alloc = heap_alloc;
    alloc.free = heap_free;
    alloc.data = &heap;

    p = aibrix_prompt_create(api, max, &alloc);
    assert_non_null(p);

    feed_all(p, body, len, step, &r);

    r.ok = aibrix_prompt_finish(p, complete);
    r.stream = aibrix_prompt_stream(p);
    r.tenant = aibrix_prompt_tenant(p, 7);

    model = aibrix_prompt_model(p);
    assert_true(model.len <= sizeof(r.model));
    r.model_len = model.len;
    memcpy(r.model, model.data, model.len);

    take_text(p, &r);
    assert_true(r.len <= max);

    aibrix_prompt_destroy(p);
    assert_int_equal(heap.live, 0);

    return r;
}


static void
same(const result_t *a, const result_t *b)
{
    assert_int_equal(a->ok, b->ok);
    assert_int_equal(a->fed, b->fed);
    assert_int_equal(a->stream, b->stream);
    assert_true(a->tenant == b->tenant);
    assert_int_equal(a->model_len, b->model_len);
    assert_memory_equal(a->model, b->model, a->model_len);
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->text, b->text, a->len);
}


/* Reads the body whole, by bytes and at random cuts: all must agree. */
static result_t
run_all(aibrix_api_e api, const char *body, size_t len, size_t max,
    int complete)
{
    unsigned  i;
    result_t  r, cut;

    r = run(api, body, len, max, complete, WHOLE);

    for (i = 0; i <= RANDOM_CUTS; i++) {
        cut = run(api, body, len, max, complete, i ? RANDOM : 1);
        same(&r, &cut);
        free(cut.text);
    }

    return r;
}


static void
expect(result_t r, const char *model, int stream, const void *text,
    size_t len)
{
    assert_int_equal(r.ok, 1);
    assert_int_equal(r.stream, stream);
    assert_int_equal(r.model_len, strlen(model));
    assert_memory_equal(r.model, model, r.model_len);

    if (r.len != len || memcmp(r.text, text, len) != 0) {
        print_error("text \"%.*s\" is not \"%.*s\"\n", (int) r.len, r.text,
                    (int) len, (const char *) text);
        fail();
    }

    free(r.text);
}


static void
check(aibrix_api_e api, const char *body, const char *model, int stream,
    const char *text)
{
    result_t  r;

    r = run_all(api, body, strlen(body), MAX_PROMPT, 1);
    expect(r, model, stream, text, strlen(text));
}


static void
check_text(aibrix_api_e api, const char *body, const char *text)
{
    check(api, body, "", 0, text);
}


static void
check_bytes(aibrix_api_e api, const char *body, const void *text, size_t len)
{
    expect(run_all(api, body, strlen(body), MAX_PROMPT, 1), "", 0, text, len);
}


static void
reject_bytes(const char *body, size_t len, int complete)
{
    result_t  r;

    r = run_all(UNKNOWN, body, len, MAX_PROMPT, complete);

    if (r.ok) {
        print_error("\"%.*s\" was taken\n", (int) len, body);
        fail();
    }

    assert_int_equal(r.len, 0);
    assert_int_equal(r.model_len, 0);
    assert_int_equal(r.stream, 0);
    assert_true(r.tenant == 0);

    free(r.text);
}


static void
reject(const char *body)
{
    reject_bytes(body, strlen(body), 1);
}


static void
check_head(aibrix_api_e api, const char *body, const char *model,
    const char *text)
{
    expect(run_all(api, body, strlen(body), MAX_PROMPT, 0), model, 0, text,
           strlen(text));
}


static uint64_t
tenant_of(const char *body)
{
    result_t  r;

    r = run_all(CHAT, body, strlen(body), MAX_PROMPT, 1);
    assert_int_equal(r.ok, 1);
    free(r.text);

    return r.tenant;
}


static void
test_api(void **state)
{
    size_t  i;

    static const struct {
        const char    *path;
        aibrix_api_e   api;
    } paths[] = {
        { "/v1/chat/completions", CHAT },
        { "/v1/chat/completions/", CHAT },
        { "/v1/chat/completions?x=/v1/completions", CHAT },
        { "/chat/completions", CHAT },
        { "/v1/messages", CHAT },
        { "/v1/completions", COMPLETIONS },
        { "/openai/deployments/x/completions", COMPLETIONS },
        { "/v1/xchat/completions", COMPLETIONS },
        { "/completions", COMPLETIONS },
        { "/v1/responses", RESPONSES },
        { "/v1/embeddings/?a", EMBEDDINGS },
        { "/v2/rerank", RERANK },
        { "/classify", CLASSIFY },
        { "/v1/messages/count_tokens", UNKNOWN },
        { "/v1/xcompletions", UNKNOWN },
        { "completions", UNKNOWN },
        { "/v1/Completions", UNKNOWN },
        { "/v1/completions//", UNKNOWN },
        { "/v1/completion", UNKNOWN },
        { "/", UNKNOWN },
        { "?", UNKNOWN },
        { "", UNKNOWN }
    };

    (void) state;

    for (i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        assert_int_equal(aibrix_prompt_api(paths[i].path,
                                           strlen(paths[i].path)),
                         paths[i].api);
    }

    assert_int_equal(aibrix_prompt_api(NULL, 0), UNKNOWN);
    assert_int_equal(aibrix_prompt_api("/v1/completions", 14), UNKNOWN);
}


static void
test_model_and_stream(void **state)
{
    (void) state;

    check(COMPLETIONS, "{\"model\":\"m\",\"stream\":true,\"prompt\":\"p\"}",
          "m", 1, "p");
    check(COMPLETIONS, " \t\r\n{ \"prompt\" : \"p\" , \"stream\" : false , "
          "\"model\" : \"m/n\" } \r\n\t", "m/n", 0, "p");
    check(COMPLETIONS, "{\"mod\\u0065l\":\"a\\/b\\u00e9\"}",
          "a/b\xc3\xa9", 0, "");
    check(COMPLETIONS, "{\"stream\":\"true\"}", "", 0, "");
    check(COMPLETIONS, "{\"stream\":1}", "", 0, "");
    check(COMPLETIONS, "{\"stream\":[true]}", "", 0, "");
    check(COMPLETIONS, "{\"stream\":true,\"stream\":null}", "", 0, "");
    check(COMPLETIONS, "{\"stream\":false,\"stream\":true}", "", 1, "");
    check(COMPLETIONS, "{\"model\":5}", "", 0, "");
    check(COMPLETIONS, "{\"model\":{\"model\":\"m\"}}", "", 0, "");
    check(COMPLETIONS, "{\"model\":\"a\",\"model\":\"b\"}", "b", 0, "");
    check(COMPLETIONS, "{\"model\":\"a\",\"model\":[\"b\"]}", "", 0, "");
    check(COMPLETIONS, "{}", "", 0, "");
}


static void
test_look_alikes(void **state)
{
    (void) state;

    check(CHAT, "{\"x\":\"\\\"model\\\":\\\"no\\\",\",\"messages\":"
          "[{\"role\":\"\\\"content\\\":\\\"no\\\"\",\"content\":\"yes\"}]}",
          "", 0, "yes");
    check(CHAT, "{\"metadata\":{\"model\":\"no\",\"stream\":true,\"messages\":"
          "[{\"content\":\"no\"}],\"tools\":[1]},\"model\":\"yes\"}",
          "yes", 0, "");
    check(CHAT, "{\"messages\":[{\"model\":\"no\",\"tools\":[1],"
          "\"a\":{\"content\":\"no\"},\"b\":[{\"content\":\"no\"}],"
          "\"content\":\"yes\",\"contents\":\"no\",\"Content\":\"no\"}]}",
          "", 0, "yes");
    check(CHAT, "{\"Model\":\"no\",\"model \":\"no\",\"mode\":\"no\","
          "\"modelmodelmodelmodelmodelmodelmodel\":\"no\",\"\":\"no\","
          "\"model\\u0000\":\"no\"}", "", 0, "");
    check(CHAT, "{\"x\":\"model\",\"y\":\"model\"}", "", 0, "");
}


static void
test_chat(void **state)
{
    (void) state;

    check_text(CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"},"
               "{\"content\":\"b\\n\",\"role\":\"user\"}]}", "a b\n");
    check_text(CHAT, "{\"messages\":[{\"content\": [ {\"type\":\"text\", "
               "\"text\":\"\\u0041\"} ] },{\"content\":\"b\"}]}",
               "[ {\"type\":\"text\", \"text\":\"\\u0041\"} ] b");
    check_text(CHAT, "{\"messages\":[{\"content\":null},{\"content\": -1.5e3 "
               "},{\"content\":true},{\"content\":{\"a\": {}}}]}",
               "null -1.5e3 true {\"a\": {}}");
    check_text(CHAT, "{\"messages\":[{\"role\":\"a\"},{},{\"content\":\"\"},"
               "{\"content\":\"x\"},{}]}", "   x ");
    check_text(CHAT, "{\"messages\":[1,\"s\",null,[{\"content\":\"no\"}],"
               "{\"content\":\"a\"},[[]],{\"content\":\"b\"},false]}", "a b");
    check_text(CHAT, "{\"messages\":[]}", "");
    check_text(CHAT, "{\"messages\":\"no\"}", "");
    check_text(CHAT, "{\"messages\":{\"content\":\"no\"}}", "");
    check_text(CHAT, "{\"messages\":null}", "");
    check_text(CHAT, "{\"prompt\":\"no\",\"input\":\"no\",\"query\":\"no\","
               "\"instructions\":\"no\"}", "");
}


static void
test_duplicates(void **state)
{
    (void) state;

    check_text(CHAT, "{\"messages\":[{\"content\":\"a\"},{\"content\":"
               "\"first\",\"content\":[2],\"content\":\"last\"},"
               "{\"content\":\"c\"}]}", "a last c");
    check_text(CHAT, "{\"messages\":[{\"content\":\"a\",\"content\":null}]}",
               "null");
    check_text(CHAT, "{\"messages\":[{\"content\":\"a\"}],"
               "\"messages\":[{\"content\":\"b\"}]}", "b");
    check_text(CHAT, "{\"messages\":[{\"content\":\"a\"}],"
               "\"messages\":null}", "");
    check_text(CHAT, "{\"tools\":[1],\"tools\":[2],\"system\":\"a\","
               "\"system\":\"b\",\"messages\":[{\"content\":\"c\"}]}",
               "[2] b c");
    check_text(CHAT, "{\"tools\":[1],\"tools\":null}", "");
    check_text(CHAT, "{\"tools\":[1],\"tools\":[]}", "");
    check_text(CHAT, "{\"tools\":[],\"tools\":[1]}", "[1]");
    check_text(CHAT, "{\"tools\":[],\"tools\":{}}", "{}");
    check_bytes(COMPLETIONS, "{\"prompt\":\"a\",\"prompt\":[1]}",
                "\0\0\0\1", 4);
    check_text(RERANK, "{\"query\":\"a\",\"documents\":[\"x\",\"y\"],"
               "\"query\":\"b\",\"documents\":[\"z\"]}", "b z");
    check_text(RERANK, "{\"query\":\"a\",\"documents\":[\"x\"],"
               "\"query\":null}", "x");
}


static void
test_completions(void **state)
{
    (void) state;

    check_text(COMPLETIONS, "{\"prompt\":\"a \\\"b\\\"\"}", "a \"b\"");
    check_text(COMPLETIONS, "{\"prompt\":[\"a\",\"\",\"b\"]}", "a  b");
    check_text(COMPLETIONS, "{\"prompt\":[]}", "");
    check_text(COMPLETIONS, "{\"prompt\":{\"a\":1}}", "");
    check_text(COMPLETIONS, "{\"prompt\":[{\"content\":\"no\"},null,true]}",
               "");
    check_text(COMPLETIONS, "{\"prompt\":\"p\",\"messages\":[{\"content\":"
               "\"no\"}],\"tools\":[1],\"system\":\"no\"}", "p");

    check_bytes(COMPLETIONS, "{\"prompt\":[1,256, 4294967295 ,0]}",
                "\0\0\0\1\0\0\1\0\xff\xff\xff\xff\0\0\0\0", 16);
    check_bytes(COMPLETIONS, "{\"prompt\":[[1,2],[],[3]]}",
                "\0\0\0\1\0\0\0\2\0\0\0\3", 12);
    check_bytes(COMPLETIONS, "{\"prompt\":[[1,\"no\",[9],{\"a\":9}],2]}",
                "\0\0\0\1\0\0\0\2", 8);
}


/* The digits that fit into 32 bits are where the hash of the rest begins. */
static void
test_odd_ids(void **state)
{
    size_t       i;
    char         body[64];
    char         bytes[8] = { 0, 0, 0, 0, 0, 0, 2, 1 };
    uint32_t     id;
    const char  *c;

    static const struct {
        const char  *fits;
        const char  *rest;
    } numbers[] = {
        { "", "-1" }, { "", "-0" }, { "1", ".0" }, { "1", "e2" },
        { "0", ".5" }, { "429496729", "6" }, { "1844674407", "3709551617" },
        { "999999999", "9999999999999999999999999999" }, { "12", "E-7" },
        { "4294967295", ".25" }
    };

    (void) state;

    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        id = (uint32_t) strtoul(numbers[i].fits, NULL, 10);

        for (c = numbers[i].rest; *c != '\0'; c++) {
            id = (id ^ (uint8_t) *c) * 16777619U;
        }

        bytes[0] = (char) (id >> 24);
        bytes[1] = (char) (id >> 16);
        bytes[2] = (char) (id >> 8);
        bytes[3] = (char) id;

        snprintf(body, sizeof(body), "{\"prompt\":[%s%s,513]}",
                 numbers[i].fits, numbers[i].rest);
        check_bytes(COMPLETIONS, body, bytes, 8);
    }
}


static void
test_responses(void **state)
{
    (void) state;

    check_text(RESPONSES, "{\"input\":\"a\"}", "a");
    check_text(RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":\"a\"},"
               "{\"content\":[1, 2]},\"s\",{\"type\":\"reasoning\"},"
               "{\"content\":\"b\"}]}", "a [1, 2] s  b");
    check_text(RESPONSES, "{\"input\":\"a\",\"instructions\":\"i\","
               "\"tools\":[ {} ]}", "[ {} ] i a");
    check_text(RESPONSES, "{\"input\":{\"content\":\"no\"}}", "");
    check_text(RESPONSES, "{\"input\":\"a\",\"system\":\"no\"}", "a");
    check_text(RESPONSES, "{\"instructions\":null,\"input\":\"a\"}", "a");
}


static void
test_embeddings_and_classify(void **state)
{
    (void) state;

    check_text(EMBEDDINGS, "{\"input\":\"a\"}", "a");
    check_text(EMBEDDINGS, "{\"input\":[\"a\",\"b\"],\"tools\":[1],"
               "\"instructions\":\"no\"}", "a b");
    check_bytes(EMBEDDINGS, "{\"input\":[[1],[2]]}", "\0\0\0\1\0\0\0\2", 8);
    check_bytes(EMBEDDINGS, "{\"input\":[7]}", "\0\0\0\7", 4);
    check_text(CLASSIFY, "{\"input\":[\"a\",\"b\"]}", "a b");
    check_text(CLASSIFY, "{\"input\":\"a\"}", "a");
}


static void
test_rerank(void **state)
{
    (void) state;

    check_text(RERANK, "{\"query\":\"q\",\"documents\":[\"a\",\"b\"]}",
               "q a b");
    check_text(RERANK, "{\"documents\":[\"a\",{\"text\": \"b\"},\"\"],"
               "\"query\":\"q\"}", "q a {\"text\": \"b\"} ");
    check_text(RERANK, "{\"query\":\"\",\"documents\":[\"a\"]}", " a");
    check_text(RERANK, "{\"query\":\"q\",\"documents\":[]}", "q");
    check_text(RERANK, "{\"query\":\"q\",\"documents\":[\"\"]}", "q ");
    check_text(RERANK, "{\"query\":\"q\"}", "q");
    check_text(RERANK, "{\"documents\":[\"a\",\"b\"]}", "a b");
    check_text(RERANK, "{\"query\":\"q\",\"documents\":[1,null,[\"no\"]]}",
               "q");
    check_text(RERANK, "{\"query\":\"q\",\"documents\":\"a\"}", "q a");
    check_text(RERANK, "{\"query\":{\"q\" :1},\"documents\":{\"content\":[]}}",
               "{\"q\" :1} {\"content\":[]}");
}


static void
test_tools_and_system(void **state)
{
    (void) state;

    check_text(CHAT, "{\"messages\":[{\"content\":\"m\"}],\"system\":\"s\","
               "\"tools\": [ {\"a\":\"\\u0041\"} ] }",
               "[ {\"a\":\"\\u0041\"} ] s m");
    check_text(CHAT, "{\"functions\":[2],\"tools\":[1],"
               "\"messages\":[{\"content\":\"m\"}]}", "[1] [2] m");
    check_text(CHAT, "{\"system\": [{\"type\":\"text\"} ],"
               "\"messages\":[{\"content\":\"m\"}]}",
               "[{\"type\":\"text\"} ] m");
    check_text(CHAT, "{\"tools\":[1],\"system\":\"s\",\"messages\":[]}",
               "[1] s");
    check_text(CHAT, "{\"tools\":null,\"system\":null,"
               "\"messages\":[{\"content\":\"m\"}]}", "m");
    check_text(CHAT, "{\"tools\":[ \t\r\n],\"functions\":[],\"system\":\"\","
               "\"messages\":[{\"content\":\"m\"}]}", "m");
    check_text(CHAT, "{\"tools\":[[]],\"messages\":[{\"content\":\"m\"}]}",
               "[[]] m");
    check_text(CHAT, "{\"tools\":{},\"functions\":\"f\\n\",\"system\":0}",
               "{} \"f\\n\" 0");
}


static void
test_unknown_api(void **state)
{
    (void) state;

    check_text(UNKNOWN, "{\"prompt\":\"no\",\"input\":\"no\",\"query\":\"no\","
               "\"system\":\"s\",\"tools\":[1],\"instructions\":\"no\","
               "\"messages\":[{\"content\":\"m\"}]}", "[1] s m");
    check_text(UNKNOWN, "{\"input\":\"no\",\"documents\":[\"no\"],"
               "\"prompt\":\"p\",\"tools\":[1],\"messages\":null}", "p");
    check_text(UNKNOWN, "{\"query\":\"no\",\"input\":\"i\","
               "\"instructions\":\"s\",\"system\":\"no\"}", "s i");
    check_text(UNKNOWN, "{\"documents\":[\"d\"],\"query\":\"q\","
               "\"system\":\"no\"}", "q d");
    check_text(UNKNOWN, "{\"text\":\"no\",\"tools\":[1]}", "");
}


static void
test_escapes(void **state)
{
    (void) state;

    check_text(COMPLETIONS, "{\"prompt\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}",
               "\"\\/\b\f\n\r\t");
    check_text(COMPLETIONS, "{\"prompt\":\"\\u0041\\u00e9\\u20AC\\uffff"
               "\\u007f\\u0080\\u07ff\\u0800\"}",
               "A\xc3\xa9\xe2\x82\xac\xef\xbf\xbf"
               "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80");
    check_text(COMPLETIONS, "{\"prompt\":\"x\\uD83D\\ude00y\\ud800\\udc00"
               "\\udbff\\udfff\"}",
               "x\xf0\x9f\x98\x80y\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
    check_text(COMPLETIONS, "{\"prompt\":\"\\ud83d\"}", "\xef\xbf\xbd");
    check_text(COMPLETIONS, "{\"prompt\":\"\\ude00a\"}", "\xef\xbf\xbd" "a");
    check_text(COMPLETIONS, "{\"prompt\":\"\\ud83da\\ud83d\\n\"}",
               "\xef\xbf\xbd" "a\xef\xbf\xbd\n");
    check_text(COMPLETIONS, "{\"prompt\":\"\\ud83d\\ud83d\\ude00\"}",
               "\xef\xbf\xbd\xf0\x9f\x98\x80");
    check_text(COMPLETIONS, "{\"prompt\":\"\\ud83d\\u0041\\ude00\\ud83d\"}",
               "\xef\xbf\xbd" "A\xef\xbf\xbd\xef\xbf\xbd");
    check_bytes(COMPLETIONS, "{\"prompt\":\"a\\u0000b\"}", "a\0b", 3);
    check_text(COMPLETIONS, "{\"prompt\":\"\xff\xc3(\x80\xf0\x9f\x98\x80"
               "\x7f\"}", "\xff\xc3(\x80\xf0\x9f\x98\x80\x7f");
}


/* Runs of every length around the widths that the scan works in. */
static void
test_runs(void **state)
{
    size_t     i, n;
    buffer_t   body, text;

    static const char  *breaks[] = { "\\n", "\\u0041", "\\\"" };
    static const char  *broken[] = { "\n", "A", "\"" };

    (void) state;

    for (n = 0; n < 600; n += n < 40 ? 1 : 37) {
        memset(&body, 0, sizeof(body));
        memset(&text, 0, sizeof(text));

        puts_to(&body, "{\"prompt\":\"");

        for (i = 0; i < 9; i++) {
            repeat(&body, "\xe2", n);
            puts_to(&body, breaks[i % 3]);
            repeat(&text, "\xe2", n);
            puts_to(&text, broken[i % 3]);
        }

        puts_to(&body, "\"}");

        expect(run_all(COMPLETIONS, body.data, body.len, MAX_PROMPT, 1), "",
               0, text.data, text.len);

        body.data[body.len - 3 - n % 2] = '\x1f';
        reject_bytes(body.data, body.len, 1);

        free(body.data);
        free(text.data);
    }
}


/* Decoded characters of each width, more than are gathered at once. */
static void
test_many_escapes(void **state)
{
    size_t     i;
    buffer_t   body, text;

    static const char  *escapes[] = {
        "\\t", "\\u0041", "\\u00e9", "\\u20ac", "\\ud83d\\ude00", "x\\u20ac"
    };
    static const char  *decoded[] = {
        "\t", "A", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
        "x\xe2\x82\xac"
    };

    (void) state;

    for (i = 0; i < sizeof(escapes) / sizeof(escapes[0]); i++) {
        memset(&body, 0, sizeof(body));
        memset(&text, 0, sizeof(text));

        puts_to(&body, "{\"prompt\":\"");
        repeat(&body, escapes[i], 2000);
        puts_to(&body, "\"}");
        repeat(&text, decoded[i], 2000);

        expect(run_all(COMPLETIONS, body.data, body.len, MAX_PROMPT, 1), "",
               0, text.data, text.len);

        free(body.data);
        free(text.data);
    }
}


/* Each control character ends the reading, wherever it is in a string. */
static void
test_control_characters(void **state)
{
    int       c;
    char      body[64];
    size_t    at;
    result_t  r;

    (void) state;

    for (c = 0; c <= 0x20; c++) {

        for (at = 0; at < 48; at++) {
            memset(body, 'x', sizeof(body));
            memcpy(body, "{\"\":\"", 5);
            memcpy(body + 5 + 48, "\"}", 2);
            body[5 + at] = (char) c;

            r = run(CHAT, body, 5 + 48 + 2, 16, 1, WHOLE);
            assert_int_equal(r.ok, c == 0x20);
            free(r.text);
        }
    }
}


static void
test_malformed(void **state)
{
    size_t  i;

    static const char  *bodies[] = {
        "", " ", "null", "[]", "[{}]", "\"a\"", "1", "x", "{", "}", "{}}",
        "{} x", "{}{}", "{},", "{]", "{\"a\"}", "{\"a\":}", "{\"a\" 1}",
        "{\"a\":1,}", "{,}", "{,\"a\":1}", "{\"a\":1 \"b\":2}", "{a:1}",
        "{'a':1}", "{1:1}", "{\"a\":1:2}", "{\"a\"::1}", "{\"a\":,1}",
        "{\"a\":[}", "{\"a\":[1}", "{\"a\":[1}}", "{\"a\":{]}",
        "{\"a\":{\"b\":1]}", "{\"a\":[1,]}", "{\"a\":[,]}", "{\"a\":[,1]}",
        "{\"a\":[1 2]}", "{\"a\":[1:2]}", "{\"a\":[\"b\":2]}",
        "{\"a\":[1,,2]}", "{\"a\":1]",
        "{\"a\":01}", "{\"a\":-}", "{\"a\":+1}", "{\"a\":.5}", "{\"a\":1.}",
        "{\"a\":1.e1}", "{\"a\":1e}", "{\"a\":1e+}", "{\"a\":-01}",
        "{\"a\":1e1.5}", "{\"a\":1.2.3}", "{\"a\":0x10}", "{\"a\":1-2}",
        "{\"a\":--1}", "{\"a\":00}", "{\"a\":1f}", "{\"a\":NaN}",
        "{\"a\":Infinity}", "{\"a\":-Infinity}", "{\"a\":tru}",
        "{\"a\":True}", "{\"a\":truee}", "{\"a\":nul}", "{\"a\":nulll}",
        "{\"a\":falsy}", "{\"a\":t rue}", "{\"a\":undefined}",
        "{\"a\":\"\\x41\"}", "{\"a\":\"\\'\"}", "{\"a\":\"\\\"}",
        "{\"a\":\"\\u12\"}", "{\"a\":\"\\u12g4\"}", "{\"a\":\"\\U0041\"}",
        "{\"a\":\"\\u 041\"}", "{\"a\":\"\\N\"}", "{\"a\":\"\n\"}",
        "{\"a\":\"\t\"}", "{\"a\":\"\x01\"}", "{\"\x1f\":1}", "{\"a\":\"b}",
        "{\"a\":1}\f", "\v{}", "{\f}", "{/**/}", "{\"a\":1}//",
        "\xef\xbb\xbf", "\xef\xbb{}", "\xef{}", "\xbb\xbf{}",
        "\xef\xbb\xbf\xef\xbb\xbf{}", " \xef\xbb\xbf{}", "{\xef\xbb\xbf}",
        "\xef\xbb\xbf[]", "\xc2\xa0{}", "{\"tools\":[1}", "{\"model\":\"m\"",
        "{\"messages\":[{\"content\":\"a\"}}", "{\"tools\":[ { ] }",
        "{\"prompt\":[1,2", "{\"prompt\":[1 2]}", "{\"prompt\":[1.]}",
        "--boundary\r\nContent-Disposition: form-data", "model=m&prompt=p",
        "\x1f\x8b\x08"
    };

    (void) state;

    for (i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        reject(bodies[i]);
    }

    reject_bytes("{}\0", 3, 1);
    reject_bytes("\0{}", 3, 1);
    reject_bytes("{\"a\":\"\0\"}", 9, 1);
    reject_bytes("{\"a\":1\0}", 8, 1);
    reject_bytes("{\"a\":tr\0e}", 10, 1);
}


static void
test_stops_early(void **state)
{
    size_t    i;
    result_t  r;

    static const struct {
        const char  *body;
        size_t       stop;          /* bytes up to the one that proves it */
    } bodies[] = {
        { "--boundary", 1 },
        { "  [{}]", 3 },
        { "\xef\xbb\xbfx", 4 },
        { "\xef\xbbx", 3 },
        { "{\"a\":\"\\ux", 9 },
        { "{\"a\":\"\\x", 8 },
        { "{\"a\":trux", 9 },
        { "{\"a\":01", 7 },
        { "{\"a\":1.,", 8 },
        { "{\"a\":[1}", 8 },
        { "{\"a\":1,}", 8 },
        { "{\"a\":\"b\nc", 8 },
        { "{} {", 4 }
    };

    (void) state;

    for (i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        r = run(UNKNOWN, bodies[i].body, strlen(bodies[i].body), MAX_PROMPT,
                1, 1);
        assert_int_equal(r.fed, 0);
        assert_int_equal(r.stopped, bodies[i].stop);
        free(r.text);

        /* and so does a head that is known to be wrong */

        reject_bytes(bodies[i].body, strlen(bodies[i].body), 0);
    }
}


static void
test_well_formed(void **state)
{
    size_t  i;

    static const char  *bodies[] = {
        "{}", "\xef\xbb\xbf{}", "\xef\xbb\xbf \r\n{}\n", "{\"a\":0}",
        "{\"a\":-0}", "{\"a\":-0.0e-0}", "{\"a\":1E+400}", "{\"a\":1e-400}",
        "{\"a\":123456789012345678901234567890.5}", "{\"\":\"\"}",
        "{\"a\":[[],{},[{}],{\"b\":[]}]}", "{\"a\":[1,2 , 3 ]}",
        "{\"a\":true,\"b\":false,\"c\":null}", "{\"a\":1,\"a\":2,\"a\":3}",
        "{ \"a\" : { \"b\" : [ ] } }", "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\x7f\xff\"}", "{\"\xff\":1}"
    };

    (void) state;

    for (i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        check_text(CHAT, bodies[i], "");
    }
}


static void
test_heads(void **state)
{
    (void) state;

    check_head(CHAT, "{", "", "");
    check_head(CHAT, "{\"model\":\"m\",\"messages\":[{\"content\":\"abc",
               "m", "abc");
    check_head(CHAT, "{\"model\":\"m", "", "");
    check_head(CHAT, "{\"model\":\"m\"", "m", "");
    check_head(CHAT, "{\"model\":\"m\",\"model\":\"n", "", "");
    check_head(CHAT, "{\"messages\":[{\"content\":\"abc\\", "", "abc");
    check_head(CHAT, "{\"messages\":[{\"content\":\"abc\\u00", "", "abc");
    check_head(CHAT, "{\"messages\":[{\"content\":\"abc\\ud83d", "", "abc");
    check_head(CHAT, "{\"messages\":[{\"content\":[1, 2", "", "[1, 2");
    check_head(CHAT, "{\"messages\":[{\"content\":\"a\"},{\"role\":\"b",
               "", "a ");
    check_head(CHAT, "{\"tools\":[", "", "");
    check_head(CHAT, "{\"tools\":[{\"a", "", "[{\"a");
    check_head(CHAT, "{\"tools\":[{}],\"messages\":[{\"content\":\"m",
               "", "[{}] m");
    check_head(CHAT, "{\"stream\":tru", "", "");
    check_head(CHAT, "{\"messages\":[{\"content\":\"a\"}]}", "", "a");
    check_head(UNKNOWN, "{\"prompt\":\"p\",\"inp", "", "p");

    reject_bytes("", 0, 0);
    reject_bytes(" \n", 2, 0);
    reject_bytes("\xef\xbb", 2, 0);
    reject_bytes("[", 1, 0);
}


/* The text of each head of a body is a head of the body's text. */
static void
test_heads_grow(void **state)
{
    size_t     n;
    result_t   whole, head;

    static const char  body[] =
        "{\"model\":\"m\",\"tools\":[ {\"a\":[1,\"\\n\"]} ],"
        "\"system\":\"s\\ud83d\\ude00\",\"messages\":[{\"role\":\"u\","
        "\"content\":\"a\\u00e9b\"},{},{\"content\":[ {\"t\":\"x\"} ]},"
        "{\"content\":\"end\"}]}";

    (void) state;

    whole = run(CHAT, body, sizeof(body) - 1, MAX_PROMPT, 1, WHOLE);

    for (n = 1; n < sizeof(body); n++) {
        head = run(CHAT, body, n, MAX_PROMPT, 0, WHOLE);

        assert_int_equal(head.ok, 1);
        assert_true(head.len <= whole.len);
        assert_memory_equal(head.text, whole.text, head.len);
        assert_int_equal(head.model_len, n >= 12);

        free(head.text);
    }

    free(whole.text);
}


/* tenant() as its comment states it, for names that are kept whole. */
static uint64_t
tenant_from(uint8_t *kinds, const char **names)
{
    size_t     i, j, n, len;
    uint8_t    data[512];

    len = 0;

    for (i = 0; i < 3; i++) {
        n = strlen(names[i]);
        data[len++] = kinds[i];

        for (j = 0; j < 8; j++) {
            data[len++] = (uint8_t) ((uint64_t) n >> 8 * j);
        }

        memcpy(data + len, names[i], n);
        len += n;
    }

    return XXH64(data, len, 7);
}


static void
test_tenant(void **state)
{
    size_t     i, j;
    uint64_t   tenants[32];

    static const char  *bodies[] = {
        "{\"model\":\"ab\"}",
        "{\"model\":\"a\",\"cache_salt\":\"b\"}",
        "{\"model\":\"a\",\"lora_path\":\"b\"}",
        "{\"cache_salt\":\"ab\"}",
        "{\"lora_path\":\"ab\"}",
        "{\"model\":\"\"}",
        "{\"cache_salt\":\"\"}",
        "{\"cache_salt\":1}",
        "{\"cache_salt\":\"1\"}",
        "{\"cache_salt\":[ 1]}",
        "{\"cache_salt\":[1]}",
        "{\"lora_path\":false}",
        "{\"model\":\"a\"}",
        "{\"model\":\"a\",\"cache_salt\":\"\"}",
        "{\"model\":\"a\",\"lora_path\":\"\"}",
        "{\"model\":\"a\\u0000\"}"
    };

    (void) state;

    for (i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        tenants[i] = tenant_of(bodies[i]);
        assert_true(tenants[i] != 0);

        for (j = 0; j < i; j++) {
            assert_true(tenants[i] != tenants[j]);
        }
    }

    assert_true(tenant_of("{}") == 0);
    assert_true(tenant_of("{\"model\":null,\"lora_name\":null}") == 0);
    assert_true(tenant_of("{\"model\":1}") == 0);
    assert_true(tenant_of("{\"model\":\"a\",\"model\":1}") == 0);
    assert_true(tenant_of("{\"cache_salt\":\"a\",\"cache_salt\":null}") == 0);

    assert_true(tenant_of("{\"lora_name\":\"a\"}")
                == tenant_of("{\"lora_path\":\"a\"}"));
    assert_true(tenant_of("{\"lora_name\":\"a\"}")
                == tenant_of("{\"adapter_id\":\"\\u0061\"}"));
    assert_true(tenant_of("{\"cache_salt\":\"a\",\"model\":\"m\"}")
                == tenant_of("{\"model\":\"m\",\"cache_salt\":\"a\"}"));
}


static void
test_tenant_encoding(void **state)
{
    (void) state;

    assert_true(tenant_of("{\"model\":\"m\",\"cache_salt\":\"salt\","
                          "\"lora_path\":\"l\"}")
                == tenant_from((uint8_t []) { 1, 1, 1 },
                               (const char *[]) { "m", "salt", "l" }));

    assert_true(tenant_of("{\"model\":\"m\",\"cache_salt\":{\"a\": 1 }}")
                == tenant_from((uint8_t []) { 1, 2, 0 },
                               (const char *[]) { "m", "{\"a\": 1 }", "" }));
}


static void
test_long_names(void **state)
{
    size_t     i, n;
    uint64_t   tenant, last;
    buffer_t   body;
    result_t   r;

    static const size_t  lengths[] = { 255, 256, 257, 300, 5000 };

    (void) state;

    last = 0;

    for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        n = lengths[i];

        memset(&body, 0, sizeof(body));
        puts_to(&body, "{\"model\":\"");
        repeat(&body, "m", n);
        puts_to(&body, "\"}");

        r = run_all(CHAT, body.data, body.len, MAX_PROMPT, 1);

        assert_int_equal(r.ok, 1);
        assert_int_equal(r.model_len, n < 256 ? n : 256);
        assert_true(r.model[r.model_len - 1] == 'm');
        assert_true(r.tenant != last);
        last = r.tenant;
        free(r.text);

        /* the last byte counts, kept or not */

        body.data[body.len - 3] = 'n';
        r = run_all(CHAT, body.data, body.len, MAX_PROMPT, 1);
        tenant = r.tenant;
        assert_true(tenant != last);
        free(r.text);

        free(body.data);
    }
}


static void
test_max_prompt(void **state)
{
    size_t     max;
    result_t   r;

    static const char  body[] =
        "{\"messages\":[{\"content\":\"0123456789\"},{\"content\":[1,2]},"
        "{\"content\":\"abc\"}],\"model\":\"m\",\"tools\":[ 1],"
        "\"stream\":true,\"system\":\"sys\"}";
    static const char  reversed[] =
        "{\"documents\":[\"a\",\"b\"],\"query\":\"qq\"}";
    static const char  taken_back[] =
        "{\"messages\":[{\"content\":\"0123456789\",\"content\":\"a\"},"
        "{\"content\":\"b\"}]}";
    static const char  text[] = "[ 1] sys 0123456789 [1,2] abc";

    (void) state;

    for (max = 0; max < sizeof(text) + 1; max++) {
        r = run_all(CHAT, body, sizeof(body) - 1, max, 1);
        expect(r, "m", 1, text,
               max < sizeof(text) - 1 ? max : sizeof(text) - 1);
    }

    for (max = 0; max < 8; max++) {
        r = run_all(RERANK, reversed, sizeof(reversed) - 1, max, 1);
        expect(r, "", 0, "qq a b", max < 6 ? max : 6);
    }

    /* what fills the budget may be taken back */

    r = run_all(CHAT, taken_back, sizeof(taken_back) - 1, 4, 1);
    expect(r, "", 0, "a b", 3);
}


/* Text over many chunks, and a second value in the chunks of a first. */
static void
test_chunks(void **state)
{
    size_t     i, n;
    char       part[32];
    buffer_t   body, text;

    (void) state;

    memset(&body, 0, sizeof(body));
    memset(&text, 0, sizeof(text));

    puts_to(&body, "{\"messages\":[{\"content\":\"");
    repeat(&body, "0123456789", 5000);
    puts_to(&body, "\",\"content\":\"\"},{\"content\":[");
    repeat(&body, "[],", 20000);
    puts_to(&body, "0]},{\"content\":\"");

    puts_to(&text, " [");
    repeat(&text, "[],", 20000);
    puts_to(&text, "0] ");

    for (i = 0; i < 30000; i++) {
        n = (size_t) snprintf(part, sizeof(part), "%zu,", i);
        put(&body, part, n);
        put(&text, part, n);

        if (i % 100 == 0) {
            puts_to(&body, "\\n");
            puts_to(&text, "\n");
        }
    }

    puts_to(&body, "\"}]}");

    expect(run(CHAT, body.data, body.len, MAX_PROMPT, 1, WHOLE), "", 0,
           text.data, text.len);
    expect(run(CHAT, body.data, body.len, MAX_PROMPT, 1, 1), "", 0,
           text.data, text.len);
    expect(run(CHAT, body.data, body.len, MAX_PROMPT, 1, RANDOM), "", 0,
           text.data, text.len);
    expect(run(CHAT, body.data, body.len, 70000, 1, WHOLE), "", 0,
           text.data, 70000);

    free(body.data);
    free(text.data);
}


static void
test_spans_bounded(void **state)
{
    size_t            n;
    heap_t            heap;
    aibrix_span_t     spans[3];
    aibrix_alloc_t    alloc;
    aibrix_prompt_t  *p;

    static const char  body[] =
        "{\"tools\":[1],\"messages\":[{\"content\":\"m\"}]}";

    (void) state;

    memset(&heap, 0, sizeof(heap));

    alloc.alloc = heap_alloc;
    alloc.free = heap_free;
    alloc.data = &heap;

    p = aibrix_prompt_create(CHAT, MAX_PROMPT, &alloc);
    assert_non_null(p);
    assert_int_equal(aibrix_prompt_feed(p, body, sizeof(body) - 1), 1);

    assert_int_equal(aibrix_prompt_text(p, spans, 3), 0);
    assert_int_equal(aibrix_prompt_finish(p, 1), 1);

    memset(spans, 0, sizeof(spans));
    n = aibrix_prompt_text(p, spans, 1);

    assert_int_equal(n, 3);
    assert_int_equal(spans[0].len, 3);
    assert_null(spans[1].data);

    assert_int_equal(aibrix_prompt_text(p, spans, 3), 3);
    assert_memory_equal(spans[1].data, " ", 1);
    assert_memory_equal(spans[2].data, "m", 1);

    aibrix_prompt_destroy(p);
    assert_int_equal(heap.live, 0);
}


static void
nest(buffer_t *b, const char *before, const char *open, const char *middle,
    const char *close, size_t depth, const char *after)
{
    b->len = 0;

    puts_to(b, before);
    repeat(b, open, depth);
    puts_to(b, middle);
    repeat(b, close, depth);
    puts_to(b, after);
}


static void
test_nesting(void **state)
{
    size_t     i;
    buffer_t   b;
    result_t   r;

    static const size_t  depths[] = {
        63, 64, 65, 255, 256, 257, 10000, 100000, 1048574, 1048575, 1048576,
        2000000
    };

    (void) state;

    memset(&b, 0, sizeof(b));

    for (i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {

        nest(&b, "{\"x\":", "[", "", "]", depths[i], ",\"model\":\"m\"}");
        expect(run(CHAT, b.data, b.len, 16, 1, WHOLE), "m", 0, "", 0);
        expect(run(CHAT, b.data, b.len, 16, 1, RANDOM), "m", 0, "", 0);

        nest(&b, "{\"x\":", "[{\"a\":1,\"b\":[2, {}],\"c\":",
             "{\"d\":\"e\",\"f\":-1}", ",\"g\":[]},3]", depths[i],
             ",\"model\":\"m\"}");
        expect(run(CHAT, b.data, b.len, 16, 1, WHOLE), "m", 0, "", 0);

        nest(&b, "{\"messages\":[{\"content\":", "[", "", "]", depths[i],
             "},{\"content\":\"b\"}],\"model\":\"m\"}");
        expect(run(CHAT, b.data, b.len, 4, 1, WHOLE), "m", 0, "[[[[", 4);

        nest(&b, "{\"prompt\":", "[", "7", "]", depths[i],
             ",\"model\":\"m\"}");
        expect(run(COMPLETIONS, b.data, b.len, 4, 1, WHOLE), "m", 0, "", 0);

        nest(&b, "{\"x\":", "[", "", "]", depths[i] - 1, "}");
        r = run(CHAT, b.data, b.len - 1, 0, 1, WHOLE);
        assert_int_equal(r.ok, 0);
        free(r.text);
    }

    free(b.data);
}


/* A bracket of the wrong kind is found on each level that is kept exactly. */
static void
test_nesting_mismatch(void **state)
{
    size_t     i, level;
    buffer_t   b;
    result_t   r;

    static const size_t  depths[] = { 10, 64, 65, 200, 300, 1000, 5000 };

    (void) state;

    memset(&b, 0, sizeof(b));

    for (i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {

        for (level = 0; level < depths[i]; level += 1 + depths[i] / 100) {
            nest(&b, "{\"x\":", "[{\"a\":", "0", "}]", depths[i], "}");

            r = run(CHAT, b.data, b.len, 16, 1, WHOLE);
            assert_int_equal(r.ok, 1);
            free(r.text);

            b.data[b.len - 2 - 2 * level] = '}';

            r = run(CHAT, b.data, b.len, 16, 1, WHOLE);
            assert_int_equal(r.ok, 0);
            free(r.text);
        }
    }

    free(b.data);
}


static void
test_alloc_failures(void **state)
{
    int               ok, fed, failed;
    size_t            step;
    heap_t            heap;
    buffer_t          body;
    result_t          r;
    unsigned          n;
    aibrix_alloc_t    alloc;
    aibrix_prompt_t  *p;

    (void) state;

    memset(&body, 0, sizeof(body));

    puts_to(&body, "{\"model\":\"m\",\"tools\":[");
    repeat(&body, "[", 2000);
    repeat(&body, "]", 2000);
    puts_to(&body, "],\"system\":\"s\",\"messages\":[{\"content\":\"");
    repeat(&body, "0123456789", 10000);
    puts_to(&body, "\"}],\"prompt\":[1],\"input\":[\"i\"],\"query\":\"q\","
            "\"documents\":[{}]}");

    alloc.alloc = heap_alloc;
    alloc.free = heap_free;
    alloc.data = &heap;

    for (step = 100; step < 1000000; step *= 100) {
        failed = 0;

        for (n = 1; ; n++) {
            memset(&heap, 0, sizeof(heap));
            heap.fail_at = n;

            p = aibrix_prompt_create(UNKNOWN, MAX_PROMPT, &alloc);

            if (p == NULL) {
                assert_int_equal(n, 1);
                assert_int_equal(heap.live, 0);
                failed++;
                continue;
            }

            feed_all(p, body.data, body.len, step, &r);
            fed = r.fed;
            ok = aibrix_prompt_finish(p, 1);

            assert_int_equal(fed, ok);
            assert_int_equal(aibrix_prompt_finish(p, 0), ok);
            assert_int_equal(aibrix_prompt_text_len(p) != 0, ok);
            assert_int_equal(aibrix_prompt_model(p).len, ok);

            aibrix_prompt_destroy(p);
            assert_int_equal(heap.live, 0);

            if (heap.calls < n) {
                assert_int_equal(ok, 1);
                break;
            }

            assert_int_equal(ok, 0);
            failed++;
        }

        assert_true(failed >= 12);
    }

    free(body.data);
}


/* Small requests cost little memory, large ones no more than their budget. */
static void
test_memory(void **state)
{
    size_t            i;
    heap_t            heap;
    buffer_t          body;
    result_t          r;
    aibrix_alloc_t    alloc;
    aibrix_prompt_t  *p;

    static const struct {
        size_t  len;
        size_t  max;
        size_t  bytes;
        size_t  calls;
    } bounds[] = {
        { 100, MAX_PROMPT, 8192, 2 },
        { 4000, MAX_PROMPT, 8192, 2 },
        { 29000, MAX_PROMPT, 90000, 4 },
        { 10 * MAX_PROMPT, MAX_PROMPT, MAX_PROMPT + 8192, 6 },
        { 10 * MAX_PROMPT, 1000, 8192, 2 }
    };

    (void) state;

    alloc.alloc = heap_alloc;
    alloc.free = heap_free;
    alloc.data = &heap;

    for (i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        memset(&heap, 0, sizeof(heap));
        memset(&body, 0, sizeof(body));

        puts_to(&body, "{\"prompt\":\"");
        repeat(&body, "p", bounds[i].len);
        puts_to(&body, "\"}");

        p = aibrix_prompt_create(COMPLETIONS, bounds[i].max, &alloc);
        assert_non_null(p);
        feed_all(p, body.data, body.len, 5000, &r);
        assert_int_equal(aibrix_prompt_finish(p, 1), 1);

        assert_int_equal(aibrix_prompt_text_len(p),
                         bounds[i].len < bounds[i].max ? bounds[i].len
                                                       : bounds[i].max);
        assert_true(heap.bytes <= bounds[i].bytes);
        assert_true(heap.calls <= bounds[i].calls);

        aibrix_prompt_destroy(p);
        assert_int_equal(heap.live, 0);
        free(body.data);
    }
}


static double
cpu_seconds(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);

    return (double) ts.tv_sec + (double) ts.tv_nsec / 1e9;
}


static double
time_body(const char *before, const char *unit, const char *after, size_t size,
    size_t step)
{
    double            start;
    heap_t            heap;
    buffer_t          body;
    result_t          r;
    aibrix_alloc_t    alloc;
    aibrix_prompt_t  *p;

    memset(&heap, 0, sizeof(heap));
    memset(&body, 0, sizeof(body));

    alloc.alloc = heap_alloc;
    alloc.free = heap_free;
    alloc.data = &heap;

    puts_to(&body, before);
    repeat(&body, unit, size / strlen(unit));
    puts_to(&body, after);

    start = cpu_seconds();

    p = aibrix_prompt_create(CHAT, 2 * MAX_PROMPT, &alloc);
    assert_non_null(p);
    feed_all(p, body.data, body.len, step, &r);
    assert_int_equal(aibrix_prompt_finish(p, 1), 1);
    aibrix_prompt_destroy(p);

    start = cpu_seconds() - start;

    assert_int_equal(heap.live, 0);
    free(body.data);

    return start;
}


/* Eight times the body may take eight times as long; 40 times fails. */
static void
test_linear(void **state)
{
    size_t  i;
    double  small, large;

    static const struct {
        const char  *before;
        const char  *unit;
        const char  *after;
        size_t       size;
        size_t       step;
    } shapes[] = {
        { "{\"messages\":[{\"content\":\"", "0123456789abcdef", "\"}]}",
          64 << 20, 65536 },
        { "{\"messages\":[{\"content\":\"", "\\ud83d\\ude00", "\"}]}",
          8 << 20, 4096 },
        { "{\"messages\":[{\"x\":0", ",\"content\":\"abcdefghijk\"", "}]}",
          8 << 20, 4096 },
        { "{\"x\":0", ",\"messages\":[{\"content\":\"abcd\"}]", "}",
          8 << 20, 4096 },
        { "{\"x\":0", ",\"kkkkk\":\"v\"", "}", 8 << 20, 4096 },
        { "{\"x\":0", ",\"cache_salt\":[1,2,3,4]", "}", 8 << 20, 4096 },
        { "{\"messages\":[0", ",{\"content\":[{}]}", "]}", 8 << 20, 4096 },
        { "{\"tools\":[", "                ", "]}", 8 << 20, 4096 },
        { "{\"model\":\"", "0123456789abcdef", "\"}", 8 << 20, 100 },
        { "{\"x\":0.", "0123456789012345", "}", 8 << 20, 4096 }
    };

    (void) state;

    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        small = time_body(shapes[i].before, shapes[i].unit, shapes[i].after,
                          shapes[i].size / 8, shapes[i].step);
        large = time_body(shapes[i].before, shapes[i].unit, shapes[i].after,
                          shapes[i].size, shapes[i].step);

        small = small < 0.001 ? 0.001 : small;

        if (large > small * 40) {
            print_error("\"%s\": %.3f s, then %.3f s\n", shapes[i].unit,
                        small, large);
            fail();
        }
    }
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_api),
        cmocka_unit_test(test_model_and_stream),
        cmocka_unit_test(test_look_alikes),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_completions),
        cmocka_unit_test(test_odd_ids),
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_embeddings_and_classify),
        cmocka_unit_test(test_rerank),
        cmocka_unit_test(test_tools_and_system),
        cmocka_unit_test(test_unknown_api),
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_many_escapes),
        cmocka_unit_test(test_control_characters),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_stops_early),
        cmocka_unit_test(test_well_formed),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_heads_grow),
        cmocka_unit_test(test_tenant),
        cmocka_unit_test(test_tenant_encoding),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_max_prompt),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_spans_bounded),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_nesting_mismatch),
        cmocka_unit_test(test_alloc_failures),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_linear)
    };

    seed = 20260901;

    return cmocka_run_group_tests(tests, NULL, NULL);
}
