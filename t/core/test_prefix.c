
/* Prefix hashes: AIBrix's vectors, any cut into spans, libxxhash's answers. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "prefix.h"


#define TEXT  4096
#define MAX   TEXT


static uint64_t  seed_of_test = 1;


static uint32_t
test_random(uint32_t n)
{
    seed_of_test = seed_of_test * 6364136223846793005ull + 1442695040888963407;

    return (uint32_t) (seed_of_test >> 33) % n;
}


static size_t
hash_one(const char *text, size_t len, size_t block, uint64_t seed,
    uint64_t *hashes, size_t max)
{
    aibrix_span_t  span;

    span.data = text;
    span.len = len;

    return aibrix_prefix_hash(&span, 1, block, seed, hashes, max);
}


/* The definition, word for word. */
static size_t
hash_plainly(const char *text, size_t len, size_t block, uint64_t seed,
    uint64_t *hashes)
{
    int            k;
    size_t         i;
    uint64_t       parent;
    unsigned char  bytes[8 + TEXT];

    parent = seed;

    for (i = 0; (i + 1) * block <= len; i++) {

        for (k = 0; k < 8; k++) {
            bytes[k] = (unsigned char) (parent >> (8 * k));
        }

        memcpy(bytes + 8, text + i * block, block);
        parent = XXH64(bytes, 8 + block, seed);
        hashes[i] = parent;
    }

    return i;
}


/* aibrix-reference 3.2 */
static void
test_vectors(void **state)
{
    size_t    i;
    char      text[256];
    uint64_t  hashes[4];

    (void) state;

    assert_int_equal(hash_one("abcdefghi", 9, 4, 0, hashes, 4), 2);
    assert_true(hashes[0] == 0xe47f32a254016b00);
    assert_true(hashes[1] == 0xd48dd7253a12cb4b);

    assert_int_equal(hash_one("abcdefgh", 8, 4, 42, hashes, 4), 2);
    assert_true(hashes[0] == 0xc785304b0ea77c8f);
    assert_true(hashes[1] == 0xa835bbc075607fa3);

    memset(text, 'a', 256);
    assert_int_equal(hash_one(text, 256, 128, 0, hashes, 4), 2);
    assert_true(hashes[0] == 0x4d11fee949b39a7e);
    assert_true(hashes[1] == 0x26b0a80f5409bffa);

    for (i = 0; i < 256; i++) {
        text[i] = (char) i;
    }

    assert_int_equal(hash_one(text, 256, 128, 0, hashes, 4), 2);
    assert_true(hashes[0] == 0x1ce8028a63accf41);
    assert_true(hashes[1] == 0xb9a3a5c901173df8);
}


static void
test_edges(void **state)
{
    uint64_t       hashes[4];
    aibrix_span_t  spans[3];

    (void) state;

    memset(spans, 0, sizeof(spans));
    memset(hashes, 0xee, sizeof(hashes));

    assert_int_equal(aibrix_prefix_hash(NULL, 0, 4, 0, hashes, 4), 0);
    assert_int_equal(aibrix_prefix_hash(spans, 3, 4, 0, hashes, 4), 0);
    assert_int_equal(hash_one("abc", 3, 4, 0, hashes, 4), 0);
    assert_int_equal(hash_one("abcd", 4, 4, 0, hashes, 0), 0);
    assert_true(hashes[0] == 0xeeeeeeeeeeeeeeee);

    /* no more than max, however long the text */

    assert_int_equal(hash_one("abcdefghijkl", 12, 4, 0, hashes, 2), 2);
    assert_true(hashes[1] == 0xd48dd7253a12cb4b);
    assert_true(hashes[2] == 0xeeeeeeeeeeeeeeee);
}


/* Every length of block against libxxhash, seeds and alignments included. */
static void
test_all_block_sizes(void **state)
{
    size_t    i, n, block;
    char      text[TEXT];
    uint64_t  seed, want[MAX], got[MAX];

    (void) state;

    for (i = 0; i < TEXT; i++) {
        text[i] = (char) test_random(256);
    }

    for (block = 1; block < 600; block++) {
        seed = (block % 3 == 0) ? 0 : block * 0x9e3779b97f4a7c15;
        n = hash_plainly(text + block % 8, TEXT - 8, block, seed, want);
        assert_int_equal(hash_one(text + block % 8, TEXT - 8, block, seed, got,
                                  MAX), n);
        assert_memory_equal(got, want, n * sizeof(uint64_t));
    }
}


/* However the text is cut, with empty spans in between. */
static void
test_any_spans(void **state)
{
    size_t         i, n, len, block, nspans;
    char           text[TEXT];
    uint32_t       round, longest;
    uint64_t       want[MAX], got[MAX];
    aibrix_span_t  spans[TEXT * 2];

    (void) state;

    for (i = 0; i < TEXT; i++) {
        text[i] = (char) test_random(256);
    }

    for (round = 0; round < 3000; round++) {
        len = test_random(TEXT);
        block = 1 + test_random(200);
        longest = 1 + test_random((round % 2) ? 8 : 500);
        nspans = 0;

        for (i = 0; i < len && nspans < TEXT * 2; i += n) {
            n = test_random(longest + 1);
            n = (n < len - i) ? n : len - i;
            spans[nspans].data = (n != 0) ? text + i : NULL;
            spans[nspans++].len = n;
        }

        n = hash_plainly(text, i, block, round, want);
        assert_int_equal(aibrix_prefix_hash(spans, nspans, block, round, got,
                                            MAX), n);
        assert_memory_equal(got, want, n * sizeof(uint64_t));
    }
}


int
main(void)
{
    const struct CMUnitTest  tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_all_block_sizes),
        cmocka_unit_test(test_any_spans),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
