#!/usr/bin/env bash
# Installs libattention.so, its header and a pkg-config file under PREFIX, or removes them: make install, make uninstall.
#
#     PREFIX=/usr/local DESTDIR= libdir=PREFIX/lib includedir=PREFIX/include scripts/install.sh [--remove]
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
fail() { echo "error: $*" >&2; exit 1; }
must() { local said; said=$("$@" 2>&1) || fail "${said%%$'\n'*}; PREFIX=FOLDER names another place"; }
[[ $* =~ ^(--remove)?$ ]] || fail "$*: install.sh takes no arguments but --remove and --help"
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local} root=${DESTDIR:-}
libdir=${libdir:-$prefix/lib} includedir=${includedir:-$prefix/include}
for folder in "PREFIX=$prefix" "libdir=$libdir" "includedir=$includedir"; do
    [[ ${folder#*=} = /* ]] || fail "$folder: must begin with /, as the pkg-config file names it"
done
library=$root$libdir/libattention.so header=$root$includedir/libattention.h package=$root$libdir/pkgconfig/libattention.pc
if [ "${1:-}" = --remove ]; then
    must rm -f "$library" "$header" "$package"
    exit
fi
version=$(sed -n 's/^#define FLASHGPT_VERSION "\(.*\)".*/\1/p' llmc/base/cli.h)
[ -e libattention.so ] || fail "no libattention.so here: make libattention.so"
must install -d "${library%/*}" "${header%/*}" "${package%/*}"
must install -m 755 libattention.so "$library"
must install -m 644 dev/cuda/libattention.h "$header"
must install -m 644 /dev/stdin "$package" <<END
prefix=$prefix
libdir=${libdir/#$prefix/\${prefix\}}
includedir=${includedir/#$prefix/\${prefix\}}

Name: libattention
Description: causal self-attention for NVIDIA GPUs, forward and backward, in bf16
Version: $version
Libs: -L"\${libdir}" -lattention
Cflags: -I"\${includedir}"
END
echo "installed $library, $header, $package"
