
#include "ngx_http_aibrix_module.h"


ngx_table_elt_t *
ngx_http_aibrix_find_header(ngx_list_t *headers, const char *name,
    ngx_uint_t skip)
{
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = ngx_strlen(name);
    part = &headers->part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {

            if (part->next == NULL) {
                return NULL;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        if (h[i].key.len == len
            && ngx_strncasecmp(h[i].key.data, (u_char *) name, len) == 0
            && skip-- == 0)
        {
            return &h[i];
        }
    }
}
