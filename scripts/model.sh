#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# model.sh [reduced]: has spin check the models of doc/model, which its README.md is about. A model must hold; it must
# not with a defect put into it (-DMUTANT_...), nor beyond what a plain store bears (-DLIMIT_...). Reduced: only what
# takes a second or so.
#
# Each line of the tables is: what must come of it, the model, and its sizes.
set -u
cd "$(dirname "$0")/.."

if ! type -P spin > /dev/null; then
    echo "SKIPPED: there is no spin; make deps-test installs it"
    exit 77
fi
size=${1:-whole}
place=build/model/$size
rm -rf "$place"
mkdir -p "$place"
checks=0
failures=0

small='
holds    publish.pml  -DREADER -DGC -DGIVEN_UP=1
holds    publish.pml  -DWRITERS=1 -DEDITIONS=2 -DAGAIN -DGC -DREADER -DGIVEN_UP=1 -DRESTARTS=1
holds    publish.pml  -DPLAIN -DREADER -DGC
holds    publish.pml  -DPLAIN -DWRITERS=1 -DEDITIONS=2 -DAGAIN -DGC -DREADER -DGIVEN_UP=1
holds    publish.pml  -DPLAIN -DWRITERS=3
formula  publish.pml  -DLIVE -DEDITIONS=2 -DGIVEN_UP=1
formula  publish.pml  -DLIVE -DPLAIN -DEDITIONS=2 -DGIVEN_UP=1
holds    parts.pml    -DTURNS=1 -DMEMBERS=2
holds    parts.pml
holds    group.pml
'
mutants='
breaks   publish.pml  -DPLAIN -DLIMIT_OVERLAP -DWRITERS=3
breaks   publish.pml  -DPLAIN -DLIMIT_LATE -DWRITERS=1 -DEDITIONS=2 -DGIVEN_UP=1
breaks   publish.pml  -DMUTANT_NO_SEAL
breaks   publish.pml  -DMUTANT_CLAIM_FIRST
breaks   publish.pml  -DMUTANT_WRITE_OVER -DWRITERS=1 -DEDITIONS=2 -DAGAIN -DGC -DGIVEN_UP=1
breaks   publish.pml  -DMUTANT_WRITE_OVER -DWRITERS=1 -DEDITIONS=2 -DAGAIN -DREADER -DGIVEN_UP=1
breaks   publish.pml  -DMUTANT_GC_AGE -DGC
breaks   publish.pml  -DMUTANT_GC_PAGE -DGC -DAGAIN
breaks   publish.pml  -DPLAIN -DMUTANT_GC_AGE -DGC
breaks   publish.pml  -DPLAIN -DMUTANT_GC_UNSETTLED -DGC
breaks   publish.pml  -DPLAIN -DMUTANT_GC_ONE_LOOK -DGC
breaks   publish.pml  -DPLAIN -DMUTANT_NO_SETTLE
breaks   publish.pml  -DPLAIN -DMUTANT_BELIEVE_UNSETTLED
breaks   publish.pml  -DPLAIN -DMUTANT_BELIEVE_HIGHER -DWRITERS=3
breaks   publish.pml  -DPLAIN -DMUTANT_ONE_LOOK -DWRITERS=3 -DEPOCHS=4 -DRESTARTS=1
breaks   parts.pml    -DMUTANT_DONE_FIRST
breaks   parts.pml    -DMUTANT_DOUBT_FAILS
breaks   parts.pml    -DMUTANT_ANY_STEP
breaks   parts.pml    -DMUTANT_FORGET
breaks   group.pml    -DMUTANT_NO_VOTES
breaks   group.pml    -DMUTANT_NO_SWAP
breaks   group.pml    -DMUTANT_ALONE
breaks   group.pml    -DMUTANT_FILL_ANY
breaks   group.pml    -DMUTANT_REJOIN
'
large='
holds    publish.pml  -DWRITERS=1 -DEDITIONS=3 -DAGAIN -DGC -DREADER -DGIVEN_UP=2 -DRESTARTS=1
holds    publish.pml  -DWRITERS=2 -DEDITIONS=2 -DAGAIN -DGC -DRESTARTS=1
holds    publish.pml  -DWRITERS=2 -DEDITIONS=2 -DREADER -DGIVEN_UP=2
holds    publish.pml  -DWRITERS=3 -DREADER -DGIVEN_UP=1
holds    publish.pml  -DWRITERS=3 -DGC -DGIVEN_UP=1
holds    publish.pml  -DPLAIN -DWRITERS=2 -DEDITIONS=2 -DAGAIN -DREADER -DGIVEN_UP=1
holds    publish.pml  -DPLAIN -DWRITERS=3 -DEPOCHS=4 -DRESTARTS=1 -DGIVEN_UP=1
holds    publish.pml  -DPLAIN -DWRITERS=3 -DGC
holds    parts.pml    -DTURNS=3
holds    parts.pml    -DMEMBERS=2 -DGIVEN_UP=0
holds    group.pml    -DSTEPS=3 -DKILLS=2
holds    group.pml    -DRANKS=3 -DSTEPS=2 -DKILLS=1
'

# fail TEXT
fail() {
    echo "FAILED: $1"
    failures=$((failures + 1))
}

# search WANTED MODEL OPTION...: in a directory of its own, in which the verifier and the way to an error stay
search() {
    local wanted=$1 model=$2 begin=$EPOCHREALTIME
    shift 2
    local here=$place/$((++checks)) built=(-DMEMLIM=4000 -DSAFETY -DNOFAIR) found
    [ "$wanted" != formula ] || built=(-DMEMLIM=4000)
    mkdir "$here"
    cp "doc/model/$model" "$here"
    if ! (cd "$here" && spin -a "$@" "$model" && gcc -w "$optimized" "${built[@]}" -o pan pan.c) > "$here/log" 2>&1; then
        fail "$model $*: no verifier came of it: $(tail -n 3 "$here/log")"
        return
    fi
    # -E: who waits for ever is no error here. -a -f: cycles, each process going on as long as it can
    if [ "$wanted" = formula ]; then
        (cd "$here" && ./pan -a -f -E -m20000 -w18) > "$here/log" 2>&1
    else
        (cd "$here" && ./pan -E -m20000 -w18) > "$here/log" 2>&1
    fi
    found=$(sed -n 's/.*errors: \([0-9]*\)$/\1/p' "$here/log")
    local seconds=$(((${EPOCHREALTIME/./} - ${begin/./}) / 100000))
    printf '%-8s %-11s %10s states  %4d.%d s  %s\n' "$wanted" "$model" \
        "$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' "$here/log")" $((seconds / 10)) $((seconds % 10)) "$*"
    if [ -z "$found" ]; then
        fail "$model $*: $(tail -n 3 "$here/log")"
    elif [ "$wanted" = breaks ] && [ "$found" -eq 0 ]; then
        fail "$model $*: the defect was not found"
    elif [ "$wanted" != breaks ] && [ "$found" -ne 0 ]; then
        fail "$model $*: $(grep -m 1 '^pan' "$here/log"); the way there: cd $here && spin -t -p $* $model"
    elif [ "$wanted" != breaks ] && grep -q 'Search not completed\|search depth too small' "$here/log"; then
        fail "$model $*: the search was not completed: $(grep -m 1 '^pan\|depth too small' "$here/log")"
    else
        rm -rf "$here"
    fi
}

# search_all TABLE
search_all() {
    local line
    while read -r -a line; do
        [ ${#line[@]} -eq 0 ] || search "${line[@]}"
    done <<< "$1"
}

# what is searched in a second is built in less
optimized=-O0
search_all "$small$mutants"
optimized=-O2
[ "$size" = reduced ] || search_all "$large"

echo "$checks checks of models, $failures failed"
[ "$failures" -eq 0 ]
