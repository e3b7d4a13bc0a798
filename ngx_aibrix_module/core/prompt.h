
/*
 * Reads an OpenAI-style request body, byte by byte, into what routing needs:
 * model, stream, prompt text, and the names that keep KV caches apart.
 *
 * The scanner is incremental: it may be fed at any cut of the body, keeps no
 * pointer into what it was fed, and uses memory bounded by max_prompt.  It
 * builds no tree.  Text rule: AIBrix v0.7.0, pkg/plugins/gateway/util.go.
 */

#ifndef AIBRIX_PROMPT_H_INCLUDED_
#define AIBRIX_PROMPT_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>


typedef enum {
    AIBRIX_API_UNKNOWN = 0,     /* decided by the keys that the body has */
    AIBRIX_API_COMPLETIONS,     /* prompt */
    AIBRIX_API_CHAT,            /* messages, tools; Anthropic's system */
    AIBRIX_API_RESPONSES,       /* input, instructions, tools */
    AIBRIX_API_EMBEDDINGS,      /* input */
    AIBRIX_API_RERANK,          /* query, documents */
    AIBRIX_API_CLASSIFY         /* input */
} aibrix_api_e;


typedef struct aibrix_prompt_s  aibrix_prompt_t;


/* Memory is asked for in few and large pieces; NULL stops the reading. */
typedef struct {
    void    *(*alloc)(void *data, size_t size);
    void     (*free)(void *data, void *p);
    void      *data;
} aibrix_alloc_t;


typedef struct {
    const char  *data;          /* decoded, not zero-terminated */
    size_t       len;
} aibrix_span_t;


#define AIBRIX_PROMPT_MODEL_MAX  256    /* bytes kept of a name */


/* The API that a request path stands for, by its last segments. */
aibrix_api_e aibrix_prompt_api(const char *path, size_t len);

/*
 * max_prompt: bytes of prompt text kept at most (over all sections).
 * Returns NULL when memory is not to be had.
 */
aibrix_prompt_t *aibrix_prompt_create(aibrix_api_e api, size_t max_prompt,
    const aibrix_alloc_t *alloc);
void aibrix_prompt_destroy(aibrix_prompt_t *p);

/*
 * Feeds the next len bytes of the body.  Returns 1 while more is wanted, 0
 * when nothing that follows can matter (not JSON, or out of memory).
 */
int aibrix_prompt_feed(aibrix_prompt_t *p, const char *data, size_t len);

/*
 * The body has ended.  complete is zero when only a head of it was seen (an
 * unbuffered request): what was read until there then counts.  Returns 1 for
 * a well-formed JSON object (or its head), 0 for anything else; then there is
 * no model and no prompt.
 */
int aibrix_prompt_finish(aibrix_prompt_t *p, int complete);

/* All of these are valid after finish() and until destroy(). */
aibrix_span_t aibrix_prompt_model(const aibrix_prompt_t *p);
int aibrix_prompt_stream(const aibrix_prompt_t *p);

/*
 * Hash of what keeps two requests' KV caches apart though their text is the
 * same: model, cache_salt, LoRA name.  0 when the body names none of them.
 */
uint64_t aibrix_prompt_tenant(const aibrix_prompt_t *p, uint64_t seed);

/*
 * The prompt text as engines order it: tools, system, messages.  Fills at
 * most max spans and returns how many there are.  The text is their
 * concatenation, cut to max_prompt.
 */
size_t aibrix_prompt_text(const aibrix_prompt_t *p, aibrix_span_t *spans,
    size_t max);
size_t aibrix_prompt_text_len(const aibrix_prompt_t *p);


#endif /* AIBRIX_PROMPT_H_INCLUDED_ */
