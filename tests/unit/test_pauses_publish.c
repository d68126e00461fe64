/* SPDX-License-Identifier: Apache-2.0
 *
 * A publisher is stopped or killed at each of its store operations, in all that it does; meanwhile others
 * take over, publish and collect. What anybody was told is published stays, readers never go back, and the
 * run goes on; where puts can be conditional, and where they cannot.
 */
#include "rivals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* What a publisher does, and what was there before. */
typedef struct subject {
    const char *name;
    weft_publisher_options options; /* of A */
    bool mirror;
    unsigned before;       /* versions that A has published already */
    unsigned before_other; /* the same of another, whom A takes over from */
    bool reopens;          /* A has ended since, and opens again */
    bool anchors;          /* makes an anchor, instead of publishing */
    bool settles, closes;  /* and then */
    bool as_before;        /* with heads, as another one does: not where they are put without conditions */
} subject;

static const subject subjects[] = {
    {.name = "first publish",
     .options = {.size = sizeof(weft_publisher_options), .anchor_ratio = -1, .no_leaps = true}},
    {.name = "next publish",
     .options = {.size = sizeof(weft_publisher_options), .anchor_ratio = -1, .no_leaps = true},
     .before = 2},
    {.name = "takeover",
     .options = {.size = sizeof(weft_publisher_options), .anchor_ratio = -1, .no_leaps = true},
     .before_other = 2},
    {.name = "publish with an anchor",
     .options = {.size = sizeof(weft_publisher_options),
                 .anchor_ratio = 1e-9,
                 .keep_anchors = 1,
                 .no_leaps = true},
     .before = 2},
    {.name = "publish with an anchor in the background",
     .options = {.size = sizeof(weft_publisher_options),
                 .anchor_ratio = 1e-9,
                 .keep_anchors = 1,
                 .no_leaps = true,
                 .anchors_in_background = true},
     .before = 2,
     .settles = true,
     .as_before = true},
    {.name = "anchor",
     .options = {.size = sizeof(weft_publisher_options), .anchor_ratio = -1, .no_leaps = true},
     .before = 2,
     .anchors = true},
    {.name = "publish with leaps",
     .options = {.size = sizeof(weft_publisher_options), .anchor_ratio = -1},
     .before = 3,
     .settles = true},
    {.name = "publish and close",
     .options = {.size = sizeof(weft_publisher_options),
                 .anchor_ratio = 1e-9,
                 .no_leaps = true,
                 .anchors_in_background = true},
     .before = 1,
     .closes = true,
     .as_before = true},
    {.name = "publish that collects",
     .options = {.size = sizeof(weft_publisher_options),
                 .anchor_ratio = 1e-9,
                 .keep_anchors = 1,
                 .no_leaps = true,
                 .gc_seconds = 1e-3},
     .before = 3,
     .as_before = true},
    {.name = "publish with a mirror",
     .options = {.size = sizeof(weft_publisher_options), .anchor_ratio = -1, .no_leaps = true},
     .mirror = true,
     .before = 2},
    {.name = "coming back",
     .options = {.size = sizeof(weft_publisher_options), .anchor_ratio = -1, .no_leaps = true},
     .mirror = true,
     .before = 2,
     .reopens = true},
};

typedef struct sweep_options {
    const subject *subject;
    bool plain;
} sweep_options;

static void set_up(rivals *r, const subject *what) {
    r->subject.options = what->options;
    r->subject.options.spool_directory = r->scratch.directory;
    r->subject.options.mirror_path = what->mirror ? r->subject.mirror : NULL;
    rival *first = what->before_other > 0 ? &r->others[1] : &r->subject;
    unsigned versions = what->before_other > 0 ? what->before_other : what->before;
    if (versions > 0) {
        scene_expect(first->context, rival_take(first), WEFT_OK, "begin a run");
    }
    for (unsigned i = 0; i < versions; i++) {
        scene_expect(first->context, rival_publish(r, first), WEFT_OK, "publish before");
    }
    if (versions > 0) {
        scene_expect(first->context, weft_publisher_settle(first->publisher), WEFT_OK, "settle before");
        rivals_follow(r);
    }
    if (what->before_other > 0 || what->reopens) {
        rival_end(first);
    }
}

/* What A does is not known to work: it may be dead, or overtaken. */
static void act(rivals *r, const subject *what) {
    rival *a = &r->subject;
    weft_status status = a->publisher == NULL ? rival_take(a) : WEFT_OK;
    if (status == WEFT_OK && what->anchors) {
        status = weft_publisher_anchor(a->publisher, NULL);
    } else if (status == WEFT_OK) {
        status = rival_publish(r, a);
    }
    if (status == WEFT_OK && what->settles) {
        status = weft_publisher_settle(a->publisher);
    }
    if (what->closes) {
        rival_end(a);
    }
}

static void run(void *opaque, pause_case *pause) {
    const sweep_options *options = opaque;
    rivals r;
    rivals_open(&r, pause, options->plain);
    set_up(&r, options->subject);
    pause_begin(pause, r.subject.faults, rivals_happen, &r);
    act(&r, options->subject);
    if (pause_retries(pause)) {
        act(&r, options->subject);
    }
    if (!pause_alive(pause)) {
        rival_end(&r.subject);
    }
    if (pause_end(pause, r.outside)) {
        rivals_check(&r);
    }
    rivals_close(&r);
}

static void sweep(bool plain) {
    pause_tally tally = {0};
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        sweep_options options = {&subjects[i], plain};
        if (plain && subjects[i].as_before) {
            continue;
        }
        const pause_sweep sweep = {
            .subject = subjects[i].name,
            .place = plain ? "plain" : "conditional",
            .run = run,
            .opaque = &options,
            .events = rivals_event_names,
            .event_count = subjects[i].mirror ? RIVALS_EVENTS : RIVALS_PUBLISH,
        };
        pauses_sweep(&sweep, &tally);
    }
    assert_int_equal(pauses_report(&tally), 0);
}

static void test_conditional(void **state) {
    (void)state;
    if (rivals_place_is_plain()) {
        print_message("this store has no conditional puts\n");
        return;
    }
    sweep(false);
}

static void test_plain(void **state) {
    (void)state;
    sweep(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conditional),
        cmocka_unit_test(test_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
