#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What is made of the table of options: man pages that man reads without a warning, completions that bash uses, and a
# configuration file that the command takes back.
. "$(dirname "$0")/common.sh"

verbs=$("$weft" --help | sed -n '/^Verbs:/,/^$/s/^  \([a-z]*\) .*/\1/p')
check 'verbs' test "$(wc -w <<< "$verbs")" -ge 20

# ---- man pages ----
expect 0 '' "$weft" help --man
cp stdout weft.1
for verb in $verbs; do
    expect 0 '' "$weft" help --man "$verb"
    cp stdout "weft-$verb.1"
    check "weft.1 names $verb" grep -q "^\.BR weft.-$verb (1)" weft.1
    for option in $("$weft" "$verb" --help | sed -n 's/^ *\(-., \)\{0,1\}--\([a-z-]*\).*/\2/p' | grep -vE '^(help|usage|version)$'); do
        check "$verb: --$option" grep -q -- "^\(.fB.-..fR, \)\{0,1\}.fB.-.-${option//-/.-}.fR" "weft-$verb.1"
    done
done
expect 2 'no verb' "$weft" help --man frobnicate
if command -v man > /dev/null; then
    for page in *.1; do
        LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Z -Tutf8 "$page" > /dev/null 2> warnings
        check "$page: $(head -c 300 warnings)" test ! -s warnings
    done
else
    skip 'man is not installed: it read no page'
fi

# ---- completions ----
for shell in bash zsh fish; do
    expect 0 '' "$weft" help --completion "$shell"
    cp stdout "completion.$shell"
    if command -v "$shell" > /dev/null; then
        check "$shell reads it" "$shell" -n "completion.$shell"
    else
        skip "$shell is not installed: it did not read its completion"
    fi
done
expect 2 'bash, zsh or fish' "$weft" help --completion csh
touch model.safetensors
# complete WORD...: what bash would offer for the last of them, after weft
complete_bash() {
    bash --norc -c '. ./completion.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weft; echo "${COMPREPLY[*]}"' _ weft "$@"
}
offers() {
    local wanted=$1
    shift
    checks=$((checks + 1))
    [ "$(complete_bash "$@")" = "$wanted" ] || fail "bash offers '$(complete_bash "$@")' for 'weft $*', not '$wanted'"
}
offers 'follow' fo
offers 'publish pull' pu
offers 'serve' help ser
offers '--max-failures' follow --max-f
offers '--metrics --metrics-file' follow store out --metr
offers 'auto now never' publish --anchor ''
offers 'never' publish --anchor = ne
offers 'text' serve --log-format t
offers '' follow --until ''
offers 'model.safetensors' digest mod
offers 'model.safetensors' follow --config mod

# ---- a configuration file ----
for verb in serve follow; do
    expect 0 '' "$weft" help --config "$verb"
    cp stdout "$verb.toml"
    # all of it is a comment, and where that is taken away, all of it is known
    expect 2 'give the' "$weft" "$verb" --config "$verb.toml"
    sed -n 's/^# \([a-z-]*\) = true$/\1 = false/p' "$verb.toml" > flags
    check "$verb: flags" test "$(wc -l < flags)" -ge 5
    { echo "[$verb]"; cat flags; } > flags.toml
    expect 2 'give the' "$weft" "$verb" --config flags.toml
done
expect 2 'takes no configuration file' "$weft" help --config pull
finish
