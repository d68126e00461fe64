#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The Debian package: packed, installed by dpkg below a directory of its own, used from there, and removed. The system
# that runs is not touched: dpkg keeps its records there too, and the package's scripts heed DPKG_ROOT.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in dpkg dpkg-deb dpkg-shlibdeps; do
    if ! command -v "$program" > /dev/null; then
        echo "$program is not installed: nothing was tested"
        exit 77
    fi
done
fail() {
    echo "$1" >&2
    exit 1
}

package=$("$WEFT_SOURCE/scripts/deb.sh" "$work/deb")
dpkg-deb --info "$package"
root=$work/root
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/etc"
# what is installed here is what the package may depend on
cp /var/lib/dpkg/status "$root/var/lib/dpkg/status"
install_options=(--instdir="$root" --admindir="$root/var/lib/dpkg" --force-not-root --force-script-chrootless --log="$work/dpkg.log")
dpkg "${install_options[@]}" --install "$package" > "$work/installed" 2>&1 || { cat "$work/installed" >&2; exit 1; }
[ "$(dpkg-query --admindir="$root/var/lib/dpkg" --show --showformat '${Status}' weft)" = 'install ok installed' ] ||
    fail "dpkg does not say that weft is installed"
if command -v systemd-sysusers > /dev/null; then
    grep -q '^weft:' "$root/etc/passwd" || fail "there is no user weft below the root"
fi

echo "== the command"
weft=$root/usr/bin/weft
cd "$work"
"$weft" --version
"$weft" bench --quiet --make m --params 100K --steps 1
"$weft" publish store m/step-0.safetensors --quiet --cache cache
"$weft" follow store out --until 1 --quiet
cmp out m/step-0.safetensors

echo "== what lies beside it"
for file in lib/systemd/system/weft-serve@.service lib/systemd/system/weft-relay@.service \
    lib/systemd/system/weft-follow@.service lib/sysusers.d/weft.conf share/bash-completion/completions/weft \
    share/zsh/vendor-completions/_weft share/fish/vendor_completions.d/weft.fish share/man/man1/weft.1.gz \
    share/man/man1/weft-follow.1.gz share/doc/weft/copyright share/doc/weft/examples/follow.toml \
    include/weft/weft.h lib/pkgconfig/weft.pc lib/libweft.a lib/libweft.so; do
    [ -e "$root/usr/$file" ] || fail "the package has no /usr/$file"
done
grep -q '^ExecStart=/usr/bin/weft follow ' "$root/usr/lib/systemd/system/weft-follow@.service" || fail "the unit starts another command"
PKG_CONFIG_PATH=$root/usr/lib/pkgconfig
export PKG_CONFIG_PATH
read -ra flags <<< "$(pkg-config --cflags --libs weft)"
"$CC" "$WEFT_SOURCE/tests/install/program.c" -o program "${flags[@]}"
LD_LIBRARY_PATH=$root/usr/lib ./program

echo "== removed"
dpkg "${install_options[@]}" --purge weft > "$work/removed" 2>&1 || { cat "$work/removed" >&2; exit 1; }
left=$(find "$root" -type f ! -path "$root/var/lib/dpkg/*" ! -path "$root/etc/*")
[ -z "$left" ] || fail "this was left behind: $left"
