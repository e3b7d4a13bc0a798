
/*
 * An incremental JSON tokenizer (RFC 8259, strict): it may be fed at any cut,
 * builds no tree, does not recurse and keeps no pointer into what it was fed.
 * Its reader is told of the values that it wants to know of, and says of each
 * how it wants it.
 *
 * Two things are lenient by intention: a BOM before the text is skipped, and
 * bytes that are not UTF-8 pass through strings as they are.  The text must be
 * one object.
 */

#ifndef AIBRIX_JSON_H_INCLUDED_
#define AIBRIX_JSON_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>


/*
 * Levels of which the kind of bracket is known, one bit each, in memory that
 * grows with depth to at most 128 KiB.  Deeper ones are only counted: nothing
 * well-formed is refused there, but a wrong bracket may pass.
 */
#define AIBRIX_JSON_DEPTH_EXACT  (1024 * 1024)

#define AIBRIX_JSON_NEST_WORDS   4
#define AIBRIX_JSON_OUT_SIZE     512


typedef enum {
    AIBRIX_JSON_OBJECT = 0,
    AIBRIX_JSON_ARRAY,
    AIBRIX_JSON_STRING,
    AIBRIX_JSON_NUMBER,
    AIBRIX_JSON_TRUE,
    AIBRIX_JSON_FALSE,
    AIBRIX_JSON_NULL,
    AIBRIX_JSON_KEY
} aibrix_json_type_e;


typedef enum {
    AIBRIX_JSON_SKIP = 0,   /* only checked: neither text() nor end() */
    AIBRIX_JSON_RAW,        /* text() gets the bytes as they were sent */
    AIBRIX_JSON_READ        /* strings decoded, members told one by one */
} aibrix_json_take_e;


/*
 * begin() opens a value or key, text() brings it in pieces, end() closes it.
 * Members are told of only when the container around them is taken by READ.
 * Numbers and literals come as sent, also by READ.
 *
 * grow() returns size bytes that begin with the old_size bytes at old, which
 * is NULL at first and is to be freed otherwise; NULL stops the reading.
 */
typedef struct {
    aibrix_json_take_e   (*begin)(void *data, aibrix_json_type_e type);
    void                 (*text)(void *data, const char *p, size_t len);
    void                 (*end)(void *data, aibrix_json_type_e type);
    void                *(*grow)(void *data, void *old, size_t old_size,
                              size_t size);
} aibrix_json_reader_t;


/* Opaque, but part of its owner: made by init(), nothing to destroy. */
typedef struct {
    const aibrix_json_reader_t  *reader;
    void                        *data;
    const char                  *mark;       /* raw bytes from here on */
    const char                  *literal;    /* rest of true, false, null */
    uint64_t                    *nest;       /* a bit is set for an object */
    size_t                       levels;     /* room in nest */
    size_t                       depth;
    size_t                       mute;       /* depth of what is not told */
    uint32_t                     unit;       /* of \uXXXX so far */
    uint32_t                     high;       /* surrogate that waits */
    unsigned                     out_len;
    uint8_t                      state;
    uint8_t                      type;
    uint8_t                      take;
    uint8_t                      number;
    uint8_t                      escape;     /* bytes of an escape so far */
    uint8_t                      raw;
    uint8_t                      started;
    uint64_t                     first[AIBRIX_JSON_NEST_WORDS];
    char                         out[AIBRIX_JSON_OUT_SIZE];
} aibrix_json_t;


void aibrix_json_init(aibrix_json_t *j, const aibrix_json_reader_t *reader,
    void *data);

/*
 * Returns 1 while the bytes so far are the head of a well-formed object (or
 * all of it), 0 from the first byte on that proves the opposite.
 */
int aibrix_json_feed(aibrix_json_t *j, const char *data, size_t len);

/* The brace that opens the object was seen; the one that closes it was. */
int aibrix_json_started(const aibrix_json_t *j);
int aibrix_json_done(const aibrix_json_t *j);

/* Memory that grow() gave and that is still in use, or NULL. */
void *aibrix_json_memory(const aibrix_json_t *j);


#endif /* AIBRIX_JSON_H_INCLUDED_ */
