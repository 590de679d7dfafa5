#!/usr/bin/env bash
# Compiles CUDA programs with what the Python packages have of CUDA 12.6: its headers, its libraries and its assembler ptxas.
# They have neither its nvcc nor its compilers' front ends: those are taken from the nvcc that is installed, of CUDA 13, whose
# PTX 12.6 reads after its version line is set back. The workflow uses a whole CUDA 12.6.
#
#     dev/test/whole/cuda12.sh                       # one program of each kind; 700 MB are downloaded, 5 minutes on two cores
#     dev/test/whole/cuda12.sh train_gpt2cu ...      # these targets of make
#
# Works in build/cuda12, a copy of the sources.
set -euo pipefail
cd "$(dirname "$0")/../../.."
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc) || { echo "error: no nvcc found" >&2; exit 1; }
cuda13=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
work=$PWD/build/cuda12
cuda12=$work/toolkit
targets=("$@")
[ $# -gt 0 ] || targets=(train_gpt2cu libattention.so build/test_gpt2cu_fp32 build/attention_bench_bf16.o build/test_gpu_pairs_bf16)

if [ ! -e "$cuda12/ready" ]; then
    rm -rf "$work"
    python3 -m venv "$work/python"
    "$work/python/bin/pip" install -q --disable-pip-version-check nvidia-cuda-{nvcc,runtime,cccl}-cu12==12.6.* \
        nvidia-cublas-cu12==12.6.* nvidia-nvtx-cu12==12.6.*
    packages=$(echo "$work"/python/lib/python3*/site-packages/nvidia)
    mkdir -p "$cuda12"/{bin,include,lib64,nvvm/bin,nvvm/libdevice}
    cp -L "$cuda13"/bin/{nvcc.profile,cudafe++,fatbinary,nvlink,bin2c} "$cuda12/bin"
    cp -rL "$cuda13/bin/crt" "$cuda12/bin"
    cp -L "$cuda13/bin/nvcc" "$cuda12/bin/nvcc13"
    cp -L "$cuda13/nvvm/bin/cicc" "$cuda12/nvvm/bin"
    cp "$packages"/cuda_nvcc/nvvm/libdevice/* "$cuda12/nvvm/libdevice"
    for package in cuda_runtime cuda_cccl cublas cuda_nvcc nvtx; do cp -r "$packages/$package/include/." "$cuda12/include"; done
    cp -L "$cuda13/include/crt/host_runtime.h" "$cuda12/include/crt" # what cudafe++ writes is written against it
    for library in "$packages"/{cuda_runtime,cublas}/lib/*.so.12; do ln -s "$library" "$cuda12/lib64/$(basename "${library%.12}")"; done
    install -m 755 "$packages/cuda_nvcc/bin/ptxas" "$cuda12/bin/ptxas12"
    cat >"$cuda12/bin/ptxas" <<'EOF'
#!/usr/bin/env bash
for a in "$@"; do [[ $a != *.ptx ]] || sed -i 's/^\.version 9\.[0-9]*/.version 8.5/' "$a"; done
exec "$(dirname "$0")/ptxas12" "$@"
EOF
    cat >"$cuda12/bin/nvcc" <<'EOF'
#!/usr/bin/env bash
[ "${1:-}" != --version ] || exec "$(dirname "$0")/ptxas12" --version
exec "$(dirname "$0")/nvcc13" -cudart shared "$@"
EOF
    chmod +x "$cuda12"/bin/{ptxas,nvcc}
    touch "$cuda12/ready"
fi

rm -rf "$work/tree"
mkdir -p "$work/tree/dev"
cp -r Makefile ./*.c ./*.cu llmc "$work/tree"
cp -r dev/cuda dev/test dev/reference "$work/tree/dev"
cd "$work/tree"
"$cuda12/bin/ptxas" --version | tail -n 2
make -s -j2 NVCC="$cuda12/bin/nvcc" GPU_ARCH= "${targets[@]}"
echo "cuda12.sh: compiled ${targets[*]}"
