#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Instructions that diff, prepare and digest of the bench's model take on aarch64, by the portable kernels and by those
# for NEON, under qemu, one thread. What a run with the work once has more than one without it is the work's, whatever
# surrounds it. Instructions are not time; but there is no ARM processor here, and an emulator's time means less.
#
#   bench/arm64.sh [PARAMETERS [RATE]]     of the model and of the trace (default 2M, 1e-6)
set -eu
cd "$(dirname "$0")/.."
parameters=${1:-2M}
rate=${2:-1e-6}
arm64=$PWD/build/arm64

scripts/arm64.sh
[ -x build/weft ] || make --no-print-directory all > /dev/null
cmake --preset arm64 > /dev/null
cmake --build --preset arm64 --target repeat_work > /dev/null
cc -O2 -shared -fPIC bench/count_instructions.c -o "$arm64/libcount_instructions.so"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
build/weft bench --make "$dir" --params "$parameters" --lr "$rate" --quiet

# count LEVEL WORK PROFILE TIMES
count() {
    WEFT_CPU=$1 "$arm64/bin/qemu-aarch64" -plugin "$arm64/libcount_instructions.so" "$arm64/tests/repeat_work" \
        "$dir/base.safetensors" "$dir/new.safetensors" "$2" "$3" "$4" 2>&1 > "$dir/said" | sed -n 's/^instructions: //p'
    grep -q "^$1 " "$dir/said" || { echo "arm64.sh: this qemu does not run $1" >&2; exit 1; }
}

echo "$parameters parameters, rate $rate; instructions per parameter, aarch64, one thread"
printf '%-16s%12s%12s%10s\n' '' portable neon 'neon / p.'
for work in 'diff fast' 'diff small' 'prepare fast' 'prepare small' 'digest fast'; do
    row=()
    for level in portable neon; do
        # shellcheck disable=SC2086
        row+=($(($(count $level $work 1) - $(count $level $work 0))))
    done
    awk -v name="${work/digest fast/digest}" -v portable="${row[0]}" -v neon="${row[1]}" \
        -v parameters="$(($(stat -c %s "$dir/base.safetensors") / 2))" \
        'BEGIN { printf "%-16s%12.2f%12.2f%10.3f\n", name, portable / parameters, neon / parameters, neon / portable }'
done
