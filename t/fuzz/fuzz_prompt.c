
/*
 * Holds core/prompt.c against fuzz_prompt_ref.cc: same accept/reject, model,
 * stream, tenant and text, at cuts that the input chooses; heads of a body
 * are heads of its text; a failed allocation neither leaks nor crashes.
 *
 * The first four bytes of an input choose API, max_prompt, cuts, and the
 * allocation that fails; the rest is the body.
 *
 * libFuzzer:    clang -fsanitize=fuzzer,address,undefined ...
 * stand-alone:  -DAIBRIX_FUZZ_MAIN, reads the files it is given
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prompt.h"
#include "fuzz_prompt_ref.h"


#define SEED      0x1234567
#define HEADER    4
#define SPANS     64

#define require(c)  (void) ((c) || (broken(__LINE__, #c), 0))


typedef struct {
    size_t     live;
    size_t     calls;
    size_t     fail_at;
} heap_t;


typedef struct {
    int        ok;
    int        stream;
    uint64_t   tenant;
    size_t     model_len;
    size_t     text_len;
    char       model[AIBRIX_PROMPT_MODEL_MAX];
    char      *text;
} result_t;


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


static uint32_t  cuts;


static void
broken(int line, const char *condition)
{
    fprintf(stderr, "fuzz_prompt.c:%d: broken: %s\n", line, condition);
    abort();
}


static void *
heap_alloc(void *data, size_t size)
{
    void    *p;
    heap_t  *heap = data;

    heap->calls++;

    if (heap->calls == heap->fail_at) {
        return NULL;
    }

    p = malloc(size);
    require(p != NULL);
    memset(p, 0xa5, size);

    heap->live++;

    return p;
}


static void
heap_free(void *data, void *p)
{
    heap_t  *heap = data;

    heap->live--;
    free(p);
}


static size_t
next_cut(size_t left)
{
    size_t  n;

    cuts = cuts * 1664525 + 1013904223;
    n = cuts >> 28 ? cuts >> 28 : cuts >> 20 & 0xff;

    return n < left ? n : left;
}


static int
feed(aibrix_prompt_t *p, const char *body, size_t len, int cut)
{
    int      rc;
    char    *copy;
    size_t   at, n;

    rc = 1;

    for (at = 0; at < len && rc; at += n) {
        n = cut ? next_cut(len - at) : len;

        copy = malloc(n ? n : 1);
        require(copy != NULL);
        memcpy(copy, body + at, n);

        rc = aibrix_prompt_feed(p, copy, n);

        free(copy);
    }

    return rc;
}


static void
take_text(result_t *r, const aibrix_prompt_t *p)
{
    size_t         i, n, at;
    aibrix_span_t  spans[SPANS];

    n = aibrix_prompt_text(p, spans, SPANS);
    require(n <= SPANS);

    r->text_len = aibrix_prompt_text_len(p);
    r->text = malloc(r->text_len + 1);
    require(r->text != NULL);

    at = 0;

    for (i = 0; i < n; i++) {
        require(spans[i].len <= r->text_len - at);
        memcpy(r->text + at, spans[i].data, spans[i].len);
        at += spans[i].len;
    }

    require(at == r->text_len);
}


static result_t
run(aibrix_api_e api, const char *body, size_t len, size_t max_prompt,
    int complete, int cut, size_t fail_at)
{
    int               fed;
    heap_t            heap;
    result_t          r;
    aibrix_span_t     model;
    aibrix_alloc_t    alloc;
    aibrix_prompt_t  *p;

    memset(&r, 0, sizeof(r));
    memset(&heap, 0, sizeof(heap));

    heap.fail_at = fail_at;

    alloc.alloc = heap_alloc;
    alloc.free = heap_free;
    alloc.data = &heap;

    p = aibrix_prompt_create(api, max_prompt, &alloc);

    if (p == NULL) {
        require(fail_at == 1 && heap.live == 0);
        return r;
    }

    fed = feed(p, body, len, cut);

    r.ok = aibrix_prompt_finish(p, complete);
    require(fed || !r.ok);
    require(fail_at == 0 || heap.calls < fail_at || !r.ok);

    r.stream = aibrix_prompt_stream(p);
    r.tenant = aibrix_prompt_tenant(p, SEED);

    model = aibrix_prompt_model(p);
    r.model_len = model.len;
    memcpy(r.model, model.data, model.len);

    take_text(&r, p);
    require(r.ok || r.text_len + r.model_len + r.tenant == 0);

    aibrix_prompt_destroy(p);
    require(heap.live == 0);

    return r;
}


static void
same(const result_t *a, const result_t *b)
{
    require(a->ok == b->ok);
    require(a->stream == b->stream);
    require(a->tenant == b->tenant);
    require(a->model_len == b->model_len);
    require(memcmp(a->model, b->model, a->model_len) == 0);
    require(a->text_len == b->text_len);
    require(memcmp(a->text, b->text, a->text_len) == 0);
}


static void
same_as_reference(const result_t *r, const prompt_ref_t *ref)
{
    require(r->ok == ref->ok);
    require(r->stream == ref->stream);
    require(r->tenant == ref->tenant);
    require(r->model_len == ref->model_len);
    require(r->text_len == ref->text_len);

    if (ref->ok) {
        require(memcmp(r->model, ref->model, r->model_len) == 0);
        require(memcmp(r->text, ref->text, r->text_len) == 0);
    }
}


static void
check_head(aibrix_api_e api, const char *body, size_t len, size_t max_prompt,
    const prompt_ref_t *ref)
{
    size_t      n;
    result_t    whole, cut;

    n = (size_t) (((uint64_t) cuts * (len + 1)) >> 32);

    whole = run(api, body, n, max_prompt, 0, 0, 0);
    cut = run(api, body, n, max_prompt, 0, 1, 0);

    same(&whole, &cut);

    if (ref->ok) {
        require(whole.ok == (memchr(body, '{', n) != NULL));
    }

    if (ref->ok && ref->plain) {
        require(whole.text_len <= ref->text_len);
        require(memcmp(whole.text, ref->text, whole.text_len) == 0);

        require(whole.model_len == 0 || whole.model_len == ref->model_len);
        require(memcmp(whole.model, ref->model, whole.model_len) == 0);
    }

    free(whole.text);
    free(cut.text);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t         len, max_prompt;
    result_t       whole, cut, failed;
    const char    *body;
    aibrix_api_e   api;
    prompt_ref_t   ref;

    static const size_t  limits[] = { 1 << 20, 0, 1, 7, 64, 5000 };

    if (size < HEADER) {
        return 0;
    }

    api = (aibrix_api_e) (data[0] % (AIBRIX_API_CLASSIFY + 1));
    max_prompt = limits[data[1] % (sizeof(limits) / sizeof(limits[0]))];
    cuts = data[2] * 2654435761U;

    body = (const char *) data + HEADER;
    len = size - HEADER;

    prompt_ref_read(&ref, api, body, len, max_prompt, SEED);

    whole = run(api, body, len, max_prompt, 1, 0, 0);
    cut = run(api, body, len, max_prompt, 1, 1, 0);

    same(&whole, &cut);
    same_as_reference(&whole, &ref);

    check_head(api, body, len, max_prompt, &ref);

    if (data[3] % 16 != 0) {
        failed = run(api, body, len, max_prompt, 1, 1, data[3] % 16);
        free(failed.text);
    }

    free(whole.text);
    free(cut.text);
    prompt_ref_free(&ref);

    return 0;
}


#ifdef AIBRIX_FUZZ_MAIN

int
main(int argc, char **argv)
{
    int       i;
    FILE     *f;
    size_t    n;

    static uint8_t  data[1024 * 1024];

    for (i = 1; i < argc; i++) {
        f = fopen(argv[i], "rb");

        if (f == NULL) {
            perror(argv[i]);
            return 1;
        }

        n = fread(data, 1, sizeof(data), f);
        fclose(f);

        LLVMFuzzerTestOneInput(data, n);
    }

    printf("%d files\n", argc - 1);

    return 0;
}

#endif
