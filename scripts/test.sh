#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# All tests in all builds that matter, then one line that sums them up. A build that fails counts as one
# failed test, and the rest still runs, so that one broken room does not hide the state of the others.
#
# Many tests wait for servers and clocks: several run for each processor, and while those of one build run, the
# next is built behind them, with what they leave of the processors.
set -u
cd "$(dirname "$0")/.."

processors=$(nproc)
passed=0
failed=0
skipped=0
builder=
building=
built=0
builder_log=$(mktemp)

# A directory in memory, if there is room for what tests put there at once. A file system on a disk takes more time than
# all else in tests that make and remove thousands of files: ext4 looks at every inode that was freed in the last seconds
# before it gives one out. Those about files have theirs on the disk in the release.
memory_directory() {
    local place
    [ "$(df --output=avail -B 1G /dev/shm 2> /dev/null | tail -n 1)" -ge 6 ] 2> /dev/null || return
    place=$(mktemp -d /dev/shm/weft-tests.XXXXXX) || return
    # as /tmp is: others may use it, and programs may be run there
    if chmod 1777 "$place" && cp "$(type -P true)" "$place/true" && "$place/true" 2> /dev/null; then
        rm "$place/true"
        echo "$place"
    else
        rm -rf "$place"
    fi
}

clean_up() {
    [ -z "$builder" ] || kill -- -"$builder" 2> /dev/null
    rm -rf "$builder_log" "$WEFT_TEST_MEMORY"
}
WEFT_TEST_MEMORY=$(memory_directory)
export WEFT_TEST_MEMORY
trap clean_up EXIT
trap 'exit 130' INT TERM

# build PRESET TARGET...; @EXPRESSION stands for the unit tests whose names match it
build() {
    local preset=$1 target targets=() tests
    shift
    cmake --preset "$preset" > /dev/null || return
    for target; do
        tests=("$target")
        if [[ $target == @* ]]; then
            mapfile -t tests < <(ctest --test-dir "build/$preset" -N --tests-regex "${target#@}" --label-regex '^unit$' |
                sed -n 's/^ *Test *#[0-9]*: //p')
        fi
        targets+=("${tests[@]}")
    done
    cmake --build --preset "$preset" --parallel "$processors" --target "${targets[@]}"
}

# begin_build PRESET TARGET...: in a process group of its own, so that it can be ended as a whole
begin_build() {
    building=$1
    set -m
    build "$@" > "$builder_log" 2>&1 &
    builder=$!
    set +m
    renice -n 19 -p "$builder" > /dev/null
}

# end_build: waits for it, at its usual priority, and says how it went
end_build() {
    echo "== build: $building"
    renice -n 0 -g "$builder" > /dev/null 2>&1
    wait "$builder"
    local status=$?
    builder=
    tail -n 20 "$builder_log"
    if [ "$status" -ne 0 ]; then
        grep -A 20 -E 'FAILED|error' "$builder_log" | head -n 100
        echo "== build $building failed"
        failed=$((failed + 1))
    fi
    return "$status"
}

# run_tests DIRECTORY CTEST-OPTION...: adds what CTest counted, from its summary line
# "99% tests passed, 1 tests failed out of 100", in which a test that was skipped has passed, and its list of those.
run_tests() {
    local directory=$1
    shift
    local log summary
    log=$(mktemp)
    echo "== tests: $directory $*"
    ctest --test-dir "$directory" --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log"
    local status=${PIPESTATUS[0]}
    summary=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\1 \2/p' "$log")
    local none
    none=$(grep -c '^[[:space:]]*[0-9]* - .* (Skipped)$' "$log")
    # why: as common.sh, cmocka and unittest say it
    grep -hE "^(SKIPPED: |\[  SKIPPED \] test_)|\.\.\. skipped '" "$directory/Testing/Temporary/LastTest.log"
    rm -f "$log"
    if [ -z "$summary" ]; then
        failed=$((failed + 1))
        return
    fi
    local bad=${summary% *} all=${summary#* }
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    fi
    failed=$((failed + bad))
    skipped=$((skipped + none))
    passed=$((passed + all - bad - none))
}

# run_stage "PRESET TARGET..." DIRECTORY CTEST-OPTION...: the tests of the build that was begun, while the next is built
run_stage() {
    local next
    read -r -a next <<< "$1"
    shift
    built=0
    end_build && built=1
    begin_build "${next[@]}"
    run_more "$@"
}

# run_more DIRECTORY CTEST-OPTION...: other tests of the same build, if there is one
run_more() {
    [ "$built" -eq 0 ] || run_tests "$@"
}

# What is about files, or has sparse ones, which a directory in memory fills when they are read.
files='^(test_(apply_files|loco_state|patch_(journal|sinks|trail)|store_(conformance|directory|sized)|tensor_.*)|cli_test_(errors|fault_io|heap_slow|in_place_kill|output|repair|sync_publish)|install.*|abi|python_test_package_wheel)$'
# a bad network makes no difference to conditions: one S3 service will do, and `make soak` has both
again='^cli_test_s3_faults_slow$'
# To a sanitizer nothing is new in what only measures, or mostly waits for another's server, or repeats with many
# processes what tests of the library do with it; nor in the scripts in Python that are about formats, the page in a
# browser, or the proxy, and not about a server. Trainers under MPI wait for each other by spinning, which takes minutes.
waiting='^(test_pauses_publish|cli_(seaweed_)?test_(bench_.*|demo|in_place_kill|loco_mpi|pauses_serve|soak_pauses|store_(nginx|s3)|sync_clock|train_(anew|kept|loco|mpi))|python_test_(fault_proxy|.*format|golden|page|report|rooms))$'
# A thread sanitizer has what threads of different kinds do together, and of loops that the pool runs the largest: of
# the command servers, relays, followers, groups, parts and trainers.
threaded='^(test_(apply_(faults|live)|base_(context|pool)|fork|group_.*|loco_(damage|meeting|rounds)|patch_diff|store_.*|strangers_(progress|store)|sync_.*|train_.*)|cli_test_(fleet|serve|sync_follow|sync_group|sync_parts|train)|python_test_(loco_meeting|relay|relay_damage|relay_history|relay_limits|serve_.*))$'
# It gives up processes that have forked with threads and then start some, as parts do; ranks of groups that are
# processes have those of test_group_threads, which are threads. In a child of ASan the allocator's lock stays taken if
# a thread of the parent held it, and the child of test_sync_parts then waits for ever: cli_test_sync_parts has the same
# code, in processes that were not forked.
forking='^test_(sync_parts|group_ranks)$'
forked='^test_sync_parts$'

# The forms of kernels for aarch64 against the portable ones, and its command beside the release, under qemu.
arm64_tests=(test_base_bf16 test_base_context test_loco_gate test_loco_tokens test_patch_kernels test_patch_packed
    test_patch_rans test_rollout_correction test_rollout_kv_edges test_rollout_objective test_tensor_digest)
scripts/arm64.sh
arm64=$?
case $arm64 in
0) ;;
77) skipped=$((skipped + 1)) ;;
*)
    echo "== scripts/arm64.sh failed"
    failed=$((failed + 1))
    ;;
esac

begin_build release all
run_stage 'asan all' build --parallel $((4 * processors)) --tests-regex "$files"
[ -z "$WEFT_TEST_MEMORY" ] || export TMPDIR=$WEFT_TEST_MEMORY
run_more build --parallel $((4 * processors)) --exclude-regex "$files|$again"
# the cases of a sweep differ in what fails; the release does them all
WEFT_TEST_STRIDE=10 run_stage "tsan @$threaded weft weft_shared store_tool" build/asan --parallel $((3 * processors)) \
    --label-regex '^(unit|fuzz|cli|python)$' --label-exclude '^slow$' --exclude-regex "$waiting|$forked"
last='clang weft weft_shared'
next=$last
[ "$arm64" -ne 0 ] || next="arm64 weft ${arm64_tests[*]}"
WEFT_TEST_STRIDE=10 run_stage "$next" build/tsan --parallel $((2 * processors)) \
    --tests-regex "$threaded" --label-exclude '^slow$' --exclude-regex "$forking"
if [ "$arm64" -eq 0 ]; then
    WEFT_TEST_STRIDE=10 run_stage "$last" build/arm64 --parallel "$processors" \
        --tests-regex "^(arm64_same_bytes|$(IFS='|' && echo "${arm64_tests[*]}"))\$"
fi
end_build

[ "$arm64" -ne 77 ] || echo "SKIPPED: nothing was built or run for aarch64: scripts/arm64.sh says why"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
