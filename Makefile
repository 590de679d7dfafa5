# make                 everything that this machine can build
# make train_gpt2      the CPU trainer             make train_gpt2cu    the GPU trainer
# make test            every test that this machine can run
# make attention_forward_flash2                    one variant of dev/cuda, as build/attention_forward_flash2_bf16
# make compete         race all variants on this GPU      make pair-tests      train with every pair of them
# make libattention.so the winners with a C interface
# make install         libattention.so, libattention.h and a pkg-config file, under PREFIX; make uninstall removes them
# make profile         a short run of the GPU trainer under Nsight Systems, or Nsight Compute where only that is there
# make cuda            every CUDA program there is, to see that all of them compile
# make fuzz            damaged files of every format, for FUZZ_SECONDS=60
# make lint            format and static checks    make format          puts the format right
# make compile_commands.json                       for clangd and other tools
# make help            this text                   make clean           removes what was built
#
# PRECISION=BF16|FP32                              of the GPU programs; FP16 too for variants
# ATTENTION_FORWARD=mma ATTENTION_BACKWARD=flash2  variants to train with, instead of the table's choice
# GPU_ARCH=90                                      compute capability to build for, instead of this machine's
# USE_OPENMP=0  USE_CBLAS=1                        for the CPU programs: one core; products by an installed CBLAS
# WERROR=                                          lets the warnings of a newer compiler pass
# PREFIX=/usr/local DESTDIR=                       of make install

SHELL := /bin/bash
PRECISION ?= BF16
precision := $(shell echo $(PRECISION) | tr A-Z a-z)
ifeq ($(filter $(PRECISION),BF16 FP32 FP16),)
$(error PRECISION=$(PRECISION): must be BF16, FP32 or, for the variants of dev/cuda, FP16)
endif

# ----------------------------------------------------------------------------
# The CPU side

CC ?= cc
WERROR ?= -Werror
# Multiply-adds may be fused; but no -ffast-math: NaN must stay NaN, and sums are added in the order written.
CFLAGS := -std=c11 -D_GNU_SOURCE -O3 -march=native -ffp-contract=fast -fno-math-errno -fno-trapping-math \
    -Wall -Wextra $(WERROR) -I. -MMD -MP
LDLIBS := -lm -lpthread
# Files from elsewhere are read: position-independent code, read-only relocations, guarded stacks, checked libc calls.
harden := -fPIE -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
harden_link := -pie -Wl,-z,relro,-z,now
CFLAGS += $(harden)
LDLIBS += $(harden_link)

# OpenMP, where the compiler has it
openmp := -fopenmp-simd # loops may still be vectorised
ifneq ($(USE_OPENMP),0)
ifeq ($(shell echo 'int main(void){return 0;}' | $(CC) -fopenmp -x c -o /dev/null - 2>/dev/null && echo yes),yes)
openmp := -fopenmp
else
$(info no OpenMP in $(CC): the CPU programs will use one core)
endif
endif
CFLAGS += $(openmp)

# USE_CBLAS=1: the products are those of the CBLAS that pkg-config finds. It is not chosen by itself: OpenBLAS 0.3.21 was
# slower than our own products, by a third with AVX-512, and gives other bits with another number of threads.
ifeq ($(USE_CBLAS),1)
cblas := $(firstword $(foreach lib,openblas blis mkl-sdl,$(shell pkg-config --exists $(lib) 2>/dev/null && echo $(lib))))
ifeq ($(cblas),)
$(error USE_CBLAS=1: pkg-config finds none of openblas, blis and mkl-sdl; install one, or leave USE_CBLAS out)
endif
CFLAGS += -DUSE_CBLAS $(shell pkg-config --cflags $(cblas))
LDLIBS += $(shell pkg-config --libs $(cblas))
endif

# ----------------------------------------------------------------------------
# The GPU side

NVCC ?= $(shell command -v nvcc 2>/dev/null || ls /usr/local/cuda/bin/nvcc 2>/dev/null)

# The compute capability of the first GPU, without the dot; wgmma and its kin exist only in the 'a' flavour of 9.0.
GPU_ARCH ?= $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | grep -E '^[0-9]+\.[0-9]+$$' | tr -d .)
gencode = -gencode arch=compute_$(1),code=sm_$(1)
ifneq ($(GPU_ARCH),)
arch_flags := $(call gencode,$(patsubst 90,90a,$(GPU_ARCH)))
arch_text := compute capability $(GPU_ARCH)
else # sm_80 and Hopper, and PTX for what comes after
arch_flags := $(call gencode,80) $(call gencode,90a) -gencode arch=compute_80,code=compute_80
arch_text := no GPU seen: sm_80, sm_90a and PTX for newer ones
endif

# The registers of the kernels are fitted with ptxas 13. That of 12.6 spills 20 bytes in two configurations of mma.
cuda_release := $(if $(NVCC),$(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p'))
warn_on_spills := $(if $(filter 9 10 11 12,$(cuda_release)),,-Xptxas --warn-on-spills)
comma := ,
empty :=
space := $(empty) $(empty)
NVCCFLAGS := -std=c++17 -O3 -I. $(arch_flags) -t 2 -Xcompiler -Wall,-Wextra,$(subst $(space),$(comma),$(harden)) \
    $(warn_on_spills) $(if $(WERROR),-Werror all-warnings)
variant_names = $(patsubst dev/cuda/attention_$(1)_%.cu,%,$(wildcard dev/cuda/attention_$(1)_*.cu))
known_variant = $(if $(filter $(2),$(call variant_names,$(1))),,$(error $(3)=$(2): no such variant; choose of: $(call variant_names,$(1))))
ifneq ($(ATTENTION_FORWARD),)
$(call known_variant,forward,$(ATTENTION_FORWARD),ATTENTION_FORWARD)
attention_flags += -DATTENTION_FORWARD=$(ATTENTION_FORWARD)
endif
ifneq ($(ATTENTION_BACKWARD),)
$(call known_variant,backward,$(ATTENTION_BACKWARD),ATTENTION_BACKWARD)
attention_flags += -DATTENTION_BACKWARD=$(ATTENTION_BACKWARD)
endif
CUDA_LDLIBS := -lcublasLt -lcublas -Xcompiler -pie -Xlinker -z,relro,-z,now

variants := $(patsubst dev/cuda/%.cu,%,$(wildcard dev/cuda/attention_*.cu))
unit_tests := $(patsubst dev/test/%.c,build/%,$(wildcard dev/test/test_*.c))
cuda_unit_tests := $(if $(NVCC),$(patsubst dev/test/%.cu,build/%,$(wildcard dev/test/test_*.cu))) # of what needs no GPU
python := $(shell command -v python3 || command -v python)
gpu := $(shell nvidia-smi -L 2>/dev/null | grep -m 1 '^GPU')

# ----------------------------------------------------------------------------
# Programs

.PHONY: all cuda test unit-tests cpu-tests gpu-tests sanitizer-tests test-programs fuzz pair-tests compete install uninstall profile help lint format \
    clean variants $(variants)

all: train_gpt2 test_gpt2 $(if $(NVCC),train_gpt2cu test_gpt2cu libattention.so,no-nvcc)
no-nvcc:
	@echo "no nvcc found: the CPU programs are built; install the CUDA Toolkit for the GPU ones"

# What a program was built with; a change of flags rebuilds it.
build/%.flags: FORCE
	@mkdir -p build
	@echo '$($(notdir $*)_flags)' | cmp -s - $@ || echo '$($(notdir $*)_flags)' > $@
FORCE:
.PHONY: FORCE
cpu_flags = $(CC) $(CFLAGS) $(LDLIBS)
gpu_flags = $(NVCC) $(NVCCFLAGS) $(CUDA_LDLIBS)
trainer_flags = $(gpu_flags) $(attention_flags)
precision_flags = $(PRECISION)

train_gpt2 test_gpt2: %: %.c build/cpu.flags
	$(CC) $(CFLAGS) -MF build/$@.d $< -o $@ $(LDLIBS)

# With WERROR what ptxas only informs of ends the build too: wgmma serialised, setmaxnreg ignored (C7508 to C7519).
nvcc = set -o pipefail; $(if $(NVCC),$(NVCC),$(error no nvcc found: install the CUDA Toolkit, or name its compiler with NVCC=)) $(NVCCFLAGS)
strict := $(if $(WERROR),2>&1 | awk '{ print } /C75[01][0-9]/ { bad = 1 } END { exit bad }' >&2)
define_precision = -DPRECISION_$(subst bf,BF,$(subst fp,FP,$(1)))
.DELETE_ON_ERROR:

# The trainers in both precisions side by side: build/train_gpt2cu_fp32, build/test_gpt2cu_bf16, ...
define trainer_rule
build/train_gpt2cu_$(1) build/test_gpt2cu_$(1): build/%cu_$(1): %.cu build/trainer.flags
	@echo "building $$@ for $(arch_text)"
	$$(nvcc) $(call define_precision,$(1)) $(attention_flags) -MMD -MF $$@.d -MT $$@ $$< -o $$@ $$(CUDA_LDLIBS) $$(strict)
endef
$(foreach p,bf16 fp32,$(eval $(call trainer_rule,$(p))))
# and that of PRECISION at the root
train_gpt2cu test_gpt2cu: %: build/%_$(precision) build/precision.flags
	cp $< $@
build/train_gpt2cu_fp16 build/test_gpt2cu_fp16:
	$(error PRECISION=FP16: the trainer scales no loss, so fp16 is for the variants of dev/cuda; take BF16 or FP32)

# Variants: build/<name>_<precision>; those on tensor cores have no fp32.
fp32_variants := $(filter-out %_mma %_wgmma,$(variants))
variant_programs := $(foreach p,bf16 fp16,$(variants:%=build/%_$(p))) $(fp32_variants:%=build/%_fp32)
define variant_rule
$(filter %_$(1),$(variant_programs)): build/%_$(1): dev/cuda/%.cu build/gpu.flags
	$$(nvcc) $(call define_precision,$(1)) -MMD -MF $$@.d -MT $$@ $$< -o $$@ $$(CUDA_LDLIBS) $$(strict)
endef
$(foreach p,bf16 fp16 fp32,$(eval $(call variant_rule,$(p))))
$(variants): %: build/%_$(precision)
variants: $(variant_programs)
# for dev/cuda/sanitize.sh: see WARP_ARRIVALS in llmc/hopper.cuh. It may spill registers.
$(variants:%=build/racecheck_%_bf16): build/racecheck_%_bf16: dev/cuda/%.cu build/gpu.flags
	$(subst -Werror all-warnings,,$(subst -Xptxas --warn-on-spills,,$(nvcc))) -DPRECISION_BF16 -DEVERY_LANE_ARRIVES -MMD -MF $@.d -MT $@ $< -o $@ $(CUDA_LDLIBS)

# Every CUDA program there is, to see that all of them compile
cuda: train_gpt2cu test_gpt2cu build/train_gpt2cu_fp32 build/test_gpt2cu_fp32 libattention.so variants $(cuda_unit_tests)

# The trainer's test with every pair of variants that can train: build/pair-<forward>-<backward>-<precision>. A
# variant whose forward needs a scratch cannot (cublas, and flash1 in 16 bit).
trainable_bf16 := $(filter-out cublas flash1,$(variants:attention_forward_%=%))
trainable_fp32 := $(filter-out cublas mma wgmma,$(variants:attention_forward_%=%))
trainable_backward_bf16 := $(variants:attention_backward_%=%)
trainable_backward_fp32 := $(filter-out mma wgmma,$(variants:attention_backward_%=%))
pairs := $(foreach p,bf16 fp32,$(foreach f,$(filter-out attention_%,$(trainable_$(p))),$(foreach \
    b,$(filter-out attention_%,$(trainable_backward_$(p))),build/pair-$(f)-$(b)-$(p))))
$(pairs): build/pair-%: test_gpt2.cu build/gpu.flags
	$(nvcc) -DATTENTION_FORWARD=$(word 1,$(subst -, ,$*)) -DATTENTION_BACKWARD=$(word 2,$(subst -, ,$*)) \
	    -DPRECISION_$(shell echo $(word 3,$(subst -, ,$*)) | tr a-z A-Z) -MMD -MF $@.d -MT $@ $< -o $@ $(CUDA_LDLIBS) $(strict)

libattention.so: dev/cuda/libattention.cu build/trainer.flags
	$(nvcc) -DPRECISION_BF16 $(attention_flags) -Xcompiler -fPIC,-fvisibility=hidden -shared -Xlinker -soname=libattention.so,-z,relro,-z,now \
	    -MMD -MF build/$@.d -MT $@ $< -o $@ $(strict)

-include $(wildcard build/*.d)
build/%.d: ; # what a compiler wrote beside a program is not a target of its own

# ----------------------------------------------------------------------------
# Installing, and what other tools read

VERSION := 0.1.0
PREFIX ?= /usr/local
libdir := $(PREFIX)/lib
includedir := $(PREFIX)/include

build/libattention.pc: FORCE
	@mkdir -p build
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' 'Name: libattention' \
	    'Description: causal self-attention for NVIDIA GPUs, forward and backward, in bf16' 'Version: $(VERSION)' \
	    'Libs: -L$${libdir} -lattention' 'Cflags: -I$${includedir}' > $@

install: libattention.so build/libattention.pc
	install -d $(DESTDIR)$(libdir)/pkgconfig $(DESTDIR)$(includedir)
	install -m 755 libattention.so $(DESTDIR)$(libdir)/libattention.so
	install -m 644 dev/cuda/libattention.h $(DESTDIR)$(includedir)/libattention.h
	install -m 644 build/libattention.pc $(DESTDIR)$(libdir)/pkgconfig/libattention.pc
uninstall:
	rm -f $(DESTDIR)$(libdir)/libattention.so $(DESTDIR)$(includedir)/libattention.h $(DESTDIR)$(libdir)/pkgconfig/libattention.pc

# For clangd: how each program is compiled. CUDA files get clang's flags, which clangd understands, not nvcc's.
clang_cuda := clang++ -x cuda -std=c++17 -I. --cuda-gpu-arch=sm_80 --cuda-path=$(patsubst %/bin/nvcc,%,$(NVCC)) -DPRECISION_BF16
c_programs := $(wildcard *.c dev/test/*.c dev/bench/*.c)
cu_programs := $(wildcard *.cu dev/cuda/*.cu dev/test/*.cu)
compile_commands.json: FORCE
	@{ echo '['; \
	    for f in $(c_programs); do printf '  {"directory": "%s", "file": "%s", "command": "%s"},\n' \
	        '$(CURDIR)' $$f "$(CC) $(filter-out -MMD -MP,$(CFLAGS)) -c $$f"; done; \
	    for f in $(cu_programs); do printf '  {"directory": "%s", "file": "%s", "command": "%s"},\n' \
	        '$(CURDIR)' $$f "$(clang_cuda) -c $$f"; done; } | sed '$$ s/,$$/\n]/' > $@
	@echo "$@: $(words $(c_programs) $(cu_programs)) programs"

help:
	@sed -n '/^# make /,/^$$/ { s/^# \{0,1\}//p }' Makefile

# A short run under a profiler: steps, layers and kernels are NVTX ranges. On this project's own text, in a small model.
nsys := $(shell command -v nsys 2>/dev/null)
ncu := $(shell command -v ncu 2>/dev/null)
profile_run = ./train_gpt2cu -i build/profile_train.bin -j build/profile_val.bin -b 16 -t 1024 -d 16384 -v 0 -s 0
ifeq ($(gpu),)
profile:
	@echo "error: make profile runs the GPU trainer, and there is no GPU here" >&2; exit 1
else ifeq ($(nsys)$(ncu),)
profile:
	@echo "error: make profile needs nsys (Nsight Systems) or ncu (Nsight Compute) in PATH; the CUDA Toolkit has both" >&2; exit 1
else
profile: train_gpt2cu
	$(python) dev/data/text.py --tokenizer bytes --output build/profile README.md Makefile llmc dev
ifneq ($(nsys),)
	$(nsys) profile --force-overwrite true --trace cuda,nvtx,cublas -o build/profile $(profile_run) -e gpt2:d12 -x 10
	$(nsys) stats --force-export true --report nvtx_sum,cuda_gpu_kern_sum build/profile.nsys-rep
else
	$(ncu) --set basic --launch-skip 400 --launch-count 100 $(profile_run) -e gpt2:l2c768h12 -x 20 | tee build/profile.txt
endif
endif

# ----------------------------------------------------------------------------
# Tests

test: unit-tests cpu-tests sanitizer-tests fuzz gpu-tests
	@echo "make test: all tests of this machine passed$(if $(gpu),, (no GPU: the GPU trainer was not run))"

build/test_%: dev/test/test_%.c build/cpu.flags
	$(CC) $(CFLAGS) -MF $@.d $< -o $@ $(LDLIBS)
build/test_libattention: private LDLIBS += -ldl
build/test_libattention: | $(if $(NVCC),libattention.so)

sanitize := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
build/sanitized/%: %.c build/cpu.flags
	@mkdir -p $(@D)
	$(CC) $(filter-out -O3 %_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2,$(CFLAGS)) $(sanitize) -MF build/sanitized_$(notdir $*).d $< -o $@ $(LDLIBS)

build/test_%: dev/test/test_%.cu build/gpu.flags
	$(nvcc) -DPRECISION_BF16 -MMD -MF $@.d -MT $@ $< -o $@ $(CUDA_LDLIBS) $(strict)

unit-tests: $(unit_tests) $(cuda_unit_tests)
	@set -e; for t in $(unit_tests) $(cuda_unit_tests); do echo "== $$t"; $$t; done
	@echo "== dev/test/test_makefile.sh"; dev/test/test_makefile.sh
	@set -e; for t in dev/test/test_*.py; do echo "== $$t"; $(python) $$t; done

cpu-tests: train_gpt2 test_gpt2
	@echo "== test_gpt2"; ./test_gpt2
	@echo "== test_gpt2, two heads and a full context"; ./test_gpt2 dev/reference/tiny_heads.bin dev/reference/tiny_heads_debug_state.bin
	@echo "== dev/test/test_training.sh"; dev/test/test_training.sh ./train_gpt2
	@echo "== dev/test/test_hardening.sh"; dev/test/test_hardening.sh train_gpt2 test_gpt2

# all unit tests but that of the library, whose CUDA driver maps memory where ASan has its shadow
sanitizer-tests: $(patsubst build/%,build/sanitized/dev/test/%,$(filter-out build/test_libattention,$(unit_tests))) build/sanitized/test_gpt2
	@set -e; for t in $^; do echo "== $$t"; $$t; done

# What the tests above run, compiled side by side: make -j test-programs
test-programs: train_gpt2 test_gpt2 $(unit_tests) $(cuda_unit_tests) build/sanitized/dev/test/fuzz build/sanitized/test_gpt2 \
    $(patsubst build/%,build/sanitized/dev/test/%,$(unit_tests))

# Damaged files and command lines for a minute; make fuzz FUZZ_SECONDS=3600 for longer
FUZZ_SECONDS ?= 60
fuzz: build/sanitized/dev/test/fuzz
	@echo "== dev/test/fuzz.c"; FUZZ_SECONDS=$(FUZZ_SECONDS) $<

ifneq ($(and $(gpu),$(NVCC)),)
gpu-tests: build/test_gpt2cu_bf16 build/test_gpt2cu_fp32 train_gpt2cu
	@set -e; for t in build/test_gpt2cu_bf16 build/test_gpt2cu_fp32; do echo "== $$t"; $$t; \
	    $$t dev/reference/tiny_heads.bin dev/reference/tiny_heads_debug_state.bin; done
	@echo "== dev/test/test_training.sh"; dev/test/test_training.sh ./train_gpt2cu
else
gpu-tests:
	@echo "gpu-tests: skipped, $(if $(gpu),no nvcc,no GPU) here"
endif

# Every pair of variants in the trainer, against the committed dumps; needs a GPU
pair-tests: $(pairs)
	@set -eo pipefail; for t in $^; do echo "== $$t"; $$t | tail -n 1; \
	    case $$t in *wgmma*) ;; # has no head size of 32 \
	    *) $$t dev/reference/tiny_heads.bin dev/reference/tiny_heads_debug_state.bin | tail -n 1 ;; esac; done

ifeq ($(gpu),)
compete:
	@echo "error: make compete races the variants on a GPU, and there is no GPU here" >&2; exit 1
else
compete: variants
	dev/cuda/compete.sh
endif

# ----------------------------------------------------------------------------
# Format and static checks

c_files := $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh' 2>/dev/null)
sh_files := $(shell git ls-files '*.sh' .ci/run 2>/dev/null)
py_files := $(shell git ls-files '*.py' 2>/dev/null)

lint:
	clang-format --dry-run --Werror $(c_files)
	cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
	    --suppress=missingIncludeSystem -I. $(filter %.c,$(c_files))
	shellcheck $(sh_files)
	CC="$(CC)" NVCC="$(NVCC)" dev/test/check_includes.sh
	ruff check $(py_files)
	ruff format --check $(py_files)
	$(python) dev/bench/readme_tables.py --check

format:
	clang-format -i $(c_files)
	ruff format $(py_files)

clean:
	rm -rf build train_gpt2 test_gpt2 train_gpt2cu test_gpt2cu libattention.so compile_commands.json
