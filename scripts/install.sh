#!/usr/bin/env bash
# Installs libattention.so, its header and a pkg-config file under PREFIX, or removes them: make install, make uninstall.
#
#     PREFIX=/usr/local DESTDIR= scripts/install.sh [--remove]
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local} to=${DESTDIR:-}${PREFIX:-/usr/local}
library=$to/lib/libattention.so header=$to/include/libattention.h package=$to/lib/pkgconfig/libattention.pc
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
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: libattention
Description: causal self-attention for NVIDIA GPUs, forward and backward, in bf16
Version: $version
Libs: -L\${libdir} -lattention
Cflags: -I\${includedir}
END
chmod 644 "$package"
echo "installed $library, $header, $package"
