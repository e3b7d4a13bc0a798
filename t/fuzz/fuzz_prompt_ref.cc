
/*
 * RapidJSON (Debian: rapidjson-dev) is strict RFC 8259 unless told otherwise,
 * and its iterative mode takes any depth.  It differs from what core/json.h
 * promises in five points, and each is levelled here:
 *
 * 1. A BOM is not skipped by a MemoryStream: it is taken off before.
 * 2. The end of a MemoryStream looks like a NUL byte, so that a NUL after the
 *    object ends the text: the bytes read are counted.
 * 3. A high surrogate without a low one is an error, and a low one without a
 *    high one is encoded as it is: in the copy that RapidJSON gets, both are
 *    \ufffd.
 * 4. Numbers beyond a double are an error: such a number is held against the
 *    grammar here, and is a 1 in the copy that RapidJSON gets.
 * 5. It tells no offsets: the events are walked along in the text.
 *
 * Bytes that are not UTF-8 pass, since its encoding check is not asked for.
 * To be built without -fsanitize=undefined: RapidJSON's stack adds to NULL.
 */

#define XXH_INLINE_ALL

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>
#include <xxhash.h>

#include "fuzz_prompt_ref.h"


namespace {


struct Node {
    char                      type;     /* { [ " 0 t f n */
    size_t                    start;
    size_t                    end;
    std::string               string;
    std::vector<std::string>  keys;
    std::vector<size_t>       members;
};


class Tree {
public:
    explicit Tree(const std::string &text) : text_(text), pos_(0) { }

    void
    reset()
    {
        pos_ = 0;
        nodes.clear();
        open_.clear();
    }

    bool Null() { return leaf('n', 4); }
    bool Bool(bool b) { return leaf(b ? 't' : 'f', b ? 4 : 5); }
    bool Int(int) { return number(); }
    bool Uint(unsigned) { return number(); }
    bool Int64(int64_t) { return number(); }
    bool Uint64(uint64_t) { return number(); }
    bool Double(double) { return number(); }

    bool
    RawNumber(const char *, rapidjson::SizeType, bool)
    {
        return number();
    }

    bool
    String(const char *s, rapidjson::SizeType n, bool)
    {
        size_t  id;

        id = add('"');
        nodes[id].string.assign(s, n);
        nodes[id].end = pos_ = quoted(nodes[id].start);

        return true;
    }

    bool
    Key(const char *s, rapidjson::SizeType n, bool)
    {
        skip();
        pos_ = quoted(pos_);
        nodes[open_.back()].keys.push_back(std::string(s, n));

        return true;
    }

    bool StartObject() { return start('{'); }
    bool StartArray() { return start('['); }
    bool EndObject(rapidjson::SizeType) { return close(); }
    bool EndArray(rapidjson::SizeType) { return close(); }

    std::string
    raw(size_t id) const
    {
        return text_.substr(nodes[id].start, nodes[id].end - nodes[id].start);
    }

    std::vector<Node>  nodes;

private:
    void
    skip()
    {
        while (strchr(" \t\r\n,:", text_.at(pos_)) != NULL) {
            pos_++;
        }
    }

    size_t
    quoted(size_t at) const
    {
        for (at++; text_.at(at) != '"'; at++) {

            if (text_[at] == '\\') {
                at++;
            }
        }

        return at + 1;
    }

    size_t
    add(char type)
    {
        size_t  id;

        skip();

        id = nodes.size();
        nodes.push_back(Node());
        nodes[id].type = type;
        nodes[id].start = pos_;

        if (!open_.empty()) {
            nodes[open_.back()].members.push_back(id);
        }

        return id;
    }

    bool
    leaf(char type, size_t len)
    {
        size_t  id;

        id = add(type);
        nodes[id].end = pos_ = pos_ + len;

        return true;
    }

    bool
    number()
    {
        size_t  end, id;

        id = add('0');
        end = text_.find_first_not_of("0123456789+-.eE", pos_);
        nodes[id].end = pos_ = end;

        return true;
    }

    bool
    start(char type)
    {
        open_.push_back(add(type));
        pos_++;

        return true;
    }

    bool
    close()
    {
        skip();
        pos_++;
        nodes[open_.back()].end = pos_;
        open_.pop_back();

        return true;
    }

    const std::string    &text_;
    size_t                pos_;
    std::vector<size_t>   open_;
};


int
hex4(const std::string &s, size_t at)
{
    size_t  i;

    if (at + 4 > s.size()) {
        return -1;
    }

    for (i = at; i < at + 4; i++) {

        if (!isxdigit((unsigned char) s[i])) {
            return -1;
        }
    }

    return (int) strtol(s.substr(at, 4).c_str(), NULL, 16);
}


/* The code unit of an escape \uXXXX at that place, or -1. */
int
unit(const std::string &s, size_t at)
{
    if (at + 6 > s.size() || s[at] != '\\' || s[at + 1] != 'u') {
        return -1;
    }

    return hex4(s, at + 2);
}


bool
is_high(int c)
{
    return c >= 0xd800 && c <= 0xdbff;
}


bool
is_low(int c)
{
    return c >= 0xdc00 && c <= 0xdfff;
}


/* A backslash has no meaning outside of strings, where it is an error. */
void
replace_lone_surrogates(std::string &s)
{
    size_t  i;

    for (i = 0; i < s.size(); i++) {

        if (s[i] != '\\') {
            continue;
        }

        if (is_high(unit(s, i)) && is_low(unit(s, i + 6))) {
            i += 11;
            continue;
        }

        if (is_high(unit(s, i)) || is_low(unit(s, i))) {
            s.replace(i, 6, "\\ufffd");
        }

        i++;
    }
}


size_t
digits(const std::string &s, size_t at)
{
    while (at < s.size() && isdigit((unsigned char) s[at])) {
        at++;
    }

    return at;
}


bool
is_number(const std::string &s)
{
    size_t  at, end;

    at = !s.empty() && s[0] == '-';
    end = digits(s, at);

    if (end == at || (s[at] == '0' && end > at + 1)) {
        return false;
    }

    at = end;

    if (at < s.size() && s[at] == '.') {
        end = digits(s, at + 1);

        if (end == at + 1) {
            return false;
        }

        at = end;
    }

    if (at < s.size() && (s[at] == 'e' || s[at] == 'E')) {
        at++;

        if (at < s.size() && (s[at] == '+' || s[at] == '-')) {
            at++;
        }

        end = digits(s, at);

        if (end == at) {
            return false;
        }

        at = end;
    }

    return at == s.size();
}


/* The tree of a text without BOM; false when it is malformed. */
bool
parse(const std::string &text, Tree &tree)
{
    size_t       at, end;
    std::string  copy;

    copy = text;
    replace_lone_surrogates(copy);

    for ( ;; ) {
        rapidjson::Reader        reader;
        rapidjson::ParseResult   result;
        rapidjson::MemoryStream  stream(copy.data(), copy.size());

        tree.reset();

        result = reader.Parse<rapidjson::kParseIterativeFlag>(stream, tree);

        if (!result.IsError()) {
            return stream.Tell() == copy.size() && tree.nodes[0].type == '{';
        }

        if (result.Code() != rapidjson::kParseErrorNumberTooBig) {
            return false;
        }

        at = result.Offset();
        end = copy.find_first_not_of("0123456789+-.eE", at);
        end = end == std::string::npos ? copy.size() : end;

        if (!is_number(copy.substr(at, end - at))) {
            return false;
        }

        copy.replace(at, end - at, "1" + std::string(end - at - 1, ' '));
    }
}


class Request {
public:
    explicit Request(const Tree &tree) : tree_(tree) { }

    /* The last member of that name, or NULL. */
    const Node *
    find(const Node &object, const char *key) const
    {
        size_t  i;

        for (i = object.keys.size(); i-- > 0; ) {

            if (object.keys[i] == key) {
                return &tree_.nodes[object.members[i]];
            }
        }

        return NULL;
    }

    const Node *
    top(const char *key) const
    {
        const Node  *node;

        node = find(tree_.nodes[0], key);

        return node == NULL || node->type == 'n' ? NULL : node;
    }

    std::string
    raw(const Node &node) const
    {
        return tree_.raw((size_t) (&node - &tree_.nodes[0]));
    }

    std::string
    text(const Node &node) const
    {
        return node.type == '"' ? node.string : raw(node);
    }

    std::string
    section(const char *key) const
    {
        const Node  *node;

        node = top(key);

        return node == NULL ? "" : text(*node);
    }

    std::string
    tools(const char *key) const
    {
        const Node  *node;

        node = top(key);

        if (node == NULL || (node->type == '[' && node->members.empty())) {
            return "";
        }

        return raw(*node);
    }

    std::string
    id(const Node &number) const
    {
        bool         plain;
        size_t       i;
        uint32_t     id;
        std::string  digits;

        digits = raw(number);
        id = 0;
        plain = true;

        for (i = 0; i < digits.size(); i++) {

            plain = plain && isdigit((unsigned char) digits[i])
                    && id * 10ULL + (digits[i] - '0') < 1ULL << 32;

            id = plain ? id * 10 + (digits[i] - '0')
                       : (id ^ (unsigned char) digits[i]) * 16777619U;
        }

        digits = "";

        for (i = 0; i < 4; i++) {
            digits += (char) (id >> (24 - 8 * i));
        }

        return digits;
    }

    /* takes: s strings, c objects' content, o objects, i token ids */
    std::string
    list(const char *key, const char *takes, bool *any) const
    {
        size_t       i, k;
        std::string  result;
        const Node  *node, *content;

        *any = false;
        node = top(key);

        if (node == NULL) {
            return "";
        }

        if ((node->type == '"' && strchr(takes, 's'))
            || (node->type == '{' && strchr(takes, 'o')))
        {
            *any = true;
            return text(*node);
        }

        if (node->type != '[') {
            return "";
        }

        for (i = 0; i < node->members.size(); i++) {
            const Node  &item = tree_.nodes[node->members[i]];

            if ((item.type == '"' && strchr(takes, 's'))
                || (item.type == '{' && strchr(takes, 'o')))
            {
                result += (*any ? " " : "") + text(item);
                *any = true;

            } else if (item.type == '{' && strchr(takes, 'c')) {
                result += *any ? " " : "";
                *any = true;

                content = find(item, "content");
                result += content == NULL ? "" : text(*content);

            } else if (item.type == '0' && strchr(takes, 'i')) {
                result += id(item);

            } else if (item.type == '[' && strchr(takes, 'i')) {

                for (k = 0; k < item.members.size(); k++) {

                    if (tree_.nodes[item.members[k]].type == '0') {
                        result += id(tree_.nodes[item.members[k]]);
                    }
                }
            }
        }

        return result;
    }

    /* Lone in its object is each key, down to the items of lists. */
    bool
    no_duplicates() const
    {
        size_t  n, i, k;

        for (n = 0; n < tree_.nodes.size(); n++) {
            const std::vector<std::string>  &keys = tree_.nodes[n].keys;

            for (i = 0; i < keys.size(); i++) {

                for (k = 0; k < i; k++) {

                    if (keys[i] == keys[k]) {
                        return false;
                    }
                }
            }
        }

        return true;
    }

private:
    const Tree  &tree_;
};


std::string
number(uint64_t n)
{
    int          i;
    std::string  s;

    for (i = 0; i < 8; i++) {
        s += (char) (n >> 8 * i);
    }

    return s;
}


std::string
name(const Request &request, const Node *node)
{
    std::string  s, rest;

    if (node == NULL) {
        return std::string(1, '\0') + number(0);
    }

    s = request.text(*node);

    if (s.size() > AIBRIX_PROMPT_MODEL_MAX) {
        rest = s.substr(AIBRIX_PROMPT_MODEL_MAX);
        rest = number(XXH64(rest.data(), rest.size(), 0));
    }

    return std::string(1, node->type == '"' ? '\1' : '\2') + number(s.size())
           + s.substr(0, AIBRIX_PROMPT_MODEL_MAX) + rest;
}


/* The last of the keys that name a LoRA, whichever it is. */
const Node *
lora(const Tree &tree)
{
    size_t       i;
    const Node  *node;

    node = NULL;

    for (i = 0; i < tree.nodes[0].keys.size(); i++) {
        const std::string  &key = tree.nodes[0].keys[i];

        if (key == "lora_path" || key == "lora_name" || key == "adapter_id") {
            node = &tree.nodes[tree.nodes[0].members[i]];
        }
    }

    return node == NULL || node->type == 'n' ? NULL : node;
}


const Node *
model(const Request &request)
{
    const Node  *node;

    node = request.top("model");

    return node == NULL || node->type != '"' ? NULL : node;
}


uint64_t
tenant(const Tree &tree, const Request &request, uint64_t seed)
{
    uint64_t     hash;
    std::string  s;

    if (model(request) == NULL && request.top("cache_salt") == NULL
        && lora(tree) == NULL)
    {
        return 0;
    }

    s = name(request, model(request))
        + name(request, request.top("cache_salt"))
        + name(request, lora(tree));
    hash = XXH64(s.data(), s.size(), seed);

    return hash ? hash : 1;
}


std::string
join(const std::string &a, const std::string &b)
{
    return a + (a.empty() || b.empty() ? "" : " ") + b;
}


aibrix_api_e
decide(const Request &request)
{
    if (request.top("messages") != NULL) {
        return AIBRIX_API_CHAT;
    }

    if (request.top("prompt") != NULL) {
        return AIBRIX_API_COMPLETIONS;
    }

    return request.top("input") != NULL ? AIBRIX_API_RESPONSES
                                        : AIBRIX_API_RERANK;
}


/* *front is set to what comes before the main section. */
std::string
text(const Request &request, aibrix_api_e api, std::string *front)
{
    bool         any;
    std::string  documents;

    switch (api) {

    case AIBRIX_API_COMPLETIONS:
        return request.list("prompt", "si", &any);

    case AIBRIX_API_CHAT:
        *front = join(join(request.tools("tools"),
                           request.tools("functions")),
                      request.section("system"));
        return join(*front, request.list("messages", "c", &any));

    case AIBRIX_API_RESPONSES:
        *front = join(join(request.tools("tools"),
                           request.tools("functions")),
                      request.section("instructions"));
        return join(*front, request.list("input", "sci", &any));

    case AIBRIX_API_RERANK:
        *front = request.section("query");
        documents = request.list("documents", "so", &any);
        return *front + (any && request.top("query") != NULL ? " " : "")
               + documents;

    default:
        return request.list("input", "sci", &any);
    }
}


char *
copy_of(const std::string &s)
{
    char  *p;

    p = (char *) malloc(s.size() + 1);
    memcpy(p, s.data(), s.size());

    return p;
}


}   /* namespace */


void
prompt_ref_read(prompt_ref_t *ref, aibrix_api_e api, const char *body,
    size_t len, size_t max_prompt, uint64_t seed)
{
    std::string  bytes, front, prompt, named;

    bytes.assign(body, len);

    if (bytes.compare(0, 3, "\xef\xbb\xbf") == 0) {
        bytes.erase(0, 3);
    }

    Tree     tree(bytes);
    Request  request(tree);

    memset(ref, 0, sizeof(prompt_ref_t));

    if (!parse(bytes, tree)) {
        return;
    }

    ref->ok = 1;
    ref->stream = request.top("stream") != NULL
                  && request.top("stream")->type == 't';
    ref->tenant = tenant(tree, request, seed);

    named = model(request) == NULL ? "" : model(request)->string;
    named = named.substr(0, AIBRIX_PROMPT_MODEL_MAX);

    ref->plain = api != AIBRIX_API_UNKNOWN && request.no_duplicates();
    api = api == AIBRIX_API_UNKNOWN ? decide(request) : api;

    prompt = text(request, api, &front).substr(0, max_prompt);
    ref->plain = ref->plain && front.empty()
                 && (api != AIBRIX_API_RERANK
                     || request.top("query") == NULL);

    ref->model_len = named.size();
    ref->model = copy_of(named);
    ref->text_len = prompt.size();
    ref->text = copy_of(prompt);
}


void
prompt_ref_free(prompt_ref_t *ref)
{
    free(ref->model);
    free(ref->text);
}
