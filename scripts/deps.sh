#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# deps.sh [test]: installs the packages of packages.txt that are missing, and with `test` those of packages-test.txt
# too, without asking anything. Does nothing, and needs no rights and no network, when all are there.
set -eu
cd "$(dirname "$0")/.."

lists=(packages.txt)
[ "${1:-}" != test ] || lists+=(packages-test.txt)
mapfile -t packages < <(grep -hv '^#' "${lists[@]}")

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
    echo "deps: neither Debian nor Ubuntu; weft needs what they call:"
    echo "deps:   ${packages[*]}"
    exit 0
fi

missing=()
for package in "${packages[@]}"; do
    state=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2> /dev/null || true)
    if [ "$state" != installed ]; then
        missing+=("$package")
    fi
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "deps: all ${#packages[@]} packages are installed"
    exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    # -n: fail rather than ask for a password.
    as_root=(sudo -n)
fi
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update

# Distributions differ in what they have for tests: what this one lacks is passed over. Without what is for building,
# apt-get fails and says why.
wanted=()
for package in "${missing[@]}"; do
    if grep -qx "$package" packages.txt || apt-cache show --no-all-versions "$package" > /dev/null 2>&1; then
        wanted+=("$package")
    else
        echo "deps: this system has no $package; the tests that use it are skipped"
    fi
done
if [ ${#wanted[@]} -eq 0 ]; then
    exit 0
fi

echo "deps: installing ${wanted[*]}"
# nginx, prometheus, Swift and memcached are only tools of the tests here: Debian's policy hook keeps them
# from starting as services. A hook that is already there decides by itself.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" > /dev/null
    "${as_root[@]}" chmod 755 "$policy"
fi
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${wanted[@]}"
echo "deps: installed ${#wanted[@]} packages"
