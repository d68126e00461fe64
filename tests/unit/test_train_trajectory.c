/* SPDX-License-Identifier: Apache-2.0
 *
 * test_train_trajectory.c: a slot's object comes back as it went; whatever is not what the run expects is
 * refused, each for its own reason, before and after the checksum; and what a trainer takes from a store.
 */
#include "../../lib/base/context.h"
#include "../../train/learner/collect.h"
#include "../support/faults.h"
#include "../support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 3, SLOT = 1, STEP = 3, VERSION = 4 };

static const train_run chain_run = {
    .name = "00112233445566778899aabbccddeeff",
    .config = {16, 32, 1, 2, 2, 48, 32, true, 10000, 1e-5},
    .task = {.kind = LM_TASK_CHAIN, .steps = 5, .period = 2},
    .seed = 7,
    .steps = 10,
    .prompts = 4,
    .group = 3,
    .slots = 2,
    .temperature = 1,
    .staleness = 1,
    .trainers = 1,
    .local_steps = 1,
    .outer_rate = 1,
    .kv = {.size = sizeof(weft_kv_options)},
};

typedef struct scene {
    weft_context *context;
    train_run run;
    lm_trainer *trainer;
    weft_digest digest;
    train_trajectory made;
    weft_writer object;
} scene;

static void said(void *opaque, const char *text) {
    unsigned *count = opaque;
    (void)text;
    *count += count != NULL ? 1 : 0;
}

static weft_digest digest_of(weft_context *context, const lm_model *model) {
    weft_view *view = NULL;
    weft_sums *sums = NULL;
    assert_int_equal(weft_view_create(context, lm_model_table(model), &view), WEFT_OK);
    assert_int_equal(weft_sums_compute(context, view, &sums), WEFT_OK);
    weft_digest digest = weft_sums_digest(sums);
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    return digest;
}

static void make(scene *s, uint64_t batch, uint32_t slot, train_trajectory *made) {
    lm_rollout_options work = train_slot_rollout(&s->run, batch, slot);
    *made = (train_trajectory){
        .batch = batch,
        .slot = slot,
        .step = STEP,
        .version = VERSION,
        .digest = s->digest,
        .worker = "worker-1",
        .effort = {0.25, 0.5, 0.001, 0.002, 12345},
        .caches = {.held = 70, .full = 80, .peak_bytes = 4000, .dense_bytes = 5000},
    };
    snprintf(made->run, sizeof made->run, "%s", s->run.name);
    made->rewards = weft_allocate_array(s->context, train_slot_sequences(&s->run), sizeof *made->rewards);
    assert_non_null(made->rewards);
    assert_int_equal(lm_rollout(s->trainer->model, &s->run.task, &work, made->rewards, &made->samples),
                     WEFT_OK);
}

static void encode(scene *s) {
    weft_writer_close(&s->object);
    weft_writer_open(&s->object, s->context);
    assert_int_equal(train_trajectory_encode(s->context, &s->made, &s->object), WEFT_OK);
}

static void open_scene(scene *s, const train_run *run) {
    *s = (scene){.run = *run};
    assert_int_equal(weft_context_create(NULL, &s->context), WEFT_OK);
    assert_int_equal(train_run_check(s->context, run), WEFT_OK);
    assert_int_equal(lm_trainer_create(s->context, &run->config, &s->trainer), WEFT_OK);
    assert_int_equal(lm_model_initialise(s->trainer->model, 5), WEFT_OK);
    s->digest = digest_of(s->context, s->trainer->model);
    make(s, BATCH, SLOT, &s->made);
    weft_writer_open(&s->object, s->context);
    encode(s);
}

static void close_scene(scene *s) {
    train_trajectory_close(&s->made);
    weft_writer_close(&s->object);
    lm_trainer_destroy(s->trainer);
    weft_context_destroy(s->context);
}

static train_reason parse(scene *s, const void *data, size_t size) {
    train_trajectory found = {.samples = NULL};
    train_reason reason = TRAIN_GOOD;
    weft_status status = train_trajectory_parse(s->context, &s->run, data, size, &found, &reason);
    assert_true((status == WEFT_OK) == (reason == TRAIN_GOOD));
    assert_true(status == WEFT_OK || (weft_context_error(s->context)[0] != 0 && found.samples == NULL));
    train_trajectory_close(&found);
    return reason;
}

/* Encodes what the caller has changed, and says what becomes of it. */
static train_reason reparse(scene *s) {
    encode(s);
    return parse(s, s->object.data, s->object.size);
}

/* ---- there and back ---- */

static void assert_same(const train_trajectory *a, const train_trajectory *b) {
    const lm_samples *left = a->samples;
    const lm_samples *right = b->samples;
    size_t tokens = left->starts[left->sequences];
    assert_string_equal(a->run, b->run);
    assert_string_equal(a->worker, b->worker);
    assert_true(a->batch == b->batch && a->slot == b->slot && a->step == b->step &&
                a->version == b->version && weft_digest_equal(&a->digest, &b->digest));
    assert_memory_equal(&a->effort, &b->effort, sizeof a->effort);
    assert_memory_equal(&a->caches, &b->caches, sizeof a->caches);
    assert_int_equal(left->sequences, right->sequences);
    assert_memory_equal(left->starts, right->starts, (left->sequences + 1) * sizeof *left->starts);
    assert_memory_equal(left->prompts, right->prompts, left->sequences * sizeof *left->prompts);
    assert_memory_equal(left->tokens, right->tokens, tokens * sizeof *left->tokens);
    assert_memory_equal(left->logp, right->logp, tokens * sizeof *left->logp);
    assert_memory_equal(a->rewards, b->rewards, left->sequences * sizeof *a->rewards);
}

static void check_round_trip(const train_run *run) {
    scene s;
    train_trajectory found;
    train_reason reason;
    open_scene(&s, run);
    assert_true(s.object.size <= train_trajectory_bytes_max(run));
    assert_int_equal(train_trajectory_parse(s.context, run, s.object.data, s.object.size, &found, &reason),
                     WEFT_OK);
    assert_same(&s.made, &found);
    train_trajectory_close(&found);
    close_scene(&s);
}

static void test_round_trip(void **state) {
    (void)state;
    train_run addition = chain_run;
    addition.task = (lm_task){.kind = LM_TASK_ADDITION, .digits = 2};
    check_round_trip(&chain_run);
    check_round_trip(&addition);
}

/* A response of the largest size makes the largest object, if the worker's name is the longest. */
static void test_largest(void **state) {
    (void)state;
    scene s;
    open_scene(&s, &chain_run);
    memset(s.made.worker, 'w', WEFT_FOLLOWER_NAME - 1);
    s.made.worker[WEFT_FOLLOWER_NAME - 1] = 0;
    assert_int_equal(reparse(&s), TRAIN_GOOD);
    assert_int_equal(s.object.size, train_trajectory_bytes_max(&chain_run));
    close_scene(&s);
}

/* ---- what is refused ---- */

static void test_damage(void **state) {
    (void)state;
    scene s;
    open_scene(&s, &chain_run);
    for (size_t i = 0; i < s.object.size; i++) {
        s.object.data[i] ^= 0x10;
        assert_int_equal(parse(&s, s.object.data, s.object.size), TRAIN_BAD_FORM);
        s.object.data[i] ^= 0x10;
    }
    for (size_t size = 0; size < s.object.size; size++) {
        assert_int_not_equal(parse(&s, s.object.data, size), TRAIN_GOOD);
    }
    size_t large = train_trajectory_bytes_max(&chain_run) + 1;
    uint8_t *longer = calloc(1, large);
    assert_non_null(longer);
    memcpy(longer, s.object.data, s.object.size);
    assert_int_equal(parse(&s, longer, large), TRAIN_BAD_SIZE);
    free(longer);
    close_scene(&s);
}

static void test_lies(void **state) {
    (void)state;
    scene s;
    open_scene(&s, &chain_run);
    train_trajectory good = s.made;
    lm_samples *samples = s.made.samples;
    size_t prompt = samples->prompts[0];

    s.made.run[0] = 'f';
    assert_int_equal(reparse(&s), TRAIN_BAD_RUN);
    s.made = good;
    s.made.batch = chain_run.steps;
    assert_int_equal(reparse(&s), TRAIN_BAD_PLACE);
    s.made.batch = BATCH + 1;
    assert_int_equal(reparse(&s), TRAIN_BAD_TOKENS); /* that batch has other prompts */
    s.made = good;
    s.made.slot = chain_run.slots;
    assert_int_equal(reparse(&s), TRAIN_BAD_PLACE);
    s.made = good;
    s.made.effort.pull = NAN;
    assert_int_equal(reparse(&s), TRAIN_BAD_FORM);
    s.made.effort.pull = -1;
    assert_int_equal(reparse(&s), TRAIN_BAD_FORM);
    s.made = good;
    s.made.caches.held = s.made.caches.full + 1; /* more than there were */
    assert_int_equal(reparse(&s), TRAIN_BAD_FORM);
    s.made = good;
    s.made.caches.peak_bytes = UINT64_MAX;
    assert_int_equal(reparse(&s), TRAIN_BAD_FORM);
    s.made = good;

    samples->tokens[1] = (lm_token)((samples->tokens[1] + 1) % 10);
    assert_int_equal(reparse(&s), TRAIN_BAD_TOKENS);
    samples->tokens[1] = (lm_token)((samples->tokens[1] + 9) % 10);
    lm_token kept = samples->tokens[prompt];
    samples->tokens[prompt] = 16;
    assert_int_equal(reparse(&s), TRAIN_BAD_TOKENS);
    samples->tokens[prompt] = kept;
    float logp = samples->logp[prompt];
    const float bad[] = {NAN, INFINITY, -INFINITY, 0.5f};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        samples->logp[prompt] = bad[i];
        assert_int_equal(reparse(&s), TRAIN_BAD_LOGP);
    }
    samples->logp[prompt] = logp;
    samples->logp[0] = -1;
    assert_int_equal(reparse(&s), TRAIN_BAD_LOGP);
    samples->logp[0] = 0;
    s.made.rewards[0] = 1 - s.made.rewards[0];
    assert_int_equal(reparse(&s), TRAIN_BAD_REWARD);
    s.made.rewards[0] = 1 - s.made.rewards[0];
    samples->sequences--;
    assert_int_equal(reparse(&s), TRAIN_BAD_SIZE);
    samples->sequences++;
    assert_int_equal(reparse(&s), TRAIN_GOOD);
    close_scene(&s);
}

/* Two sequences that share their tokens otherwise than they were made. */
static void test_lengths(void **state) {
    (void)state;
    scene s;
    open_scene(&s, &chain_run);
    s.made.samples->starts[1] -= 1;
    assert_int_equal(reparse(&s), TRAIN_BAD_TOKENS);
    s.made.samples->starts[1] -= s.made.samples->prompts[0];
    assert_int_equal(reparse(&s), TRAIN_BAD_TOKENS);
    close_scene(&s);
}

/* An answer must not go on behind its end, nor end without one. */
static void test_endings(void **state) {
    (void)state;
    train_run addition = chain_run;
    addition.task = (lm_task){.kind = LM_TASK_ADDITION, .digits = 2};
    scene s;
    open_scene(&s, &addition);
    lm_samples *samples = s.made.samples;
    size_t first = samples->prompts[0];
    size_t length = samples->starts[1];
    if (length - first > 1) {
        samples->tokens[first] = LM_TOKEN_END;
        assert_int_equal(reparse(&s), TRAIN_BAD_TOKENS);
    }
    close_scene(&s);
}

static void test_no_memory(void **state) {
    (void)state;
    scene s;
    faults faults = {0};
    open_scene(&s, &chain_run);
    for (size_t n = 1;; n++) {
        faults_reset(&faults, n);
        weft_context_options options = {
            .size = sizeof options, .allocator = faults_allocator(&faults), .threads = 1};
        weft_context *context = NULL;
        train_trajectory found = {.samples = NULL};
        train_reason reason = TRAIN_GOOD;
        weft_status status = weft_context_create(&options, &context);
        if (status == WEFT_OK) {
            status = train_trajectory_parse(context, &s.run, s.object.data, s.object.size, &found, &reason);
        }
        assert_true(faults_fired(&faults) == (status == WEFT_NO_MEMORY));
        assert_int_equal(reason, TRAIN_GOOD);
        train_trajectory_close(&found);
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
        if (!faults_fired(&faults)) {
            break;
        }
    }
    close_scene(&s);
}

/* ---- what a trainer takes ---- */

typedef struct office {
    scene scene;
    scratch scratch;
    weft_store *store;
    unsigned warnings;
    train_watch watch;
    train_patience patience;
    train_collector collector;
} office;

static void open_office(office *o) {
    open_scene(&o->scene, &chain_run);
    scene *s = &o->scene;
    scratch_open(&o->scratch);
    o->warnings = 0;
    o->watch = (train_watch){.note = said, .warn = said, .opaque = &o->warnings};
    assert_int_equal(weft_store_open(s->context, scratch_path(&o->scratch, "store"), NULL, &o->store),
                     WEFT_OK);
    train_patience_open(&o->patience, s->context, &o->watch, 0.2);
    assert_int_equal(
        train_collector_open(&o->collector, s->context, o->store, &s->run, s->trainer->pass, &o->patience),
        WEFT_OK);
    const train_policy before = {.step = STEP - 1, .version = VERSION - 1};
    const train_policy policy = {.step = STEP, .version = VERSION, .digest = s->digest};
    train_collector_note(&o->collector, &before);
    train_collector_note(&o->collector, &policy);
}

static void close_office(office *o) {
    train_collector_close(&o->collector);
    weft_store_close(o->store);
    scratch_close(&o->scratch);
    close_scene(&o->scene);
}

static train_reason check(office *o) {
    scene *s = &o->scene;
    train_trajectory found = {.samples = NULL};
    train_reason reason = TRAIN_GOOD;
    encode(s);
    weft_status status =
        train_collector_check(&o->collector, BATCH, SLOT, s->object.data, s->object.size, &found, &reason);
    assert_true((status == WEFT_OK) == (reason == TRAIN_GOOD));
    train_trajectory_close(&found);
    return reason;
}

static void test_policies(void **state) {
    (void)state;
    office o;
    open_office(&o);
    train_trajectory *made = &o.scene.made;
    size_t first = made->samples->prompts[0];
    assert_int_equal(check(&o), TRAIN_GOOD);
    made->version++; /* the same policy, published twice */
    assert_int_equal(check(&o), TRAIN_GOOD);
    made->version--;
    made->digest.bytes[0] ^= 1;
    assert_int_equal(check(&o), TRAIN_BAD_DIGEST);
    made->digest.bytes[0] ^= 1;
    for (uint64_t step = 0; step < 6; step++) {
        made->step = step;
        train_reason expected = step == STEP - 1 ? TRAIN_BAD_DIGEST
                                : step == STEP   ? TRAIN_GOOD
                                                 : TRAIN_BAD_VERSION;
        assert_int_equal(check(&o), expected);
    }
    made->step = STEP;
    /* the last bit of one log-probability */
    uint32_t bits;
    memcpy(&bits, &made->samples->logp[first], sizeof bits);
    bits ^= 1;
    memcpy(&made->samples->logp[first], &bits, sizeof bits);
    assert_int_equal(check(&o), TRAIN_BAD_SCORE);
    /* of the policy before, which is no longer there, it cannot be known */
    made->step = STEP - 1;
    made->version = VERSION - 1;
    memset(&made->digest, 0, sizeof made->digest);
    assert_int_equal(check(&o), TRAIN_GOOD);
    close_office(&o);
}

static void put_slot(office *o, uint64_t batch, uint32_t slot, const train_trajectory *made) {
    char key[TRAIN_KEY_SIZE];
    weft_writer writer;
    train_slot_key(batch, slot, key);
    weft_writer_open(&writer, o->scene.context);
    assert_int_equal(train_trajectory_encode(o->scene.context, made, &writer), WEFT_OK);
    assert_int_equal(weft_store_put_bytes(o->scene.context, o->store, key, writer.data, writer.size,
                                          WEFT_STORE_ALWAYS, NULL, NULL),
                     WEFT_OK);
    weft_writer_close(&writer);
}

static void test_collect(void **state) {
    (void)state;
    office o;
    open_office(&o);
    scene *s = &o.scene;
    train_trajectory other;
    train_batch batch;
    char key[TRAIN_KEY_SIZE];
    uint64_t size;
    make(s, BATCH, 0, &other);
    snprintf(other.worker, sizeof other.worker, "worker-0");
    /* one slot in the place of the other: refused, removed, and then nothing comes */
    put_slot(&o, BATCH, 0, &s->made);
    put_slot(&o, BATCH, 1, &s->made);
    assert_int_equal(train_collect(&o.collector, BATCH, &batch), WEFT_REMOTE_FAILED);
    assert_int_equal(o.collector.rejected[TRAIN_BAD_PLACE], 1);
    assert_true(o.warnings > 0);
    train_slot_key(BATCH, 0, key);
    assert_int_equal(weft_store_head(s->context, o.store, key, &size, NULL), WEFT_NOT_FOUND);
    train_slot_key(BATCH, 1, key);
    assert_int_equal(weft_store_head(s->context, o.store, key, &size, NULL), WEFT_OK);

    put_slot(&o, BATCH, 0, &other);
    train_patience_calm(&o.patience);
    assert_int_equal(train_collect(&o.collector, BATCH, &batch), WEFT_OK);
    const lm_samples *first = other.samples;
    size_t sequences = train_slot_sequences(&s->run);
    size_t tokens = first->starts[sequences];
    assert_int_equal(batch.rollouts.batch.sequences, 2 * sequences);
    assert_memory_equal(batch.tokens, first->tokens, tokens * sizeof *first->tokens);
    assert_memory_equal(batch.tokens + tokens, s->made.samples->tokens,
                        s->made.samples->starts[sequences] * sizeof *first->tokens);
    assert_int_equal(batch.starts[2 * sequences], tokens + s->made.samples->starts[sequences]);
    assert_int_equal(batch.share_count, 2);
    assert_string_equal(batch.shares[0].name, "worker-0");
    assert_int_equal(batch.shares[1].effort.received, 12345);
    assert_true(batch.staleness == 0 && batch.stalest == 0);
    assert_true(batch.caches.held == 140 && batch.caches.full == 160 && batch.caches.peak_bytes == 8000 &&
                batch.caches.dense_bytes == 10000);
    train_batch_close(&batch);
    train_collector_clear(&o.collector, BATCH);
    assert_int_equal(weft_store_head(s->context, o.store, key, &size, NULL), WEFT_NOT_FOUND);
    train_trajectory_close(&other);
    close_office(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_largest),  cmocka_unit_test(test_damage),
        cmocka_unit_test(test_lies),       cmocka_unit_test(test_lengths),  cmocka_unit_test(test_endings),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_policies), cmocka_unit_test(test_collect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
