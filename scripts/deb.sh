#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# deb.sh [OUTPUT]: packs the release build (WEFT_BUILD, or build/) as a Debian package into OUTPUT, or build/deb. dpkg-deb
# packs what `cmake --install` gives: debhelper would add a second description of the build. libweft-mpi stays out, since
# all who install the package would install MPI.
set -eu
cd "$(dirname "$0")/.."
build=${WEFT_BUILD:-build}
output=$(realpath -m "${1:-build/deb}")
work=$output/work
stage=$work/stage
version=$(sed -n 's/^#define WEFT_VERSION_[A-Z]* \([0-9]*\)$/\1/p' include/weft/base.h | paste -sd.)
architecture=$(dpkg --print-architecture)
rm -rf "$work"
mkdir -p "$stage/DEBIAN"
DESTDIR=$stage cmake --install "$build" --prefix /usr > "$work/install.log"
rm -f "$stage"/usr/lib/libweft-mpi.so* "$stage/usr/include/weft/loco_mpi.h"
library=$(readlink -f "$stage/usr/lib/libweft.so")

# the libraries lie where the linker looks by itself
cat > "$work/rpath.cmake" << END
file(RPATH_REMOVE FILE "$stage/usr/bin/weft")
END
cmake -P "$work/rpath.cmake" > "$work/rpath.log"
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$stage/usr/bin/weft" "$library"
strip --strip-debug "$stage/usr/lib/libweft.a"
gzip -9n "$stage"/usr/share/man/man1/*.1
documents=$stage/usr/share/doc/weft
mkdir -p "$documents"
gzip -9n << END > "$documents/changelog.gz"
weft ($version) unstable; urgency=medium

  * CHANGELOG.md beside this file says what is new.

 -- weft <weft@localhost>  $(date --rfc-email --utc --date "@${SOURCE_DATE_EPOCH:-$(stat --format %Y CHANGELOG.md)}")
END
cp README.md CHANGELOG.md doc/OPERATIONS.md "$documents"
cat > "$documents/copyright" << END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: weft

Files: *
Copyright: the contributors to weft
License: Apache-2.0
 On Debian systems the text of the Apache License 2.0 is in
 /usr/share/common-licenses/Apache-2.0.
END
for place in serve relay follow; do
    install -d -m 755 "$stage/etc/weft/$place"
done

# what the binaries need, by the packages of this system; it wants a source package to stand in
mkdir -p "$work/shlibs/debian"
printf 'Source: weft\n\nPackage: weft\nArchitecture: any\n' > "$work/shlibs/debian/control"
depends=$(cd "$work/shlibs" && dpkg-shlibdeps -O "$stage/usr/bin/weft" "$library" 2> "$work/shlibs.log" |
    sed -n 's/^shlibs:Depends=//p')
[ -n "$depends" ] || { cat "$work/shlibs.log" >&2; exit 1; }
size=$(du -sk --exclude=DEBIAN "$stage" | cut -f1)
sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@SIZE@/$size/; s/@DEPENDS@/$depends/" \
    contrib/debian/control.in > "$stage/DEBIAN/control"
for script in postinst prerm postrm; do
    install -m 755 "contrib/debian/$script" "$stage/DEBIAN/$script"
done
echo 'activate-noawait ldconfig' > "$stage/DEBIAN/triggers"
echo "libweft 1 weft (>= $version)" > "$stage/DEBIAN/shlibs"
(cd "$stage" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$stage/DEBIAN/md5sums"
find "$stage" -type d -exec chmod 755 {} +
find "$stage/usr" -type f ! -path "$stage/usr/bin/*" -exec chmod 644 {} +
dpkg-deb --root-owner-group --build "$stage" "$output/weft_${version}_$architecture.deb" > "$work/pack.log"
echo "$output/weft_${version}_$architecture.deb"
