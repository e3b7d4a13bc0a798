
#include "ngx_http_engine_sim.h"

#include <math.h>
#include <json-c/json.h>


#define NGX_HTTP_ENGINE_SIM_MAX_OUTPUT  1000000
#define NGX_HTTP_ENGINE_SIM_DEPTH       1000


static json_object *ngx_http_engine_sim_decode(ngx_str_t *body);
static ngx_int_t ngx_http_engine_sim_ascii(ngx_http_request_t *r,
    ngx_str_t *body);
static ngx_int_t ngx_http_engine_sim_escape(u_char **dst, u_char **src,
    u_char *last);
static ngx_int_t ngx_http_engine_sim_body(ngx_http_request_t *r,
    ngx_str_t *body);
static ngx_int_t ngx_http_engine_sim_read_file(ngx_buf_t *b, u_char *dst);
static ngx_int_t ngx_http_engine_sim_read_query(ngx_http_request_t *r,
    ngx_http_engine_sim_t *sim, ngx_http_engine_sim_query_t *q,
    json_object *root);
static ngx_int_t ngx_http_engine_sim_read_model(ngx_http_request_t *r,
    ngx_http_engine_sim_t *sim, ngx_http_engine_sim_query_t *q,
    json_object *root);
static ngx_int_t ngx_http_engine_sim_read_output(ngx_http_engine_sim_t *sim,
    ngx_http_engine_sim_query_t *q, json_object *root);
static ngx_int_t ngx_http_engine_sim_read_stream(
    ngx_http_engine_sim_query_t *q, json_object *root);
static ngx_int_t ngx_http_engine_sim_read_prompt(
    ngx_http_engine_sim_query_t *q, json_object *prompt);
static ngx_int_t ngx_http_engine_sim_read_ids(ngx_http_engine_sim_query_t *q,
    json_object *ids);
static ngx_int_t ngx_http_engine_sim_read_messages(
    ngx_http_engine_sim_query_t *q, json_object *root);
static ngx_int_t ngx_http_engine_sim_read_message(
    ngx_http_engine_sim_query_t *q, json_object *message);
static ngx_int_t ngx_http_engine_sim_read_content(
    ngx_http_engine_sim_query_t *q, json_object *content);


static ngx_int_t
ngx_http_engine_sim_invalid(ngx_http_engine_sim_query_t *q,
    const char *error)
{
    q->error = error;

    return NGX_DECLINED;
}


/* json-c has NULL for null: it is of no type here, as if it were not there */

static ngx_uint_t
ngx_http_engine_sim_is(json_object *value, json_type type)
{
    return value != NULL && json_object_is_type(value, type);
}


static size_t
ngx_http_engine_sim_length(json_object *array)
{
    return ngx_http_engine_sim_is(array, json_type_array)
           ? json_object_array_length(array) : 0;
}


static ngx_int_t
ngx_http_engine_sim_append(ngx_http_engine_sim_query_t *q, const void *data,
    size_t len)
{
    u_char  *p;

    if (len == 0) {
        return NGX_OK;
    }

    p = ngx_array_push_n(&q->text, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(p, data, len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_engine_sim_append_text(ngx_http_engine_sim_query_t *q,
    const char *text)
{
    return ngx_http_engine_sim_append(q, text, ngx_strlen(text));
}


static ngx_int_t
ngx_http_engine_sim_append_string(ngx_http_engine_sim_query_t *q,
    json_object *string)
{
    return ngx_http_engine_sim_append(q, json_object_get_string(string),
                                      json_object_get_string_len(string));
}


ngx_int_t
ngx_http_engine_sim_parse(ngx_http_request_t *r, ngx_http_engine_sim_t *sim,
    ngx_http_engine_sim_query_t *q)
{
    ngx_int_t     rc;
    ngx_str_t     body;
    json_object  *root;

    rc = ngx_http_engine_sim_body(r, &body);

    if (rc == NGX_OK) {
        rc = ngx_http_engine_sim_ascii(r, &body);
    }

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    root = (rc == NGX_OK) ? ngx_http_engine_sim_decode(&body) : NULL;

    if (root == NULL) {
        return ngx_http_engine_sim_invalid(q, "the body is no JSON object");
    }

    rc = ngx_http_engine_sim_read_query(r, sim, q, root);

    json_object_put(root);

    return rc;
}


/* NULL: it is not an object */

static json_object *
ngx_http_engine_sim_decode(ngx_str_t *body)
{
    json_object   *root;
    json_tokener  *tok;

    if (body->len > NGX_MAX_INT32_VALUE) {
        return NULL;
    }

    tok = json_tokener_new_ex(NGX_HTTP_ENGINE_SIM_DEPTH);
    if (tok == NULL) {
        return NULL;
    }

    json_tokener_set_flags(tok, JSON_TOKENER_STRICT);

    root = json_tokener_parse_ex(tok, (char *) body->data, (int) body->len);

    json_tokener_free(tok);

    if (ngx_http_engine_sim_is(root, json_type_object)) {
        return root;
    }

    json_object_put(root);

    return NULL;
}


/*
 * Writes strings in ASCII: in strict mode json-c 0.18 takes nothing else,
 * and before 0.17 it took control characters.  UTF-8 is checked on the way.
 */

static ngx_int_t
ngx_http_engine_sim_ascii(ngx_http_request_t *r, ngx_str_t *body)
{
    u_char      *p, *last, *dst;
    size_t       i, n;
    ngx_uint_t   string;

    n = 0;

    for (i = 0; i < body->len; i++) {
        n += (body->data[i] >= 0x80);
    }

    /* two bytes become six, and so do three; four become twelve */

    dst = ngx_pnalloc(r->pool, body->len + 2 * n + 1);
    if (dst == NULL) {
        return NGX_ERROR;
    }

    p = body->data;
    last = p + body->len;

    body->data = dst;
    string = 0;

    while (p < last) {

        if (*p >= 0x80) {

            if (!string
                || ngx_http_engine_sim_escape(&dst, &p, last) != NGX_OK)
            {
                return NGX_DECLINED;
            }

            continue;
        }

        if (string && *p < 0x20) {
            return NGX_DECLINED;
        }

        if (*p == '"') {
            string = !string;

        } else if (string && *p == '\\' && p + 1 < last && p[1] < 0x80) {
            *dst++ = *p++;
        }

        *dst++ = *p++;
    }

    body->len = dst - body->data;

    return NGX_OK;
}


static ngx_int_t
ngx_http_engine_sim_escape(u_char **dst, u_char **src, u_char *last)
{
    uint32_t  ch;

    ch = ngx_utf8_decode(src, last - *src);

    if (ch > 0x10ffff) {
        return NGX_DECLINED;
    }

    if (ch > 0xffff) {
        ch -= 0x10000;
        *dst = ngx_sprintf(*dst, "\\u%04xD\\u%04xD",
                           0xd800 + (ch >> 10), 0xdc00 + (ch & 0x3ff));

    } else {
        *dst = ngx_sprintf(*dst, "\\u%04xD", ch);
    }

    return NGX_OK;
}


/* the whole body in one piece, from memory or the temporary file */

static ngx_int_t
ngx_http_engine_sim_body(ngx_http_request_t *r, ngx_str_t *body)
{
    off_t         size;
    u_char       *p;
    ngx_buf_t    *b;
    ngx_chain_t  *cl, *bufs;

    bufs = r->request_body ? r->request_body->bufs : NULL;
    size = 0;

    for (cl = bufs; cl; cl = cl->next) {
        size += ngx_buf_size(cl->buf);
    }

    p = ngx_pnalloc(r->pool, size + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    body->data = p;
    body->len = size;

    for (cl = bufs; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            p = ngx_cpymem(p, b->pos, b->last - b->pos);

        } else if (b->in_file) {

            if (ngx_http_engine_sim_read_file(b, p) != NGX_OK) {
                return NGX_ERROR;
            }

            p += b->file_last - b->file_pos;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_engine_sim_read_file(ngx_buf_t *b, u_char *dst)
{
    off_t    offset;
    ssize_t  n;

    for (offset = b->file_pos; offset < b->file_last; offset += n) {

        n = ngx_read_file(b->file, dst, b->file_last - offset, offset);

        if (n <= 0) {
            return NGX_ERROR;
        }

        dst += n;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_engine_sim_read_query(ngx_http_request_t *r,
    ngx_http_engine_sim_t *sim, ngx_http_engine_sim_query_t *q,
    json_object *root)
{
    ngx_int_t     rc;
    json_object  *prompt, *salt;

    if (ngx_array_init(&q->text, r->pool, 4096, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    q->unit = sim->params.bytes_per_token;

    rc = ngx_http_engine_sim_read_model(r, sim, q, root);

    if (rc == NGX_OK) {
        rc = ngx_http_engine_sim_read_output(sim, q, root);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_engine_sim_read_stream(q, root);
    }

    if (rc == NGX_OK) {
        prompt = json_object_object_get(root, "prompt");

        if (q->chat || (q->either && prompt == NULL)) {
            rc = ngx_http_engine_sim_read_messages(q, root);

        } else {
            rc = ngx_http_engine_sim_read_prompt(q, prompt);
        }
    }

    if (rc == NGX_OK) {
        salt = json_object_object_get(root, "cache_salt");
        ngx_http_engine_sim_seed(q, salt ? json_object_get_string(salt)
                                         : NULL);
        q->prompt = ceil((double) q->text.nelts / q->unit);
        q->prompt = ngx_max(q->prompt, 1);
    }

    return rc;
}


static ngx_int_t
ngx_http_engine_sim_read_model(ngx_http_request_t *r,
    ngx_http_engine_sim_t *sim, ngx_http_engine_sim_query_t *q,
    json_object *root)
{
    ngx_str_t     name;
    json_object  *model;

    q->model = sim->model;

    model = json_object_object_get(root, "model");

    if (model == NULL) {
        return NGX_OK;
    }

    if (!ngx_http_engine_sim_is(model, json_type_string)) {
        return ngx_http_engine_sim_invalid(q, "model is not a string");
    }

    name.data = (u_char *) json_object_get_string(model);
    name.len = json_object_get_string_len(model);

    q->model.len = name.len;
    q->model.data = ngx_pstrdup(r->pool, &name);

    return q->model.data ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_engine_sim_read_output(ngx_http_engine_sim_t *sim,
    ngx_http_engine_sim_query_t *q, json_object *root)
{
    int64_t       n;
    json_object  *value;

    q->output = sim->max_tokens;

    value = json_object_object_get(root, "max_completion_tokens");

    if (value == NULL) {
        value = json_object_object_get(root, "max_tokens");
    }

    if (value == NULL) {
        return NGX_OK;
    }

    n = json_object_get_int64(value);

    if (!ngx_http_engine_sim_is(value, json_type_int)
        || n < 1 || n > NGX_HTTP_ENGINE_SIM_MAX_OUTPUT)
    {
        return ngx_http_engine_sim_invalid(q,
                               "max_tokens is not a number from 1 to 1000000");
    }

    q->output = n;

    return NGX_OK;
}


static ngx_int_t
ngx_http_engine_sim_read_stream(ngx_http_engine_sim_query_t *q,
    json_object *root)
{
    json_object  *value;

    value = json_object_object_get(root, "stream");

    if (value && !ngx_http_engine_sim_is(value, json_type_boolean)) {
        return ngx_http_engine_sim_invalid(q, "stream is not a boolean");
    }

    q->stream = json_object_get_boolean(value);

    value = json_object_object_get(root, "stream_options");

    if (value == NULL) {
        return NGX_OK;
    }

    if (!ngx_http_engine_sim_is(value, json_type_object) || !q->stream) {
        return ngx_http_engine_sim_invalid(q,
                            "stream_options is not an object, or not wanted");
    }

    value = json_object_object_get(value, "include_usage");
    q->usage = json_object_get_boolean(value);

    return NGX_OK;
}


/* a string, an array of strings, an array of ids or an array of such */

static ngx_int_t
ngx_http_engine_sim_read_prompt(ngx_http_engine_sim_query_t *q,
    json_object *prompt)
{
    size_t        i, n;
    ngx_int_t     rc;
    json_type     type;
    json_object  *item;

    if (ngx_http_engine_sim_is(prompt, json_type_string)) {
        return ngx_http_engine_sim_append_string(q, prompt);
    }

    n = ngx_http_engine_sim_length(prompt);

    if (n == 0) {
        return ngx_http_engine_sim_invalid(q,
                                   "prompt is not a string or a filled array");
    }

    type = json_object_get_type(json_object_array_get_idx(prompt, 0));

    if (type == json_type_int) {
        return ngx_http_engine_sim_read_ids(q, prompt);
    }

    for (i = 0; i < n; i++) {
        item = json_object_array_get_idx(prompt, i);

        if (type != json_type_string) {
            rc = ngx_http_engine_sim_read_ids(q, item);

        } else if (ngx_http_engine_sim_is(item, type)) {
            rc = ngx_http_engine_sim_append_string(q, item);

        } else {
            rc = ngx_http_engine_sim_invalid(q, "prompt has mixed types");
        }

        if (rc != NGX_OK) {
            return rc;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_engine_sim_read_ids(ngx_http_engine_sim_query_t *q, json_object *ids)
{
    size_t        i, n;
    int64_t       value;
    uint32_t      id;
    json_object  *item;

    n = ngx_http_engine_sim_length(ids);

    if (n == 0) {
        return ngx_http_engine_sim_invalid(q, "prompt has no token ids");
    }

    q->unit = sizeof(uint32_t);

    for (i = 0; i < n; i++) {
        item = json_object_array_get_idx(ids, i);
        value = json_object_get_int64(item);

        if (!ngx_http_engine_sim_is(item, json_type_int)
            || value < 0 || value > NGX_MAX_INT32_VALUE)
        {
            return ngx_http_engine_sim_invalid(q,
                                         "prompt has what is not a token id");
        }

        id = value;

        if (ngx_http_engine_sim_append(q, &id, sizeof(uint32_t)) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* the simplest of chat templates: tools, then each message by its role */

static ngx_int_t
ngx_http_engine_sim_read_messages(ngx_http_engine_sim_query_t *q,
    json_object *root)
{
    size_t        i, n;
    ngx_int_t     rc;
    json_object  *messages, *tools;

    messages = json_object_object_get(root, "messages");
    n = ngx_http_engine_sim_length(messages);

    if (n == 0) {
        return ngx_http_engine_sim_invalid(q,
                                           "messages is not a filled array");
    }

    tools = json_object_object_get(root, "tools");

    if (ngx_http_engine_sim_length(tools) != 0) {
        rc = ngx_http_engine_sim_append_text(q,
                              json_object_to_json_string_ext(tools,
                                                   JSON_C_TO_STRING_PLAIN));
        if (rc != NGX_OK) {
            return rc;
        }
    }

    for (i = 0; i < n; i++) {
        rc = ngx_http_engine_sim_read_message(q,
                                      json_object_array_get_idx(messages, i));

        if (rc != NGX_OK) {
            return rc;
        }
    }

    return ngx_http_engine_sim_append_text(q, "<|assistant|>\n");
}


static ngx_int_t
ngx_http_engine_sim_read_message(ngx_http_engine_sim_query_t *q,
    json_object *message)
{
    ngx_int_t     rc;
    json_object  *role;

    role = ngx_http_engine_sim_is(message, json_type_object)
           ? json_object_object_get(message, "role") : NULL;

    if (!ngx_http_engine_sim_is(role, json_type_string)) {
        return ngx_http_engine_sim_invalid(q, "a message has no role");
    }

    if (ngx_http_engine_sim_append_text(q, "<|") != NGX_OK
        || ngx_http_engine_sim_append_string(q, role) != NGX_OK
        || ngx_http_engine_sim_append_text(q, "|>\n") != NGX_OK)
    {
        return NGX_ERROR;
    }

    rc = ngx_http_engine_sim_read_content(q,
                                  json_object_object_get(message, "content"));

    return rc == NGX_OK ? ngx_http_engine_sim_append_text(q, "\n") : rc;
}


static ngx_int_t
ngx_http_engine_sim_read_content(ngx_http_engine_sim_query_t *q,
    json_object *content)
{
    size_t        i, n;
    ngx_int_t     rc;
    json_object  *part, *text;

    if (content == NULL) {
        return NGX_OK;
    }

    if (ngx_http_engine_sim_is(content, json_type_string)) {
        return ngx_http_engine_sim_append_string(q, content);
    }

    if (!ngx_http_engine_sim_is(content, json_type_array)) {
        return ngx_http_engine_sim_invalid(q,
                                           "content is not a string or array");
    }

    n = ngx_http_engine_sim_length(content);

    for (i = 0; i < n; i++) {
        part = json_object_array_get_idx(content, i);

        text = ngx_http_engine_sim_is(part, json_type_object)
               ? json_object_object_get(part, "text") : NULL;

        rc = ngx_http_engine_sim_is(text, json_type_string)
             ? ngx_http_engine_sim_append_string(q, text)
             : ngx_http_engine_sim_append_text(q, "<|media|>");

        if (rc != NGX_OK) {
            return rc;
        }
    }

    return NGX_OK;
}
