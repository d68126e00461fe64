#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the packages of packages.txt that are missing, without asking anything. Does nothing, and
# needs no rights and no network, when all are there.
set -eu
cd "$(dirname "$0")/.."

mapfile -t packages < <(grep -v '^#' packages.txt)

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
    echo "deps: not a Debian system; weft needs what Debian calls:"
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
echo "deps: installing ${missing[*]}"
# nginx, prometheus, Swift and memcached are only tools of the tests here: Debian's policy hook keeps them
# from starting as services. A hook that is already there decides by itself.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" > /dev/null
    "${as_root[@]}" chmod 755 "$policy"
fi
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}"
echo "deps: installed ${#missing[@]} packages"
