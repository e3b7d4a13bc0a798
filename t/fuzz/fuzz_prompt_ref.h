
/*
 * The rules of core/prompt.h once more, written for clearness and not for
 * speed, on the events of RapidJSON: what fuzz_prompt.c compares with.
 */

#ifndef PROMPT_REF_H_INCLUDED_
#define PROMPT_REF_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>

#include "prompt.h"

#ifdef __cplusplus
extern "C" {
#endif


typedef struct {
    int         ok;
    int         stream;
    int         plain;      /* no key twice, nothing before the main section */
    uint64_t    tenant;
    size_t      model_len;
    size_t      text_len;
    char       *model;
    char       *text;
} prompt_ref_t;


void prompt_ref_read(prompt_ref_t *ref, aibrix_api_e api, const char *body,
    size_t len, size_t max_prompt, uint64_t seed);
void prompt_ref_free(prompt_ref_t *ref);


#ifdef __cplusplus
}
#endif

#endif /* PROMPT_REF_H_INCLUDED_ */
