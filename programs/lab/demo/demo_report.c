/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_report.c: writes the report of a run: one file that any browser shows, whether there is a network or
 * not. The page is written in page/ (report.html, report.css, report.js and what they share with the page
 * of weft serve); what is added here is the data, as JSON that the browser does not run, and the policy
 * that keeps it from running or fetching anything else.
 */
#include "../../server/page.h"
#include "demo.h"

#include <demo_page_data.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static json_t *describe(const demo_report *report) {
    char version[32], machine[64];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(version, sizeof version, "%d.%d.%d", WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR,
             WEFT_VERSION_PATCH);
    snprintf(machine, sizeof machine, "%ld processors", sysconf(_SC_NPROCESSORS_ONLN));
    json_t *json = json_object();
    json_object_set_new(json, "weft", json_string(version));
    json_object_set_new(json, "made", json_integer((json_int_t)now.tv_sec * 1000));
    json_object_set_new(json, "machine", json_string(machine));
    json_t *typed = json_string(report->command); /* fails for what is not UTF-8 */
    json_object_set_new(json, "command", typed != NULL ? typed : json_string("weft demo"));
    json_object_set_new(json, "interrupted", json_boolean(report->interrupted));
    json_object_set(json, "run", (json_t *)report->run);
    json_object_set(json, "summary", (json_t *)report->summary);
    json_object_set(json, "large", (json_t *)report->large);
    json_object_set(json, "steps", (json_t *)report->steps);
    return json;
}

/* A '<' stands in JSON only within texts, where it may be escaped: then no text can end the element. */
static void print_data(FILE *out, const char *json) {
    fputs("<script type=\"application/json\" id=\"data\">", out);
    for (; *json != 0; json++) {
        if (*json == '<') {
            fputs("\\u003c", out);
        } else {
            putc(*json, out);
        }
    }
    fputs("</script>", out);
}

/* Prints the document from `*at` to a mark, and goes behind that. */
static void print_until(FILE *out, size_t *at, const char *mark) {
    const char *found = memmem(page_document + *at, sizeof page_document - *at, mark, strlen(mark));
    size_t end = found != NULL ? (size_t)(found - page_document) : sizeof page_document;
    fwrite(page_document + *at, 1, end - *at, out);
    *at = found != NULL ? end + strlen(mark) : end;
}

static char *make_page(const demo_report *report, size_t *size_out) {
    char policy[PAGE_POLICY];
    char *text = NULL;
    json_t *json = describe(report);
    char *data = json_dumps(json, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(json);
    FILE *out = data != NULL && page_policy(page_script, sizeof page_script, page_style, sizeof page_style,
                                            "", policy)
                    ? open_memstream(&text, size_out)
                    : NULL;
    if (out != NULL) {
        size_t at = 0;
        print_until(out, &at, "<!-- policy -->");
        fprintf(out, "<meta http-equiv=\"Content-Security-Policy\" content=\"%s\">", policy);
        print_until(out, &at, "<!-- data -->");
        print_data(out, data);
        fwrite(page_document + at, 1, sizeof page_document - at, out);
        if (fclose(out) != 0) {
            free(text);
            text = NULL;
        }
    }
    free(data);
    return text;
}

int demo_report_write(weft_command *command, const char *path, const demo_report *report) {
    size_t size = 0;
    weft_output output;
    char *page = make_page(report, &size);
    if (page == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the report");
    }
    int code = output_open(command, &output, path, false);
    if (code == EXIT_DONE) {
        weft_status status = output.sink.write(output.sink.opaque, page, size);
        code = status == WEFT_OK ? output_finish(command, &output) : command_fail(command, NULL, status);
        output_close(&output);
    }
    free(page);
    return code;
}
