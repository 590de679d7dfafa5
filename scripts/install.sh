#!/usr/bin/env bash
# Installs libattention.so, its header and a pkg-config file under PREFIX, or removes them: make install, make uninstall.
#
#     PREFIX=/usr/local DESTDIR= libdir=PREFIX/lib includedir=PREFIX/include scripts/install.sh [--remove]
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local} root=${DESTDIR:-}
libdir=${libdir:-$prefix/lib} includedir=${includedir:-$prefix/include}
library=$root$libdir/libattention.so header=$root$includedir/libattention.h package=$root$libdir/pkgconfig/libattention.pc
if [ "${1:-}" = --remove ]; then
    rm -f "$library" "$header" "$package"
    exit
fi
version=$(sed -n 's/^#define FLASHGPT_VERSION "\(.*\)".*/\1/p' llmc/base/cli.h)
install -d "${library%/*}" "${header%/*}" "${package%/*}"
install -m 755 libattention.so "$library"
install -m 644 dev/cuda/libattention.h "$header"
cat >"$package" <<END
prefix=$prefix
libdir=${libdir/#$prefix/\${prefix\}}
includedir=${includedir/#$prefix/\${prefix\}}

Name: libattention
Description: causal self-attention for NVIDIA GPUs, forward and backward, in bf16
Version: $version
Libs: -L\${libdir} -lattention
Cflags: -I\${includedir}
END
chmod 644 "$package"
echo "installed $library, $header, $package"
