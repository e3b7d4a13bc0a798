
#include "json.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif


#define AIBRIX_JSON_WORD_BITS  64

/* Shorter runs are gathered with what surrounds them. */
#define AIBRIX_JSON_RUN_SHORT  128

#define AIBRIX_JSON_UTF8_MAX   4


typedef enum {
    JSON_START = 0,
    JSON_BOM_1,
    JSON_BOM_2,
    JSON_TOP,
    JSON_FIRST_KEY,
    JSON_KEY,
    JSON_COLON,
    JSON_FIRST_ITEM,
    JSON_VALUE,
    JSON_AFTER,
    JSON_DONE,
    JSON_STRING,
    JSON_NUMBER,
    JSON_LITERAL,
    JSON_ERROR
} aibrix_json_state_e;


typedef enum {
    NUM_START = 0,
    NUM_MINUS,
    NUM_ZERO,
    NUM_INT,
    NUM_DOT,
    NUM_FRAC,
    NUM_E,
    NUM_SIGN,
    NUM_EXP,
    NUM_BAD,
    NUM_END
} aibrix_json_number_e;


typedef enum {
    CHAR_OTHER = 0,
    CHAR_ZERO,
    CHAR_DIGIT,
    CHAR_MINUS,
    CHAR_PLUS,
    CHAR_DOT,
    CHAR_E
} aibrix_json_char_e;


static const uint8_t  aibrix_json_chars[256] = {
    ['0'] = CHAR_ZERO,
    ['1' ... '9'] = CHAR_DIGIT,
    ['-'] = CHAR_MINUS,
    ['+'] = CHAR_PLUS,
    ['.'] = CHAR_DOT,
    ['e'] = CHAR_E,
    ['E'] = CHAR_E
};


static const uint8_t  aibrix_json_numbers[NUM_BAD][7] = {

    /* columns: as aibrix_json_char_e */

    [NUM_START] = { NUM_BAD, NUM_ZERO, NUM_INT,  NUM_MINUS, NUM_BAD,  NUM_BAD,
                    NUM_BAD },
    [NUM_MINUS] = { NUM_BAD, NUM_ZERO, NUM_INT,  NUM_BAD,   NUM_BAD,  NUM_BAD,
                    NUM_BAD },
    [NUM_ZERO]  = { NUM_END, NUM_BAD,  NUM_BAD,  NUM_BAD,   NUM_BAD,  NUM_DOT,
                    NUM_E },
    [NUM_INT]   = { NUM_END, NUM_INT,  NUM_INT,  NUM_BAD,   NUM_BAD,  NUM_DOT,
                    NUM_E },
    [NUM_DOT]   = { NUM_BAD, NUM_FRAC, NUM_FRAC, NUM_BAD,   NUM_BAD,  NUM_BAD,
                    NUM_BAD },
    [NUM_FRAC]  = { NUM_END, NUM_FRAC, NUM_FRAC, NUM_BAD,   NUM_BAD,  NUM_BAD,
                    NUM_E },
    [NUM_E]     = { NUM_BAD, NUM_EXP,  NUM_EXP,  NUM_SIGN,  NUM_SIGN, NUM_BAD,
                    NUM_BAD },
    [NUM_SIGN]  = { NUM_BAD, NUM_EXP,  NUM_EXP,  NUM_BAD,   NUM_BAD,  NUM_BAD,
                    NUM_BAD },
    [NUM_EXP]   = { NUM_END, NUM_EXP,  NUM_EXP,  NUM_BAD,   NUM_BAD,  NUM_BAD,
                    NUM_BAD }
};


static const char  aibrix_json_escapes[256] = {
    ['"'] = '"',
    ['\\'] = '\\',
    ['/'] = '/',
    ['b'] = '\b',
    ['f'] = '\f',
    ['n'] = '\n',
    ['r'] = '\r',
    ['t'] = '\t'
};


/* One more than the digit's value, so that 0 stands for no digit. */
static const uint8_t  aibrix_json_hex[256] = {
    ['0'] = 1, ['1'] = 2, ['2'] = 3, ['3'] = 4, ['4'] = 5,
    ['5'] = 6, ['6'] = 7, ['7'] = 8, ['8'] = 9, ['9'] = 10,
    ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
    ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16
};


static const char *aibrix_json_structure(aibrix_json_t *j, const char *p,
    const char *end);
static const char *aibrix_json_start(aibrix_json_t *j, const char *p);
static const char *aibrix_json_value(aibrix_json_t *j, const char *p);
static const char *aibrix_json_after(aibrix_json_t *j, const char *p);
static const char *aibrix_json_open(aibrix_json_t *j, const char *p,
    aibrix_json_type_e type);
static const char *aibrix_json_close(aibrix_json_t *j, const char *p);
static int aibrix_json_grow(aibrix_json_t *j);
static int aibrix_json_in_object(const aibrix_json_t *j);
static void aibrix_json_begin(aibrix_json_t *j, const char *p,
    aibrix_json_type_e type);
static void aibrix_json_end(aibrix_json_t *j, const char *p,
    aibrix_json_type_e type);
static const char *aibrix_json_number(aibrix_json_t *j, const char *p,
    const char *end);
static const char *aibrix_json_literal(aibrix_json_t *j, const char *p,
    const char *end);
static const char *aibrix_json_string(aibrix_json_t *j, const char *p,
    const char *end);
static const char *aibrix_json_string_end(aibrix_json_t *j, const char *p);
static const char *aibrix_json_run(const char *p, const char *end);
static const char *aibrix_json_escape(aibrix_json_t *j, const char *p,
    const char *end);
static void aibrix_json_unit(aibrix_json_t *j);
static void aibrix_json_lone(aibrix_json_t *j);
static void aibrix_json_char(aibrix_json_t *j, uint32_t c);
static void aibrix_json_copy(aibrix_json_t *j, const char *p, size_t len);
static void aibrix_json_flush(aibrix_json_t *j);


void
aibrix_json_init(aibrix_json_t *j, const aibrix_json_reader_t *reader,
    void *data)
{
    memset(j, 0, offsetof(aibrix_json_t, out));

    j->reader = reader;
    j->data = data;
    j->nest = j->first;
    j->levels = AIBRIX_JSON_NEST_WORDS * AIBRIX_JSON_WORD_BITS;
}


int
aibrix_json_feed(aibrix_json_t *j, const char *data, size_t len)
{
    const char  *p, *end;

    p = data;
    end = data + len;

    j->mark = data;

    while (p < end) {

        switch (j->state) {

        case JSON_STRING:
            p = aibrix_json_string(j, p, end);
            break;

        case JSON_NUMBER:
            p = aibrix_json_number(j, p, end);
            break;

        case JSON_LITERAL:
            p = aibrix_json_literal(j, p, end);
            break;

        default:
            p = aibrix_json_structure(j, p, end);
        }

        if (p == NULL) {
            j->state = JSON_ERROR;
            break;
        }
    }

    if (j->state == JSON_ERROR) {
        return 0;
    }

    if (j->raw && end != j->mark) {
        j->reader->text(j->data, j->mark, end - j->mark);
    }

    return 1;
}


int
aibrix_json_started(const aibrix_json_t *j)
{
    return j->started && j->state != JSON_ERROR;
}


int
aibrix_json_done(const aibrix_json_t *j)
{
    return j->state == JSON_DONE;
}


void *
aibrix_json_memory(const aibrix_json_t *j)
{
    return j->nest == j->first ? NULL : j->nest;
}


/* Returns where the text goes on, or NULL when it is malformed. */
static const char *
aibrix_json_structure(aibrix_json_t *j, const char *p, const char *end)
{
    while (p < end) {

        if (j->state <= JSON_BOM_2) {

            p = aibrix_json_start(j, p);

            if (p == NULL) {
                return NULL;
            }

            continue;
        }

        if (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') {
            p++;
            continue;
        }

        switch (j->state) {

        case JSON_TOP:
            if (*p != '{') {
                return NULL;
            }

            j->started = 1;
            p = aibrix_json_open(j, p, AIBRIX_JSON_OBJECT);
            break;

        case JSON_FIRST_KEY:
            if (*p == '}') {
                p = aibrix_json_close(j, p);
                break;
            }

            /* fall through */

        case JSON_KEY:
            if (*p != '"') {
                return NULL;
            }

            aibrix_json_begin(j, p, AIBRIX_JSON_KEY);
            j->state = JSON_STRING;
            return p + 1;

        case JSON_COLON:
            if (*p++ != ':') {
                return NULL;
            }

            j->state = JSON_VALUE;
            break;

        case JSON_FIRST_ITEM:
            if (*p == ']') {
                p = aibrix_json_close(j, p);
                break;
            }

            /* fall through */

        case JSON_VALUE:
            p = aibrix_json_value(j, p);
            break;

        case JSON_AFTER:
            p = aibrix_json_after(j, p);
            break;

        default:
            return NULL;
        }

        if (p == NULL || j->state >= JSON_STRING) {
            return p;
        }
    }

    return p;
}


/* A BOM may come first: JSON_START, JSON_BOM_1, JSON_BOM_2, JSON_TOP. */
static const char *
aibrix_json_start(aibrix_json_t *j, const char *p)
{
    static const unsigned char  bom[] = { 0xef, 0xbb, 0xbf };

    if ((unsigned char) *p == bom[j->state]) {
        j->state++;
        return p + 1;
    }

    if (j->state != JSON_START) {
        return NULL;
    }

    j->state = JSON_TOP;

    return p;
}


static const char *
aibrix_json_value(aibrix_json_t *j, const char *p)
{
    switch (*p) {

    case '{':
        return aibrix_json_open(j, p, AIBRIX_JSON_OBJECT);

    case '[':
        return aibrix_json_open(j, p, AIBRIX_JSON_ARRAY);

    case '"':
        aibrix_json_begin(j, p, AIBRIX_JSON_STRING);
        j->state = JSON_STRING;
        break;

    case 't':
        aibrix_json_begin(j, p, AIBRIX_JSON_TRUE);
        j->literal = "rue";
        j->state = JSON_LITERAL;
        break;

    case 'f':
        aibrix_json_begin(j, p, AIBRIX_JSON_FALSE);
        j->literal = "alse";
        j->state = JSON_LITERAL;
        break;

    case 'n':
        aibrix_json_begin(j, p, AIBRIX_JSON_NULL);
        j->literal = "ull";
        j->state = JSON_LITERAL;
        break;

    default:
        j->number = aibrix_json_numbers[NUM_START]
                                       [aibrix_json_chars[(uint8_t) *p]];
        if (j->number == NUM_BAD) {
            return NULL;
        }

        aibrix_json_begin(j, p, AIBRIX_JSON_NUMBER);
        j->state = JSON_NUMBER;
    }

    return p + 1;
}


static const char *
aibrix_json_after(aibrix_json_t *j, const char *p)
{
    switch (*p) {

    case ',':
        j->state = aibrix_json_in_object(j) ? JSON_KEY : JSON_VALUE;
        return p + 1;

    case '}':
    case ']':
        if (j->depth <= AIBRIX_JSON_DEPTH_EXACT
            && aibrix_json_in_object(j) != (*p == '}'))
        {
            return NULL;
        }

        return aibrix_json_close(j, p);

    case ':':

        /* what was read as a value down there was a key */

        if (j->depth > AIBRIX_JSON_DEPTH_EXACT) {
            j->state = JSON_VALUE;
            return p + 1;
        }

        /* fall through */

    default:
        return NULL;
    }
}


static const char *
aibrix_json_open(aibrix_json_t *j, const char *p, aibrix_json_type_e type)
{
    uint64_t  bit, *word;

    aibrix_json_begin(j, p, type);

    if (j->depth == j->levels && j->levels < AIBRIX_JSON_DEPTH_EXACT
        && !aibrix_json_grow(j))
    {
        return NULL;
    }

    if (j->depth < AIBRIX_JSON_DEPTH_EXACT) {
        word = &j->nest[j->depth / AIBRIX_JSON_WORD_BITS];
        bit = (uint64_t) 1 << (j->depth % AIBRIX_JSON_WORD_BITS);
        *word = (type == AIBRIX_JSON_OBJECT) ? *word | bit : *word & ~bit;
    }

    j->depth++;

    if (j->mute == 0 && j->take != AIBRIX_JSON_READ) {
        j->mute = j->depth;
    }

    j->state = (type == AIBRIX_JSON_OBJECT) ? JSON_FIRST_KEY : JSON_FIRST_ITEM;

    return p + 1;
}


static const char *
aibrix_json_close(aibrix_json_t *j, const char *p)
{
    aibrix_json_type_e  type;

    type = (*p == '}') ? AIBRIX_JSON_OBJECT : AIBRIX_JSON_ARRAY;
    p++;

    if (j->mute == j->depth) {
        j->mute = 0;
        j->take = j->raw ? AIBRIX_JSON_RAW : AIBRIX_JSON_SKIP;
        aibrix_json_end(j, p, type);

    } else if (j->mute == 0) {
        j->take = AIBRIX_JSON_READ;
        aibrix_json_end(j, p, type);
    }

    j->depth--;
    j->state = (j->depth == 0) ? JSON_DONE : JSON_AFTER;

    return p;
}


static int
aibrix_json_grow(aibrix_json_t *j)
{
    void    *nest;
    size_t   size;

    size = j->levels / 8;

    nest = j->reader->grow(j->data, aibrix_json_memory(j), size, size * 4);

    if (nest == NULL) {
        return 0;
    }

    if (j->nest == j->first) {
        memcpy(nest, j->first, size);
    }

    j->nest = nest;
    j->levels *= 4;

    return 1;
}


static int
aibrix_json_in_object(const aibrix_json_t *j)
{
    size_t  level;

    level = j->depth - 1;

    return level < AIBRIX_JSON_DEPTH_EXACT
           && (j->nest[level / AIBRIX_JSON_WORD_BITS]
               >> (level % AIBRIX_JSON_WORD_BITS) & 1);
}


/* A value or key begins at p. */
static void
aibrix_json_begin(aibrix_json_t *j, const char *p, aibrix_json_type_e type)
{
    j->type = type;

    if (j->mute) {
        j->take = AIBRIX_JSON_SKIP;
        return;
    }

    j->take = j->reader->begin(j->data, type);

    if (j->take == AIBRIX_JSON_RAW
        || (j->take == AIBRIX_JSON_READ && type >= AIBRIX_JSON_NUMBER
            && type != AIBRIX_JSON_KEY))
    {
        j->raw = 1;
        j->mark = p;
    }
}


/* The value or key taken by j->take has its last byte before p. */
static void
aibrix_json_end(aibrix_json_t *j, const char *p, aibrix_json_type_e type)
{
    if (j->take == AIBRIX_JSON_SKIP) {
        return;
    }

    if (j->raw) {
        j->raw = 0;
        j->reader->text(j->data, j->mark, p - j->mark);
    }

    j->reader->end(j->data, type);
}


static const char *
aibrix_json_number(aibrix_json_t *j, const char *p, const char *end)
{
    unsigned  number;

    number = j->number;

    while (p < end) {

        if (number == NUM_INT && *p >= '0' && *p <= '9') {
            p++;
            continue;
        }

        number = aibrix_json_numbers[number][aibrix_json_chars[(uint8_t) *p]];

        if (number == NUM_BAD) {
            return NULL;
        }

        if (number == NUM_END) {
            aibrix_json_end(j, p, AIBRIX_JSON_NUMBER);
            j->state = JSON_AFTER;
            return p;
        }

        p++;
    }

    j->number = number;

    return p;
}


static const char *
aibrix_json_literal(aibrix_json_t *j, const char *p, const char *end)
{
    while (p < end && *j->literal != '\0') {

        if (*p++ != *j->literal++) {
            return NULL;
        }
    }

    if (*j->literal == '\0') {
        aibrix_json_end(j, p, j->type);
        j->state = JSON_AFTER;
    }

    return p;
}


static const char *
aibrix_json_string(aibrix_json_t *j, const char *p, const char *end)
{
    const char  *run;

    while (p < end) {

        if (j->escape) {
            p = aibrix_json_escape(j, p, end);

            if (p == NULL) {
                return NULL;
            }

            continue;
        }

        run = p;
        p = aibrix_json_run(p, end);

        if (p != run && j->take == AIBRIX_JSON_READ) {
            aibrix_json_copy(j, run, p - run);
        }

        if (p == end) {
            break;
        }

        if (*p == '"') {
            return aibrix_json_string_end(j, p + 1);
        }

        if (*p != '\\') {
            return NULL;
        }

        j->escape = 1;
        p++;
    }

    aibrix_json_flush(j);

    return p;
}


static const char *
aibrix_json_string_end(aibrix_json_t *j, const char *p)
{
    aibrix_json_lone(j);
    aibrix_json_flush(j);
    aibrix_json_end(j, p, j->type);

    j->state = (j->type == AIBRIX_JSON_KEY) ? JSON_COLON : JSON_AFTER;

    return p;
}


/* Finds the first quote, backslash or control character. */

#if defined(__SSE2__)

static const char *
aibrix_json_run(const char *p, const char *end)
{
    int      mask;
    __m128i  v, hit, quote, slash, control;

    quote = _mm_set1_epi8('"');
    slash = _mm_set1_epi8('\\');
    control = _mm_set1_epi8(0x1f);

    while (end - p >= 16) {
        v = _mm_loadu_si128((const __m128i *) p);

        hit = _mm_or_si128(_mm_cmpeq_epi8(v, quote),
                           _mm_cmpeq_epi8(v, slash));
        hit = _mm_or_si128(hit, _mm_cmpeq_epi8(_mm_min_epu8(v, control), v));

        mask = _mm_movemask_epi8(hit);

        if (mask) {
            return p + __builtin_ctz(mask);
        }

        p += 16;
    }

    while (p < end && *p != '"' && *p != '\\' && (uint8_t) *p >= 0x20) {
        p++;
    }

    return p;
}

#else

#define AIBRIX_JSON_ONES   0x0101010101010101ULL
#define AIBRIX_JSON_HIGHS  0x8080808080808080ULL

static const char *
aibrix_json_run(const char *p, const char *end)
{
    uint64_t  v, hit, quote, slash;

    while (end - p >= 8) {
        memcpy(&v, p, 8);

        quote = v ^ (AIBRIX_JSON_ONES * '"');
        slash = v ^ (AIBRIX_JSON_ONES * '\\');

        /* x - n borrows into the top bit of each byte x below n */

        hit = ((v - AIBRIX_JSON_ONES * 0x20) & ~v)
              | ((quote - AIBRIX_JSON_ONES) & ~quote)
              | ((slash - AIBRIX_JSON_ONES) & ~slash);

        if (hit & AIBRIX_JSON_HIGHS) {
            break;
        }

        p += 8;
    }

    while (p < end && *p != '"' && *p != '\\' && (uint8_t) *p >= 0x20) {
        p++;
    }

    return p;
}

#endif


/* What follows a backslash: \n and the like, or uXXXX. */
static const char *
aibrix_json_escape(aibrix_json_t *j, const char *p, const char *end)
{
    char      c;
    unsigned  digit;

    if (j->escape == 1) {

        if (*p != 'u') {
            c = aibrix_json_escapes[(uint8_t) *p];

            if (c == '\0') {
                return NULL;
            }

            j->escape = 0;

            if (j->take == AIBRIX_JSON_READ) {
                aibrix_json_copy(j, &c, 1);
            }

            return p + 1;
        }

        j->escape = 2;
        j->unit = 0;
        p++;
    }

    while (p < end) {
        digit = aibrix_json_hex[(uint8_t) *p++];

        if (digit == 0) {
            return NULL;
        }

        j->unit = j->unit << 4 | (digit - 1);
        j->escape++;

        if (j->escape == 6) {
            j->escape = 0;

            if (j->take == AIBRIX_JSON_READ) {
                aibrix_json_unit(j);
            }

            break;
        }
    }

    return p;
}


/*
 * Two surrogates that belong together are one character; one that has no
 * partner becomes U+FFFD, as in Go.
 */
static void
aibrix_json_unit(aibrix_json_t *j)
{
    uint32_t  unit;

    unit = j->unit;

    if (j->high && unit >= 0xdc00 && unit <= 0xdfff) {
        unit = 0x10000 + ((j->high - 0xd800) << 10) + (unit - 0xdc00);
        j->high = 0;
        aibrix_json_char(j, unit);
        return;
    }

    aibrix_json_lone(j);

    if (unit >= 0xd800 && unit <= 0xdbff) {
        j->high = unit;
        return;
    }

    if (unit >= 0xdc00 && unit <= 0xdfff) {
        unit = 0xfffd;
    }

    aibrix_json_char(j, unit);
}


static void
aibrix_json_lone(aibrix_json_t *j)
{
    if (j->high) {
        j->high = 0;
        aibrix_json_char(j, 0xfffd);
    }
}


static void
aibrix_json_char(aibrix_json_t *j, uint32_t c)
{
    char  *out;

    if (AIBRIX_JSON_OUT_SIZE - j->out_len < AIBRIX_JSON_UTF8_MAX) {
        aibrix_json_flush(j);
    }

    out = j->out + j->out_len;

    if (c < 0x80) {
        *out++ = (char) c;

    } else if (c < 0x800) {
        *out++ = (char) (0xc0 | c >> 6);
        *out++ = (char) (0x80 | (c & 0x3f));

    } else if (c < 0x10000) {
        *out++ = (char) (0xe0 | c >> 12);
        *out++ = (char) (0x80 | (c >> 6 & 0x3f));
        *out++ = (char) (0x80 | (c & 0x3f));

    } else {
        *out++ = (char) (0xf0 | c >> 18);
        *out++ = (char) (0x80 | (c >> 12 & 0x3f));
        *out++ = (char) (0x80 | (c >> 6 & 0x3f));
        *out++ = (char) (0x80 | (c & 0x3f));
    }

    j->out_len = (unsigned) (out - j->out);
}


static void
aibrix_json_copy(aibrix_json_t *j, const char *p, size_t len)
{
    aibrix_json_lone(j);

    if (len > AIBRIX_JSON_OUT_SIZE - j->out_len
        || len >= AIBRIX_JSON_RUN_SHORT)
    {
        aibrix_json_flush(j);
    }

    if (len >= AIBRIX_JSON_RUN_SHORT) {
        j->reader->text(j->data, p, len);
        return;
    }

    memcpy(j->out + j->out_len, p, len);
    j->out_len += (unsigned) len;
}


static void
aibrix_json_flush(aibrix_json_t *j)
{
    if (j->out_len) {
        j->reader->text(j->data, j->out, j->out_len);
        j->out_len = 0;
    }
}
