
/*
 * Watches a response body go by: when content comes, how it ends, and what
 * usage it tells.  Reads OpenAI's completions, chat completions and responses
 * and Anthropic's messages, as text/event-stream or as one JSON object.
 *
 * The scanner may be fed at any cut, keeps no pointer into what it was fed,
 * allocates nothing and cannot fail: what it does not understand it passes
 * over.  Its state is small and of constant size whatever the size of an
 * event.  JSON is followed by the path of its keys and not validated.
 */

#ifndef AIBRIX_EVENTS_H_INCLUDED_
#define AIBRIX_EVENTS_H_INCLUDED_

#include <stddef.h>
#include <stdint.h>


#define AIBRIX_USAGE_PROMPT      1
#define AIBRIX_USAGE_COMPLETION  2
#define AIBRIX_USAGE_CACHED      4

#define AIBRIX_EVENTS_DEPTH      8      /* levels that can matter */
#define AIBRIX_EVENTS_KEY        24     /* bytes of the longest key or type */


typedef enum {
    AIBRIX_BODY_EVENTS = 0,     /* text/event-stream */
    AIBRIX_BODY_JSON
} aibrix_body_e;


/* The last value told of each; 0 for what is not known. */
typedef struct {
    uint64_t   prompt;          /* prompt_tokens, input_tokens */
    uint64_t   completion;      /* completion_tokens, output_tokens */
    uint64_t   cached;          /* cached_tokens, cache_read_input_tokens */
    uint32_t   known;           /* AIBRIX_USAGE_... */
} aibrix_usage_t;


typedef struct {
    aibrix_usage_t   usage;
    uint64_t         contents;  /* events with content so far */

    /*
     * done: the body says itself that it is at its end, by [DONE],
     * message_stop, response.completed (.incomplete, .failed), or the bracket
     * that closes a JSON body.  failed: it told of an error.
     */
    unsigned         done:1;
    unsigned         failed:1;

    /* the scanner's own */
    unsigned         json:1;    /* the body is one JSON text */
    unsigned         counted:1; /* content was seen in this event */
    unsigned         data:1;    /* this event has a data line */
    unsigned         cr:1;      /* the last byte was one */
    uint32_t         skip;      /* levels open that do not matter */
    uint64_t         number;
    uint16_t         unit;      /* of \uXXXX so far */
    uint8_t          escape;    /* bytes of an escape so far */
    uint8_t          digits;
    uint8_t          line;
    uint8_t          state;
    uint8_t          value;     /* what comes next in the JSON text */
    uint8_t          depth;
    uint8_t          len;       /* of key */
    uint8_t          open[AIBRIX_EVENTS_DEPTH];
    char             key[AIBRIX_EVENTS_KEY];
} aibrix_events_t;


void aibrix_events_init(aibrix_events_t *e, aibrix_body_e body);

/*
 * Looks at the next len bytes of the body.  Returns how many events had
 * their first content in them; the first content of all has come when that
 * is not 0 and equals e->contents.  A JSON body is one event, and its first
 * byte is content.
 */
uint32_t aibrix_events_feed(aibrix_events_t *e, const char *data, size_t len);


#endif /* AIBRIX_EVENTS_H_INCLUDED_ */
