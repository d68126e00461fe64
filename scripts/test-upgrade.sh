#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# test-upgrade.sh [COMMIT]: the command of the last release beside this one (tests/upgrade/test_upgrade.sh). The last
# release is the newest tag of another version; or, where there are no tags, the last commit before the version grew.
# It is built once, under build/last-release. Without a git history there is nothing to build, which is said.
set -eu

cd "$(dirname "$0")/.."
last_release() {
    local version tag
    version=v$(build/weft --version | awk '{ print $2; exit }')
    for tag in $(git tag --merged HEAD --sort=-version:refname --list 'v[0-9]*'); do
        if [ "$tag" != "$version" ]; then
            git rev-parse "$tag^{commit}"
            return
        fi
    done
    git rev-parse "$(git log -1 --format=%H -G'WEFT_VERSION_(MAJOR|MINOR|PATCH) ' -- include/weft/base.h)^"
}
if ! commit=${1:-$(last_release 2> /dev/null)}; then
    echo "test-upgrade: SKIPPED: there is no git history to build the last release from"
    exit 77
fi
work=$PWD/build/last-release/$commit
if [ ! -x "$work/build/weft" ]; then
    mkdir -p "$work"
    git archive "$commit" | tar -x -C "$work"
    cmake -S "$work" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF > "$work/log"
    cmake --build "$work/build" --parallel "$(nproc)" >> "$work/log"
fi
export WEFT=$PWD/build/weft WEFT_OLD=$work/build/weft WEFT_SOURCE=$PWD WEFT_BUILD=$PWD/build
bash tests/upgrade/test_upgrade.sh
