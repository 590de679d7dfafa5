# make                 everything that this machine can build
# make train_gpt2      the CPU trainer             make train_gpt2cu    the GPU trainer
# make generate_gpt2   from a prompt to text       make generate_gpt2cu  the same on the GPU
# make tokenize_gpt2   from text to token ids and back
# make test            those that this machine can run, in two to five minutes; make check-NAME runs one, make checks lists them
# make test-long       those that take longer           make load            the GPU's tests side by side, for LOAD_SECONDS=120
# make attention_forward_flash2                    one variant of dev/cuda, as build/attention_forward_flash2_bf16
# make compete         race all variants on this GPU      make planted-faults  try the tests on sources with a fault
# make libattention.so the fastest variants, with a C interface
# make install         libattention.so, libattention.h and a pkg-config file, under PREFIX; make uninstall removes them
# make doctor          whether this machine can build and run everything, and how to fix what is not ok
# make profile         a short run of the GPU trainer under Nsight Systems, or Nsight Compute where only that is there
# make cuda            every CUDA program there is, to see that all of them compile
# make fuzz            damaged files of every format, for FUZZ_SECONDS=60
# make soak            runs that are killed, stopped, out of disk, damaged, and resumed; SOAK_FLAGS='--only kill --kill 500'
# make mutants         random changes of the sources that the tests must refuse; takes hours; MUTANTS_FLAGS='--count 500 -j 2'
# make lint            format and static checks    make format          puts the format right
# make compile_commands.json                       for clangd and other tools
# make help            this text                   make clean           removes what was built
#
# PRECISION=BF16|FP32                              of the GPU programs
# ATTENTION_FORWARD=mma ATTENTION_BACKWARD=flash2  variants to train with, instead of the table's choice
# GPU_ARCH=90                                      compute capability to build for, not this machine's; empty: 8.0 and 9.0
# MARCH=native                                     -march of the CPU programs: those for other machines may need x86-64-v3
# CFLAGS= LDLIBS= NVCCFLAGS= CUDA_LDLIBS=          further flags; with those of a compiler, its warnings pass
# USE_OPENMP=0                                     for the CPU programs: one core
# WERROR=                                          lets the warnings of a newer compiler pass
# PREFIX=/usr/local DESTDIR=                       of make install

SHELL := /bin/bash
unexport CDPATH # cd would print, and might go elsewhere
PRECISION ?= BF16
precision := $(shell echo $(PRECISION) | tr A-Z a-z)
ifeq ($(filter $(PRECISION),BF16 FP32),)
$(error PRECISION=$(PRECISION): must be BF16 or FP32)
endif

# ----------------------------------------------------------------------------
# The CPU side

CC ?= cc
MARCH ?= native
# Those of the command line are added. With them there may be other warnings: -O1 has larger frames.
typed_flags = $(if $(filter command,$(origin $(1))),$($(1)))
typed_cflags := $(call typed_flags,CFLAGS)
typed_nvccflags := $(call typed_flags,NVCCFLAGS)
WERROR ?= $(if $(typed_cflags)$(typed_nvccflags),,-Werror)
# Multiply-adds may be fused; but no -ffast-math: NaN must stay NaN, and sums are added in the order written.
override CFLAGS := -std=c11 -D_GNU_SOURCE -O3 -march=$(MARCH) -ffp-contract=fast -fno-math-errno -fno-trapping-math \
    -Wall -Wextra $(WERROR) -I. -MMD -MP
override LDLIBS := -lm -lpthread -ldl $(call typed_flags,LDLIBS)
# Files from elsewhere are read: position-independent code, read-only relocations, guarded stacks, checked libc calls.
# Stacks may be small: no frame is larger than 16 KiB, and none jumps over the guard page.
small_frames := -fstack-clash-protection -Wframe-larger-than=16384
harden := -fPIE $(small_frames) -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
harden_link := -pie -Wl,-z,relro,-z,now
override CFLAGS += $(harden)
override LDLIBS += $(harden_link)

# OpenMP, where the compiler has it
openmp := -fopenmp-simd # loops may still be vectorised
ifneq ($(USE_OPENMP),0)
ifeq ($(shell echo 'int main(void){return 0;}' | $(CC) -fopenmp -include omp.h -x c -o /dev/null - 2>/dev/null && echo yes),yes)
openmp := -fopenmp
else
$(info no OpenMP in $(CC): the CPU programs will use one core)
endif
endif
override CFLAGS += $(openmp) $(typed_cflags)

# ----------------------------------------------------------------------------
# The GPU side

NVCC ?= $(shell command -v nvcc 2>/dev/null || ls /usr/local/cuda/bin/nvcc 2>/dev/null)

# The compute capability of the first GPU, without the dot, 90 or 90a; wgmma and setmaxnreg exist only in sm_90a.
GPU_ARCH ?= $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | grep -E '^([89]|[1-9][0-9])\.[0-9]$$' | tr -d .)
override GPU_ARCH := $(GPU_ARCH:%a=%)
ifneq ($(shell echo '$(GPU_ARCH)' | grep -vxE '(([89]|[1-9][0-9])[0-9])?'),)
$(error GPU_ARCH=$(GPU_ARCH): name a compute capability of 8.0 or newer without its dot, such as 90; empty: 8.0 and 9.0)
endif
gencode = -gencode arch=compute_$(1),code=sm_$(1)
# nvcc may be older than the GPU: then that is built for as one that is not here.
known_archs := $(if $(and $(NVCC),$(GPU_ARCH)),$(shell $(NVCC) --list-gpu-code 2>/dev/null))
ifneq ($(and $(known_archs),$(if $(filter sm_$(GPU_ARCH),$(known_archs)),,unknown)),)
$(info $(NVCC) does not know compute capability $(GPU_ARCH): the driver will compile PTX for it; install a newer CUDA Toolkit)
override GPU_ARCH :=
endif
ifneq ($(GPU_ARCH),)
arch_flags := $(call gencode,$(patsubst 90,90a,$(GPU_ARCH)))
arch_text := compute capability $(GPU_ARCH)
else # sm_80 and Hopper, and PTX for what comes after
arch_flags := $(call gencode,80) $(call gencode,90a) -gencode arch=compute_80,code=compute_80
arch_text := sm_80, sm_90a and PTX for newer ones
endif

# The registers of the kernels are fitted with ptxas 13. That of 12.6 spills 20 bytes in two configurations of mma.
cuda_release := $(if $(NVCC),$(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p'))
warn_on_spills := $(if $(filter 9 10 11 12,$(cuda_release)),,-Xptxas --warn-on-spills)
comma := ,
empty :=
space := $(empty) $(empty)
override NVCCFLAGS = -std=c++17 -I. $(or $(host_only),$(arch_flags)) -t 2 -Xcompiler -Wall,-Wextra,$(subst $(space),$(comma),$(harden)) \
    $(warn_on_spills) $(if $(WERROR),-Werror all-warnings) $(typed_nvccflags)
variant_files = $(wildcard dev/cuda/$(1)_*.cu dev/cuda/*/$(1)_*.cu)
variants_of = $(notdir $(basename $(call variant_files,$(1))))
variant_names = $(patsubst attention_$(1)_%,%,$(call variants_of,attention_$(1)))
known_variant = $(if $(filter $(2),$(call variant_names,$(1))),,$(error $(3)=$(2): no such variant; choose of: $(call variant_names,$(1))))
ifneq ($(ATTENTION_FORWARD),)
$(call known_variant,forward,$(ATTENTION_FORWARD),ATTENTION_FORWARD)
attention_flags += -DATTENTION_FORWARD=$(ATTENTION_FORWARD)
endif
ifneq ($(ATTENTION_BACKWARD),)
$(call known_variant,backward,$(ATTENTION_BACKWARD),ATTENTION_BACKWARD)
attention_flags += -DATTENTION_BACKWARD=$(ATTENTION_BACKWARD)
endif

# The variants that a program trains with: those in the rules of dev/cuda/*/choice.h, whose third column says for
# attention whether the rule is of fp32
ruled = $(sort $(shell sed -n '/ $(2)_rules\[/,/^}/ s/^ *{"\([a-z0-9_]*\)"$(comma) [^$(comma)]*$(comma) $(3)$(comma).*/\1/p' dev/cuda/$(1)/choice.h))
forward_16bit := $(call ruled,attention,attention_forward,0)
forward_fp32 := $(call ruled,attention,attention_forward,1)
backward_16bit := $(call ruled,attention,attention_backward,0)
backward_fp32 := $(call ruled,attention,attention_backward,1)
matmul_ruled := $(call ruled,matmul,matmul,.*)
override CUDA_LDLIBS := -lcublasLt -lcublas -Xcompiler -pie -Xlinker -z,relro,-z,now $(call typed_flags,CUDA_LDLIBS)

training_variants := $(call variants_of,attention_forward) $(call variants_of,attention_backward)
decode_variants := $(call variants_of,attention_decode)
matmul_variants := $(call variants_of,matmul)
vpath %.cu dev/cuda dev/cuda/attention dev/cuda/matmul dev/cuda/decode $(wildcard dev/test/*)
vpath %.c $(wildcard dev/test/*)
variants := $(training_variants) $(decode_variants) $(matmul_variants)
# Their programs, build/<name>_<precision>; those on tensor cores have no fp32. The outputs of fp8 are 16-bit.
fp32_variants := $(filter-out %_mma %_wgmma %_split %_fp8,$(variants))

# Those that programs hold, build/<operation>_variants.h: the #includes, and X(variant) for each. attention.cu and matmul.cu
# include those of the rules, or that of ATTENTION_FORWARD; test_gpu_pairs.cu those left. $(call held,LIST,FILES,16 BIT,FP32)
hash := \#
held = $(hash)ifdef PRECISION_FP32\n$(call held_list,$(1),$(2),$(4))$(hash)else\n$(call held_list,$(1),$(2),$(3))$(hash)endif\n
held_list = $(foreach v,$(3),$(hash)include "$(wildcard dev/cuda/$(2)_$(v).cu dev/cuda/matmul/$(2)_$(v).cu)"\n)$(hash)define $(1)_VARIANTS(X) $(foreach v,$(3),X($(v)))\n
held_others = $(call held,OTHER_$(1),attention_$(2),$(filter-out $($(2)_16bit),$(3)),$(filter-out $($(2)_fp32) %mma,$(3)))
held_chosen = $(call held,ATTENTION_$(1),attention_$(2),$(or $(ATTENTION_$(1)),$($(2)_16bit)),$(or $(ATTENTION_$(1)),$($(2)_fp32)))
attention_held = $(call held_chosen,FORWARD,forward)$(call held_chosen,BACKWARD,backward)
matmul_held = $(call held,MATMUL,matmul,$(matmul_ruled) cublaslt_fp8,$(filter-out %wgmma,$(matmul_ruled)))
other_held = $(call held_others,FORWARD,forward,$(call variant_names,forward))$(call \
    held_others,BACKWARD,backward,$(call variant_names,backward))
variant_programs := $(variants:%=build/%_bf16) $(fp32_variants:%=build/%_fp32)
unit_tests := $(patsubst %.c,build/%,$(notdir $(wildcard dev/test/*/test_*.c)))
# CUDA programs whose tests need no GPU, and in both precisions those that do
cuda_unit_tests := $(if $(NVCC),$(patsubst %.cu,build/%,$(filter-out test_gpu_%,$(notdir $(wildcard dev/test/*/test_*.cu)))))
gpu_unit_tests := $(foreach p,bf16 fp32,$(patsubst %.cu,build/%_$(p),$(notdir $(wildcard dev/test/*/test_gpu_*.cu))))
# of variants on tensor cores, and fp8; and two whose code is that of both precisions
gpu_unit_tests := $(filter-out $(patsubst %,build/test_gpu_%_fp32,first_rows fp8 bench doctor),$(gpu_unit_tests))
# of every variant, which a program with those of ATTENTION_FORWARD and ATTENTION_BACKWARD does not hold
gpu_unit_tests := $(if $(ATTENTION_FORWARD)$(ATTENTION_BACKWARD),$(filter-out build/test_gpu_pairs_%,$(gpu_unit_tests)),$(gpu_unit_tests))
python := $(shell command -v python3 || command -v python)
gpu := $(shell nvidia-smi -L 2>/dev/null | grep -m 1 '^GPU')

# ----------------------------------------------------------------------------
# Programs

.PHONY: all cuda test test-long test-programs load fuzz soak checks planted-faults mutants doctor compete install uninstall profile help lint format \
    clean variants $(variants)

all: train_gpt2 test_gpt2 generate_gpt2 tokenize_gpt2 $(if $(NVCC),train_gpt2cu test_gpt2cu generate_gpt2cu libattention.so,no-nvcc)
no-nvcc:
	@echo "no nvcc found: the CPU programs are built; install the CUDA Toolkit for the GPU ones"

# What a program was built with; a change of flags rebuilds it.
build/%.flags: FORCE
	@mkdir -p build
	@echo '$($(notdir $*)_flags)' | cmp -s - $@ || echo '$($(notdir $*)_flags)' > $@
FORCE:
.PHONY: FORCE
held_variants := build/attention_variants.h build/matmul_variants.h build/other_variants.h
$(held_variants): build/%_variants.h: FORCE
	@mkdir -p build
	@printf '$($*_held)' | sed 's/^ //' | cmp -s - $@ || printf '$($*_held)' | sed 's/^ //' > $@
build/trainer.flags build/gpu.flags: $(held_variants)
cpu_flags = $(CC) $(CFLAGS) $(LDLIBS)
gpu_flags = $(NVCC) $(NVCCFLAGS) $(CUDA_LDLIBS)
trainer_flags = $(gpu_flags) $(attention_flags)
precision_flags = $(PRECISION)

train_gpt2 test_gpt2 generate_gpt2 tokenize_gpt2: %: %.c build/cpu.flags
	$(CC) $(CFLAGS) -MF build/$@.d $< -o $@ $(LDLIBS)

# With WERROR what ptxas only informs of ends the build too: wgmma serialised, setmaxnreg ignored (C7508 to C7519).
nvcc = set -o pipefail; $(if $(NVCC),$(NVCC),$(error no nvcc found: install the CUDA Toolkit, or name its compiler with NVCC=)) $(NVCCFLAGS) $(or $(host_optimize),-O3)
strict := $(if $(WERROR),2>&1 | awk '{ print } /C75[01][0-9]/ { bad = 1 } END { exit bad }' >&2)
dependencies = -MMD -MP -MF $@.d -MT $@
define_precision = -DPRECISION_$(subst bf,BF,$(subst fp,FP,$(1)))
.DELETE_ON_ERROR:

# Host code that computes nothing: -Og compiles it in a third of the time. Kernels are the same.
benches := $(foreach p,bf16 fp32,$(patsubst %,build/%_bench_$(p).o,attention decode matmul))
$(variant_programs) $(benches) $(cuda_unit_tests) $(filter-out build/test_gpu_kernels_%,$(gpu_unit_tests)) build/test_gpt2cu_bf16.o build/test_gpt2cu_fp32.o \
    build/nccl_exchange build/link_power build/exchange_profile build/step_kernels build/gemm_algorithms build/energy_by_cause: private host_optimize := -Xcompiler -Og
# Tests that need no GPU: PTX of the kernels in their headers is enough, and takes ptxas no time. The driver compiles
# test_nccl's own where there are GPUs.
$(cuda_unit_tests): private host_only := -gencode arch=compute_80,code=compute_80
# The kernels of training and of generating, and their launchers, compiled once: dev/cuda/bench/variants.cuh.
# A program is linked with $(call training_kernels,PRECISION) or $(call decoding_kernels,PRECISION).
training_kernels = build/attention_$(1).o build/matmul_$(1).o
decoding_kernels = $(training_kernels) build/decode_$(1).o
define kernels_rule
build/attention_$(1).o build/matmul_$(1).o build/decode_$(1).o: build/%_$(1).o: %.cu build/trainer.flags
	$$(nvcc) $(call define_precision,$(1)) $(attention_flags) $(shared_object) $$(dependencies) -c $$< -o $$@ $$(strict)
endef
shared_object := -Xcompiler -fPIC,-fvisibility=hidden
$(foreach p,bf16 fp32,$(eval $(call kernels_rule,$(p))))
# $(call compile_apart,PRECISION): the recipe of such a program
compile_apart = $(call nvcc_apart,$(1)) $(filter %.o,$^) -o $@ $(CUDA_LDLIBS) $(strict)
nvcc_apart = $(nvcc) $(call define_precision,$(1)) $(attention_flags) $(dependencies) $<
# The trainers in both precisions, build/train_gpt2cu_fp32, build/test_gpt2cu_bf16, ..., compiled beside their kernels
define trainer_rule
build/train_gpt2cu_$(1).o build/test_gpt2cu_$(1).o build/generate_gpt2cu_$(1).o: build/%cu_$(1).o: %.cu build/trainer.flags
	@echo "building $$(@:.o=) for $(arch_text)"
	$$(call nvcc_apart,$(1)) -c -o $$@ $$(strict)
build/train_gpt2cu_$(1) build/test_gpt2cu_$(1) build/generate_gpt2cu_$(1): build/%_$(1): build/%_$(1).o $(call training_kernels,$(1))
	$$(nvcc) $$(filter %.o,$$^) -o $$@ $$(CUDA_LDLIBS)
build/generate_gpt2cu_$(1): build/decode_$(1).o
endef
$(foreach p,bf16 fp32,$(eval $(call trainer_rule,$(p))))
# and that of PRECISION at the root
train_gpt2cu test_gpt2cu generate_gpt2cu: %: build/%_$(precision) build/precision.flags
	cp $< $@

# The variants. $(call variant_rule,PRECISION,ROOM,VARIANTS)
define variant_rule
$(filter $(3:%=build/%_$(1)),$(variant_programs)): build/%_$(1): %.cu build/$(2)_bench_$(1).o build/gpu.flags
	$$(nvcc) $(call define_precision,$(1)) $$(dependencies) $$< build/$(2)_bench_$(1).o -o $$@ $$(CUDA_LDLIBS) $$(strict)
build/$(2)_bench_$(1).o: dev/cuda/$(2)/bench.cu build/gpu.flags
	$$(nvcc) $(call define_precision,$(1)) $$(dependencies) -c $$< -o $$@ $$(strict)
endef
$(foreach p,bf16 fp32,$(eval $(call variant_rule,$(p),attention,$(training_variants))))
$(foreach p,bf16 fp32,$(eval $(call variant_rule,$(p),decode,$(decode_variants))))
$(foreach p,bf16 fp32,$(eval $(call variant_rule,$(p),matmul,$(matmul_variants))))
$(variants): %: build/%_$(precision)
variants: $(variant_programs)
# for dev/cuda/bench/sanitize.sh: see WARP_ARRIVALS in llmc/cuda/hopper.cuh. It may spill registers.
define racecheck_rule
$(2:%=build/racecheck_%_bf16): build/racecheck_%_bf16: %.cu build/$(1)_bench_bf16.o build/gpu.flags
	$$(subst -Werror all-warnings,,$$(subst -Xptxas --warn-on-spills,,$$(nvcc))) -DPRECISION_BF16 -DEVERY_LANE_ARRIVES $$(dependencies) $$< build/$(1)_bench_bf16.o \
	    -o $$@ $$(CUDA_LDLIBS)
endef
$(eval $(call racecheck_rule,attention,$(training_variants)))
$(eval $(call racecheck_rule,matmul,$(matmul_variants)))

# Every CUDA program there is, to see that all of them compile
cuda: $(foreach p,train test generate,$(p)_gpt2cu build/$(p)_gpt2cu_fp32) libattention.so variants \
    $(cuda_unit_tests) $(gpu_unit_tests) build/nccl_exchange build/link_power build/exchange_profile build/step_kernels build/generate_speed build/gemm_algorithms build/energy_by_cause

libattention.so: dev/cuda/libattention.cu build/trainer.flags build/attention_bf16.o
	$(nvcc) -DPRECISION_BF16 $(attention_flags) $(shared_object) -shared -Xlinker -soname=libattention.so,-z,relro,-z,now \
	    -MMD -MP -MF build/$@.d -MT $@ $< build/attention_bf16.o -o $@ $(strict)

# What was made of a source that has moved since is made again; -MP does the same for headers.
stale := $(shell grep -oHE '(^| )dev/[^ :]+\.cu?( |$$)' build/*.d 2>/dev/null | while IFS=: read d source; do [ -e $$source ] || echo $$d; done)
ifneq ($(stale),)
$(shell sed -s -n '1s/:.*//p' $(stale)): FORCE
endif
-include $(filter-out $(stale),$(wildcard build/*.d))
build/%.d: ; # what a compiler wrote beside a program is not a target of its own

# ----------------------------------------------------------------------------
# Installing, and what other tools read
PREFIX ?= /usr/local
install_to = PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" libdir="$(libdir)" includedir="$(includedir)" scripts/install.sh
install: libattention.so
	@$(install_to)
uninstall:
	@$(install_to) --remove

# For clangd: how each program is compiled. CUDA files get clang's flags, which clangd understands, not nvcc's.
clang_cuda := clang++ -x cuda -std=c++17 -I. --cuda-gpu-arch=sm_80 --cuda-path=$(patsubst %/bin/nvcc,%,$(NVCC)) -DPRECISION_BF16
c_programs := $(wildcard *.c dev/test/*/*.c dev/bench/*.c)
cu_programs := $(wildcard *.cu dev/cuda/*.cu dev/cuda/*/*.cu dev/test/*/*.cu dev/bench/*.cu)
compile_commands.json: FORCE $(held_variants)
	@{ echo '['; \
	    for f in $(c_programs); do printf '  {"directory": "%s", "file": "%s", "command": "%s"},\n' \
	        '$(CURDIR)' $$f "$(CC) $(filter-out -MMD -MP,$(CFLAGS)) -c $$f"; done; \
	    for f in $(cu_programs); do printf '  {"directory": "%s", "file": "%s", "command": "%s"},\n' \
	        '$(CURDIR)' $$f "$(clang_cuda) -c $$f"; done; } | sed '$$ s/,$$/\n]/' > $@
	@echo "$@: $(words $(c_programs) $(cu_programs)) programs"

help:
	@sed -n '/^# make /,/^$$/ { s/^# \{0,1\}//p }' Makefile

profile:
	@scripts/profile.sh
compete: $(if $(gpu),variants)
	@dev/cuda/bench/compete.sh

# ARGS='-o log124M': the flags of a run
doctor:
	@scripts/doctor.sh $(ARGS)

# ----------------------------------------------------------------------------
# Tests

# What tests are built from, the table of the checks, make test and make load
include dev/test/checks.mk

# ----------------------------------------------------------------------------
# Format and static checks

# What git tracks, and what is new and not ignored; not what is removed, but still tracked
files_here = $(sort $(wildcard $(shell git ls-files -co --exclude-standard $(1) 2>/dev/null)))
c_files := $(call files_here,'*.c' '*.h' '*.cu' '*.cuh')
sh_files := $(call files_here,'*.sh' .ci/run)
py_files := $(call files_here,'*.py')

# those that include a program, whose main they leave out; cppcheck knows no __INCLUDE_LEVEL__
including_files := $(shell git grep --untracked -l '^\#include "[^"]*\.c"' -- '*.c' 2>/dev/null)
# without -D, all mixtures of #ifs
cppcheck := cppcheck --quiet -j$(cores) --std=c11 --language=c --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
    --suppress=missingIncludeSystem -D__GNUC__ -D__linux__ -D__x86_64__ -I.

# each by itself, so that make -j2 lint runs them side by side
lints := $(patsubst %,lint-%,cppcheck cppcheck-including includes format shell python gpu-runs)
.PHONY: $(lints)
lint: $(lints)
lint-cppcheck:
	$(cppcheck) $(filter-out $(including_files),$(filter %.c,$(c_files)))
lint-cppcheck-including:
	$(cppcheck) -D__INCLUDE_LEVEL__=1 $(including_files)
lint-includes:
	CC="$(CC)" NVCC="$(NVCC)" dev/test/check_includes.sh
lint-format:
	clang-format --dry-run --Werror $(c_files)
lint-shell:
	shellcheck -x $(sh_files)
lint-python:
	ruff check $(py_files)
	ruff format --check $(py_files)
	$(python) dev/bench/readme_tables.py --check

# a warning: who changes the GPU's code may have no GPU
lint-gpu-runs:
	@dev/test/record_run.sh stale

format:
	clang-format -i $(c_files)
	ruff format $(py_files)

# The quickstart's models stay.
clean:
	if [ -d build ]; then find build -mindepth 1 -maxdepth 1 ! -name quickstart -exec rm -rf {} +; fi
	rm -rf train_gpt2 test_gpt2 generate_gpt2 tokenize_gpt2 train_gpt2cu test_gpt2cu generate_gpt2cu libattention.so compile_commands.json
