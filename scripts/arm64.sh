#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What the build for aarch64 needs, under build/arm64: Debian's cross compiler and qemu in tools/, the libraries that
# weft links in sysroot/, and bin/ with the two commands (cmake/arm64.cmake). Packages are unpacked there, by a private
# state of apt: nothing is installed, no architecture is added to the system, and no rights are needed. What is there
# stays, and then no network is needed. Exits with 77, and says why, where the packages cannot be had.
set -eu
cd "$(dirname "$0")/.."
place=$PWD/build/arm64
tools=(gcc-aarch64-linux-gnu qemu-user)
libraries=(libzstd-dev zlib1g-dev libxxhash-dev libjansson-dev libssl-dev libcurl4-openssl-dev
    libmicrohttpd-dev libcmocka-dev)
wanted="${tools[*]} ${libraries[*]} at $place"

skip() {
    echo "SKIPPED: arm64: $*"
    exit 77
}

[ "$(cat "$place/packages" 2> /dev/null)" != "$wanted" ] || exit 0
[ "$(uname -m)" = x86_64 ] || skip "only an x86-64 machine builds for aarch64 here, and this is $(uname -m)"
for command in apt-get dpkg-deb; do
    command -v "$command" > /dev/null || skip "there is no $command: the packages are Debian's"
done
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT

# unpack DIRECTORY ARCHITECTURE PACKAGE...: these, and all that they need, as if the system had none
unpack() {
    local to=$1 state=$apt/$2
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    touch "$state/status"
    local options=(-qq -o "APT::Architecture=$2" -o "APT::Architectures::=$2" -o "APT::Sandbox::User=$(id -un)"
        -o "Dir::State::lists=$state/lists" -o "Dir::State::status=$state/status"
        -o "Dir::State::extended_states=$state/extended" -o "Dir::Cache=$state/cache"
        -o Debug::NoLocking=1 -o Acquire::Languages=none)
    shift 2
    { apt-get "${options[@]}" update &&
        apt-get "${options[@]}" --no-install-recommends -y --download-only install "$@"; } \
        > "$apt/log" 2>&1 || skip "apt-get could not get $*: $(tail -n 1 "$apt/log")"
    rm -rf "$to"
    mkdir -p "$to"
    for package in "$state"/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$to"
    done
    # a link to an absolute path means one in the directory
    find "$to" -type l -lname '/*' -printf '%l\t%p\n' | while IFS=$'\t' read -r target link; do
        ln -sfnr "$to$target" "$link"
    done
}

# command_for NAME OPTION...: one that finds its own libraries
command_for() {
    local name=$1
    shift
    [ -x "$place/tools/usr/bin/$name" ] || skip "the packages have no $name"
    mkdir -p "$place/bin"
    cat > "$place/bin/$name" << END
#!/bin/sh
export LD_LIBRARY_PATH="$place/tools/usr/lib/x86_64-linux-gnu"
exec "$place/tools/usr/bin/$name"$(printf ' "%s"' "$@") "\$@"
END
    chmod +x "$place/bin/$name"
}

echo "arm64: getting a cross compiler, qemu and libraries, 90 MB, into build/arm64"
rm -f "$place/packages"
unpack "$place/tools" amd64 "${tools[@]}"
unpack "$place/sysroot" arm64 "${libraries[@]}"
command_for aarch64-linux-gnu-gcc "--sysroot=$place/sysroot"
command_for qemu-aarch64 -L "$place/sysroot"
echo "$wanted" > "$place/packages"
