# What tests and benches are built from, the table of the checks, and the targets that run them; the Makefile includes this.
# `make check-NAME` builds what a check needs and runs it, `make test` builds all programs first, and dev/test/planted_faults.sh
# runs checks one by one on sources with a fault.
#
#     $(call check,NAME,KIND,NEEDS,COMMAND)
#     $(call precisions,NAME,KIND,NEEDS,COMMAND)     NAME_bf16 and, long, NAME_fp32; _P in NEEDS and COMMAND is _bf16 or _fp32
#
# KIND says where and when it runs: cpu everywhere, gpu where there are a GPU and nvcc; long in make test-long; slow there where
# there is no GPU, and there may be two cores; early among the first, so that no long one is left to run alone at the end.

# Unit tests at -Og, which compiles in a third of the time; at -O3, as the programs, those of kernels and of speed.
# Without the limit of frames: clang makes one of all that a test's main() calls. Nor does it vectorise at -Og, and says so.
test_cflags = $(filter-out -Wframe-larger-than=%,$(patsubst -O3,$(or $(test_optimize),-Og),$(CFLAGS))) -Wno-pass-failed
build/test_%: test_%.c build/cpu.flags
	$(CC) $(test_cflags) -MF $@.d $< -o $@ $(LDLIBS)
$(patsubst %,build/test_%,cpu_kernels several_processes decoder gradient_tree finite_check checksum digest checkpoint): private test_optimize := -O3
build/test_libattention: private LDLIBS += -ldl
build/test_libattention: | $(if $(NVCC),libattention.so)

# The trainers with the faults that tests ask for: dev/test/whole/train_with_faults.h
build/train_gpt2_faults: dev/test/whole/train_with_faults.c build/cpu.flags
	$(CC) $(CFLAGS) -MF $@.d $< -o $@ $(LDLIBS)
define faults_rule
build/train_gpt2cu_faults_$(1): dev/test/whole/train_with_faults.cu build/trainer.flags $(call training_kernels,$(1))
	$$(call compile_apart,$(1))
endef
$(foreach p,bf16 fp32,$(eval $(call faults_rule,$(p))))
# The CPU's benches: cpu_decode.sh and cpu_step.sh, in dev/bench, build and run them
build/cpu_decode build/cpu_step: build/%: dev/bench/%.c build/cpu.flags
	$(CC) $(CFLAGS) -DTRAINER='"train_gpt2.c"' -MF $@.d $< -o $@ $(LDLIBS)
# Our side of test_transformers.py
build/transformers_side: dev/test/whole/transformers_side.c build/cpu.flags
	$(CC) $(test_cflags) -MF $@.d $< -o $@ $(LDLIBS)
# The GPU trainer with timing events around what it exchanges with other processes: for dev/bench/scaling.py
build/exchange_profile: dev/bench/exchange_profile.cu build/trainer.flags $(call training_kernels,bf16)
	$(call compile_apart,bf16)
# The operations of a step by group, for dev/bench/step_kernels.py; build/step_kernels d12 64
build/step_kernels: dev/bench/step_kernels.cu build/trainer.flags $(call training_kernels,bf16)
	$(call compile_apart,bf16)

# Under AddressSanitizer and UBSan, whose frames are larger. -Og compiles in half the time of -O1 and runs a tenth slower.
sanitize = $(filter-out -O3 $(small_frames) %_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2,$(CFLAGS)) -Og -g
build/sanitized/%: %.c build/cpu.flags
	@mkdir -p $(@D)
	$(CC) $(sanitize) -fsanitize=address,undefined $(unsanitized) -fno-sanitize-recover=all -MF build/sanitized_$(notdir $*).d $< -o $@ $(LDLIBS)
# Those that train models would spend a third of their time on what AddressSanitizer sees when the address is used.
build/sanitized/test_gpt2 build/sanitized/test_several_processes: private unsanitized := -fno-sanitize=pointer-overflow,null

# Under ThreadSanitizer: threads that write checkpoints, read weights, watch the other processes. Without OpenMP,
# whose own threads it takes for races.
build/tsan/%: %.c build/cpu.flags
	@mkdir -p $(@D)
	$(CC) $(filter-out -fopenmp,$(sanitize)) -fsanitize=thread -MF build/tsan_$(notdir $*).d $< -o $@ $(LDLIBS)

build/test_decode_step: dev/test/decode/test_decode_step.cu build/trainer.flags build/decode_bf16.o
	$(call compile_apart,bf16)
build/test_%: test_%.cu build/gpu.flags
	$(nvcc) -DPRECISION_BF16 $(dependencies) $< -o $@ $(CUDA_LDLIBS) $(strict)

# cuBLASLt's algorithms for a step's GEMMs, whose winners llmc/cuda/matmul_algorithms.h has; build/gemm_algorithms 65536,768
build/gemm_algorithms: dev/bench/gemm_algorithms.cu build/gpu.flags
	$(nvcc) -DPRECISION_BF16 $(dependencies) $< -o $@ $(CUDA_LDLIBS) $(strict)

# Tokens/s of the GPU decoder, for dev/bench/generate.py; build/generate_speed d12 64
build/generate_speed: dev/bench/generate_speed.cu build/trainer.flags $(call decoding_kernels,bf16)
	$(call compile_apart,bf16)

# The library as builds without sm_90a have it on a GPU of 9.0: code for sm_90, where other variants must serve, and PTX with
# wgmma alone, where nothing can
build/libattention_sm_90.so build/attention_sm_90.o: private arch_flags := -gencode arch=compute_90,code=sm_90
build/libattention_ptx.so build/attention_ptx.o: private arch_flags := -gencode arch=compute_90,code=compute_90 \
    -DATTENTION_FORWARD=wgmma -DATTENTION_BACKWARD=wgmma
build/attention_sm_90.o build/attention_ptx.o: dev/cuda/attention/attention.cu build/gpu.flags
	$(nvcc) -DPRECISION_BF16 $(dependencies) $(shared_object) -c $< -o $@ $(strict)
build/libattention_sm_90.so build/libattention_ptx.so: build/lib%.so: dev/cuda/libattention.cu build/%.o build/gpu.flags
	$(nvcc) -DPRECISION_BF16 $(dependencies) $(shared_object) -shared $< build/$*.o -o $@ $(strict)

# Attention with one thing left out beside attention: for dev/bench/energy_by_cause.py
build/energy_by_cause: dev/bench/energy_by_cause.cu build/gpu.flags
	$(nvcc) -DPRECISION_BF16 $(dependencies) $< -o $@ $(CUDA_LDLIBS) $(strict)

# NCCL between the GPUs of this machine, build/nccl_exchange 4 for four of them; what NVLink takes of the power limit
build/nccl_exchange build/link_power: build/%: dev/bench/%.cu build/gpu.flags
	$(nvcc) -DPRECISION_BF16 $(dependencies) $< -o $@ $(CUDA_LDLIBS) $(strict)

# Those that train or generate have the kernels of a program.
define gpu_unit_test_rule
$(filter %_$(1),$(gpu_unit_tests)): build/%_$(1): %.cu build/trainer.flags
	$$(call compile_apart,$(1))
$(patsubst %,build/test_gpu_%_$(1),bench doctor first_rows fp8 generate graphs kernels pairs processes): $(call training_kernels,$(1))
build/test_gpu_generate_$(1) build/test_gpu_decode_$(1): build/decode_$(1).o
endef
$(foreach p,bf16 fp32,$(eval $(call gpu_unit_test_rule,$(p))))

# What needs no GPU: unit tests in C, as they are and under AddressSanitizer and UBSan, in CUDA and in Python, and the trainer.
# Not sanitized is the test of the library, whose CUDA driver maps memory where ASan has its shadow.

# The checks
define check_rule
.PHONY: check-$(1)
needs_$(1) := $(2)
check-$(1): $(2)
	@dev/test/check.sh $(1) $(3)
endef
check = $(eval $(call check_rule,$(1),$(3),$(4)))$(foreach k,$(2),$(eval $(k)_checks += check-$(1)))
precisions = $(foreach p,bf16 fp32,$(call check,$(1)_$(p),gpu $(2) $(if $(filter fp32,$(p)),long),$(subst _P,_$(p),$(3)),$(subst _P,_$(p),$(4))))
# Each start on a GPU takes a second or two, so NAME_bf16 runs the command with `short`, which skips host code that NAME already
# tests on the CPU. The whole of it is in make test-long.
shortened = $(call check,$(1)_bf16,gpu early,$(subst _P,_bf16,$(2)),$(subst _P,_bf16,$(3)) short)$(foreach p,bf16 fp32,$(call \
    check,$(1)_whole_$(p),gpu long early,$(subst _P,_$(p),$(2)),$(subst _P,_$(p),$(3))))
whole := dev/test/whole

# Unit tests, and the same under sanitizers
early_units := test_gpu_kernels_bf16 test_gpu_pairs_bf16
slow_units := test_decode_step test_libattention test_bench
$(foreach t,$(unit_tests) $(cuda_unit_tests),$(call check,$(notdir $(t)),cpu $(if $(filter $(slow_units),$(notdir $(t))),slow),$(t),$(t)))
long_units := $(patsubst %,test_gpu_%_fp32,decode generate graphs kernels pairs processes)
$(foreach t,$(gpu_unit_tests),$(call \
    check,$(notdir $(t)),gpu $(if $(filter $(early_units),$(notdir $(t))),early) $(if $(filter $(long_units),$(notdir $(t))),long),$(t),$(t)))
early_sanitized := test_gpt2 test_several_processes test_comm_meet test_comm
$(foreach t,test_gpt2 $(filter-out test_libattention,$(notdir $(unit_tests))),$(call \
    check,sanitized-$(t),cpu long $(if $(filter $(early_sanitized),$(t)),early),build/sanitized/$(t),build/sanitized/$(t)))
$(foreach t,test_checkpoint_writer test_checkpoint_shards test_comm test_weights_file,$(call \
    check,tsan-$(t),cpu long $(if $(filter %shards %comm,$(t)),early),build/tsan/$(t),build/tsan/$(t)))

# Scripts
# PyTorch may be Debian's (apt-get install python3-torch), which python3 need not be
torch_python = $(if $(shell $(python) -c 'import torch' 2>/dev/null && echo it is),$(python),$(or $(wildcard /usr/bin/python3),$(python)))
$(foreach t,$(filter-out test_data test_corpora test_loss test_reference test_evaluate test_scaling test_report test_cpu_step test_flashgpt_attention,$(notdir $(basename $(wildcard dev/test/scripts/test_*.py)))),$(call \
    check,$(t),cpu,,$(python) dev/test/scripts/$(t).py))
$(call check,test_data,cpu early,tokenize_gpt2,$(python) dev/test/scripts/test_data.py)
$(call check,test_corpora,cpu,tokenize_gpt2,$(python) dev/test/scripts/test_corpora.py)
$(call check,test_loss,cpu,train_gpt2,$(python) dev/test/scripts/test_loss.py)
$(call check,test_scaling,cpu slow early,,$(python) dev/test/scripts/test_scaling.py)
$(call check,test_report,cpu slow,,$(python) dev/test/scripts/test_report.py)
$(call check,test_reference,cpu slow early,,$$(torch_python) dev/test/scripts/test_reference.py)
$(call check,test_evaluate,cpu slow early,generate_gpt2 tokenize_gpt2,$$(torch_python) dev/test/scripts/test_evaluate.py ./generate_gpt2)
$(call check,test_flashgpt_attention,cpu slow early,,$$(torch_python) dev/test/scripts/test_flashgpt_attention.py)
$(call check,flashgpt_attention_gpu,gpu early,libattention.so,$$(torch_python) dev/test/scripts/test_flashgpt_attention.py --gpu)
$(call check,evaluate_bf16,gpu,build/generate_gpt2cu_bf16 tokenize_gpt2,$$(torch_python) dev/test/scripts/test_evaluate.py build/generate_gpt2cu_bf16 5e-2)
$(call check,evaluate_fp32,gpu long,build/generate_gpt2cu_fp32 tokenize_gpt2,$$(torch_python) dev/test/scripts/test_evaluate.py build/generate_gpt2cu_fp32 1e-2)
$(call check,test_transformers,cpu,build/transformers_side,$$(torch_python) $(whole)/test_transformers.py build/transformers_side)
$(call check,test_gpu_rows,cpu,,$(whole)/test_gpu_rows.sh)
$(call check,test_makefile,cpu slow early,train_gpt2,$(whole)/test_makefile.sh)

# The trainers against PyTorch
$(call check,test_gpt2,cpu,test_gpt2,./test_gpt2)
$(foreach p,bf16 fp32,$(call check,test_gpt2cu_$(p),gpu,build/test_gpt2cu_$(p),build/test_gpt2cu_$(p)))

# Runs from end to end. What a run shows: in a file, on a terminal, with --log-json. faults_ahead is as on a GPU, where a step
# begins before the result of the last one is known.
$(call check,training,cpu early,train_gpt2,$(whole)/test_training.sh ./train_gpt2)
$(call shortened,training,build/train_gpt2cu_P,$(whole)/test_training.sh build/train_gpt2cu_P)
$(call check,generate,cpu,generate_gpt2 train_gpt2,$(whole)/test_generate.sh ./generate_gpt2)
$(call shortened,generate,build/generate_gpt2cu_P train_gpt2,$(whole)/test_generate.sh build/generate_gpt2cu_P)
$(call check,faults,cpu early,build/train_gpt2_faults,$(whole)/test_faults.sh build/train_gpt2_faults)
$(call check,faults_ahead,cpu long early,build/train_gpt2_faults,env FAULT_AHEAD=1 $(whole)/test_faults.sh build/train_gpt2_faults)
$(call check,test_deleted_folder,cpu,build/train_gpt2_faults,$(whole)/test_deleted_folder.sh build/train_gpt2_faults)
$(call shortened,faults,build/train_gpt2cu_faults_P,$(whole)/test_faults.sh build/train_gpt2cu_faults_P)
process_programs := train_gpt2 build/train_gpt2_faults
$(call check,test_processes,cpu early,$(process_programs),$(whole)/test_processes.sh ./train_gpt2 build/train_gpt2_faults)
$(call check,process_faults,cpu early,$(process_programs),$(python) $(whole)/process_faults.py ./train_gpt2 build/train_gpt2_faults)
$(call check,run_output,cpu,$(process_programs),$(python) $(whole)/run_output.py ./train_gpt2 build/train_gpt2_faults)
several := build/train_gpt2cu_bf16 build/train_gpt2cu_faults_bf16
$(call check,several_gpus,gpu long early,$(several),$(whole)/test_several_gpus.sh)
$(call check,several_gpus_small,gpu early,$(several),$(whole)/test_several_gpus.sh small)
check-several_gpus: export CHECK_TIMEOUT ?= 900
# beside other work on the GPU, or on the machine
$(addprefix check-,several_gpus_small training_bf16 generate_bf16 faults_bf16): export CHECK_TIMEOUT ?= 600
$(call check,test_plan_run,cpu early,train_gpt2,$(whole)/test_plan.sh ./train_gpt2)
$(call check,test_plan_run_bf16,gpu early,build/train_gpt2cu_bf16,$(whole)/test_plan.sh build/train_gpt2cu_bf16)
$(call check,test_plan_run_fp32,gpu long,build/train_gpt2cu_fp32,$(whole)/test_plan.sh build/train_gpt2cu_fp32)
$(foreach p,bf16 fp32,$(call check,plan_memory_$(p),gpu,build/train_gpt2cu_$(p),$(whole)/test_plan.sh build/train_gpt2cu_$(p) memory))
$(call check,test_resume_run,cpu,train_gpt2,$(whole)/test_resume.sh ./train_gpt2)
$(call precisions,test_resume_run,,build/train_gpt2cu_P train_gpt2,$(whole)/test_resume.sh build/train_gpt2cu_P ./train_gpt2)
$(call check,test_environment,cpu,train_gpt2,$(whole)/test_environment.sh ./train_gpt2)
$(call check,test_documents,cpu,train_gpt2,$(whole)/test_documents.sh ./train_gpt2)
$(call precisions,test_documents,,build/train_gpt2cu_P,$(whole)/test_documents.sh build/train_gpt2cu_P)
$(call check,test_run_124M,cpu,train_gpt2 generate_gpt2,$(whole)/test_run_124M.sh ./train_gpt2)
$(call check,test_doctor,cpu,train_gpt2,$(whole)/test_doctor.sh ./train_gpt2)
$(call check,test_doctor_bf16,gpu,build/train_gpt2cu_bf16,$(whole)/test_doctor.sh build/train_gpt2cu_bf16)
$(call check,test_launch_run,cpu,train_gpt2 build/test_launch_gpu,$(whole)/test_launch.sh ./train_gpt2 build/test_launch_gpu)
without_gpu := build/train_gpt2cu_bf16 build/generate_gpt2cu_bf16
$(call check,test_without_gpu,gpu,$(without_gpu) train_gpt2,$(whole)/test_without_gpu.sh $(without_gpu) ./train_gpt2)
$(call check,test_tokenize,cpu,tokenize_gpt2,$(whole)/test_tokenize.sh ./tokenize_gpt2)
$(call check,compare_tokenizer,cpu,tokenize_gpt2,$(python) dev/test/text/compare_tokenizer.py ./tokenize_gpt2 --short)
$(call check,test_cpu_step,cpu,build/cpu_decode build/cpu_step,$(python) dev/test/scripts/test_cpu_step.py)
hardened := train_gpt2 test_gpt2 generate_gpt2 tokenize_gpt2
$(call check,test_hardening,cpu,$(hardened),$(whole)/test_hardening.sh $(hardened))
hardened := train_gpt2cu test_gpt2cu libattention.so
$(call check,test_hardening_cuda,gpu,$(hardened),$(whole)/test_hardening.sh $(hardened))

# Damaged files and command lines: the corpus and some seconds of new ones, and a minute; make fuzz FUZZ_SECONDS=3600 for longer.
# And a trainer among faults: a few of each kind here, many in make soak; each start of the GPU trainer takes two seconds.
FUZZ_SECONDS ?= 60
$(call check,fuzz_short,cpu,build/sanitized/fuzz,env FUZZ_SECONDS=3 build/sanitized/fuzz)
$(call check,fuzz,cpu long early,build/sanitized/fuzz,env FUZZ_SECONDS=$(FUZZ_SECONDS) build/sanitized/fuzz)
check-fuzz: export CHECK_TIMEOUT ?= $(shell echo $$(($(FUZZ_SECONDS) + 300)))
$(call check,soak_short,cpu long early,train_gpt2 build/train_gpt2_faults,$(python) $(whole)/soak.py ./train_gpt2 --short)
$(call check,soak_short_bf16,gpu long,build/train_gpt2cu_bf16,$(python) $(whole)/soak.py build/train_gpt2cu_bf16 --short \
    --only kill term full --kill 5 --term 3 --jobs 4)

# Every variant's sweep; compute-sanitizer on small shapes of those in the rules, all but the library's; the library as builds
# without sm_90a have it
$(foreach t,$(variant_programs),$(call check,$(notdir $(t)),gpu $(if $(filter %_bf16,$(t)),,long),$(t),$(t) --check-only))
raced := build/attention_forward_mma_bf16 build/attention_decode_split_bf16
$(call check,test_bench_run,gpu,$(raced),$(whole)/test_bench_run.sh $(raced))
sanitized_variants := $(sort $(forward_16bit) $(forward_fp32) $(backward_16bit) $(backward_fp32) $(filter-out cublas%,$(matmul_ruled)) split)
sanitizer := $(shell PATH=$$PATH:/usr/local/cuda/bin command -v compute-sanitizer 2>/dev/null)
sanitizer_precision = $(if $(filter $(forward_fp32),$(1)),fp32,bf16)
sanitizer_needs = $(filter %ward_$(1)_$(sanitizer_precision) %decode_$(1)_$(sanitizer_precision) %matmul_$(1)_bf16,$(variant_programs)) \
    $(if $(filter %wgmma,$(1)),$(patsubst %,build/racecheck_%_bf16,$(filter %_$(1),$(variants))))
$(foreach v,$(sanitized_variants),$(call \
    check,sanitizer_$(v),$(if $(sanitizer),gpu long),$(call sanitizer_needs,$(v)),env QUICK=1 dev/cuda/bench/sanitize.sh $(v)))
for_sm_90 := $(if $(filter-out 90,$(GPU_ARCH)),,gpu)
$(call check,libattention_sm_90,$(for_sm_90),build/libattention_sm_90.so build/test_libattention,build/test_libattention build/libattention_sm_90.so)
$(call check,libattention_ptx,$(for_sm_90),build/libattention_ptx.so build/test_libattention,build/test_libattention build/libattention_ptx.so sm_90a)

ifneq ($(and $(gpu),$(NVCC)),)
checks_here := $(gpu_checks) $(cpu_checks)
not_here := $(if $(sanitizer),,sanitizer checks: no compute-sanitizer here)
else
checks_here := $(cpu_checks)
long_checks += $(slow_checks)
not_here := $(words $(gpu_checks)) checks on a GPU: $(if $(gpu),no nvcc,no GPU) here
endif
longest := $(addprefix check-,several_gpus_small training_bf16 generate_bf16 faults_bf16 test_gpu_kernels_bf16 \
    test_gpu_processes_bf16 test_resume_run_bf16 evaluate_bf16)
early_checks := $(longest) $(filter-out $(longest),$(early_checks))
early_first = $(filter $(1),$(early_checks)) $(filter-out $(early_checks),$(1))
checks_of_test := $(call early_first,$(filter-out $(long_checks),$(checks_here)))
checks_of_test-long := $(call early_first,$(filter $(long_checks),$(checks_here)))

# ----------------------------------------------------------------------------
# Running them

# Programs are built as many at a time as there are cores; checks, which use several cores or the GPU, half as many, but four:
# some wait most of their time; those on a GPU a third, from three to six, because their host code waits for each other's in
# the driver. CHECK_JOBS=1: one by one. make test CHECKS='faults test_comm': these alone.
cores := $(shell nproc 2>/dev/null || echo 2)
CHECK_JOBS ?= $(shell echo $$(($(cores) < 8 ? 4 : $(cores) / 2)))
GPU_JOBS ?= $(shell echo $$(($(cores) < 12 ? 3 : $(cores) > 18 ? 6 : $(cores) / 3)))
asked := $(patsubst %,check-%,$(patsubst check-%,%,$(CHECKS)))
test-programs: $(sort $(foreach c,$(asked),$(needs_$(c:check-%=%))))
# A check that does not exist, in CHECKS or as check-NAME
no_such := import difflib, sys; near = difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1); \
    sys.exit(f"error: there is no check {sys.argv[1]}; " + "".join(f"did you mean {n}? " for n in near) + "make checks lists them all")
say_no_such = $(python) -c '$(no_such)' $(1:check-%=%) $(patsubst check-%,%,$(cpu_checks) $(gpu_checks))
unknown = $(firstword $(foreach c,$(asked),$(if $(filter undefined,$(origin needs_$(c:check-%=%))),$(c))))
check-%:
	@$(call say_no_such,$*)
# under another name, or make -n would run the checks
make_itself := $(MAKE)
test-long: export CHECK_TIMEOUT ?= 900
test test-long:
	@$(if $(unknown),$(call say_no_such,$(unknown)),:)
	@MAKE='$(make_itself)' BUILD_JOBS=$(cores) CHECK_JOBS=$(CHECK_JOBS) NOT_HERE='$(not_here)' \
	    ON_GPU='$(gpu_checks:check-%=%)' GPU_JOBS=$(GPU_JOBS) ALONE='plan_memory_bf16 plan_memory_fp32' \
	    dev/test/run_checks.sh '$@$(if $(asked), CHECKS=...)' $(or $(asked),$(checks_of_$@))
fuzz: check-fuzz
checks:
	@printf '%s\n' $(sort $(cpu_checks) $(gpu_checks))

# Faults that the checks must refuse, in copies of the sources; dev/test/planted_faults.txt lists them
planted-faults:
	dev/test/planted_faults.sh

# A sample of small changes that the checks must refuse: dev/test/mutants.py
mutants:
	@$(python) dev/test/mutants.py --checks '$(checks_here)' $(MUTANTS_FLAGS)

# Some minutes, on the CPU trainer and, where there is a GPU, on its trainer
soak_trainers := ./train_gpt2 $(if $(and $(gpu),$(NVCC)),build/train_gpt2cu_bf16)
soak: build/sanitized/fuzz $(soak_trainers) build/train_gpt2_faults $(if $(filter build/%,$(soak_trainers)),build/train_gpt2cu_faults_bf16)
	$< flips
	@for trainer in $(soak_trainers); do $(python) dev/test/whole/soak.py $$trainer $(SOAK_FLAGS) || exit 1; done

# The GPU's tests side by side, with training and generating whose results must be those of alone
LOAD_SECONDS ?= 120
load_programs := build/train_gpt2cu_bf16 build/generate_gpt2cu_bf16 build/test_gpt2cu_bf16 build/test_gpt2cu_fp32 $(gpu_unit_tests)
load: $(if $(gpu),$(load_programs))
	@$(if $(gpu),dev/test/whole/gpu_load.sh $(LOAD_SECONDS) $(load_programs),\
	    echo "error: make load runs the GPU's tests side by side, and there is no GPU here" >&2; exit 1)
