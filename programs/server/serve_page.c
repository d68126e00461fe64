/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_page.c: hands out the page at /, which is written in page/ as HTML, CSS and JavaScript and made one
 * document, and an array of bytes, by cmake/page.cmake.
 *
 * The page has no data in it. Its script asks for /v1/status and /v1/history as any other client does, with
 * a token if the server wants one. All that it shows may come from strangers (labels, names of followers),
 * so beside the script's own care the browser is told to run this one script, use this one style, talk to
 * this server and nothing else.
 */
#include "serve.h"

#include <serve_page_data.h>
#include <string.h>

bool serve_page_open(serve_page *page) {
    return page_policy(page_script, sizeof page_script, page_style, sizeof page_style,
                       "; connect-src 'self'; frame-ancestors 'none'", page->policy);
}

bool serve_accepts_html(const serve_request *request) {
    const char *accept = serve_field(request, "Accept");
    return accept != NULL && strcasestr(accept, "text/html") != NULL;
}

bool serve_page_wanted(const serve_request *request) {
    return request->route == ROUTE_INFO && request->key[0] == 0 && request->server->runs == NULL &&
           serve_accepts_html(request);
}

enum MHD_Result serve_page_answer(serve_request *request) {
    /* libmicrohttpd takes a pointer that it could write through, and does not. */
    struct MHD_Response *response = MHD_create_response_from_buffer(
        sizeof page_document, (void *)page_document, MHD_RESPMEM_PERSISTENT);
    if (response != NULL) {
        MHD_add_response_header(response, "Content-Type", "text/html; charset=utf-8");
        MHD_add_response_header(response, "Content-Security-Policy", request->server->site->page.policy);
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
        MHD_add_response_header(response, "Cache-Control", "no-store");
    }
    request->body = request->method == METHOD_HEAD ? 0 : sizeof page_document;
    return serve_answer(request, MHD_HTTP_OK, response);
}
