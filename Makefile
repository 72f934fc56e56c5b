# Thin wrappers around CMake and tools/. On a fresh Debian 12 machine, as root or with sudo:
#   make serve     serves a model on http://localhost:8000
#   make test      tests; make test-more runs the rest of what CI runs
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODEL ?= smollm2-135m
HOST ?= 127.0.0.1
PORT ?= 8000
LLAMA_BENCH ?= llama-bench
THREADS ?= 0
JOBS ?= $(shell nproc)
CACHE := $(or $(TOKAMAK_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tokamak)
OTHER_CPU := $(if $(filter aarch64,$(shell uname -m)),x86_64,aarch64)
# One more test than cores: those that talk to a server wait most of the time.
CTEST := ctest --output-on-failure --no-tests=error -j $(shell expr $(JOBS) + 1)
STAGES ?= dev release

# configure a preset: quiet unless it fails
configure = @log="$$(cmake --preset $(1) $(2) 2>&1)" || { echo "$$log"; exit 1; }
# extra options for tests: Python with its packages, and the real model
test_options = -DTK_TESTS=ON -DTK_PYTHON=$(CACHE)/venv/bin/python -DTK_TEST_MODEL="$$(tools/get_model.py | tail -n 1)"

# Sanitizer findings, including leaks, fail the test.
export ASAN_OPTIONS ?= detect_leaks=1:strict_string_checks=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1

.PHONY: help build serve bench test test-more test-deps test-dev test-release test-tsan test-cross test-includes test-cuda test-fuzz lint format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

build: ## install missing packages, build build/release/tokamak; CUDA=1 compiles and embeds the CUDA kernels
	@tools/install_deps.sh build
	@$(if $(filter 1,$(CUDA)),tools/install_deps.sh cuda)
	$(call configure,release,-DTK_TESTS=OFF $(if $(filter 1,$(CUDA)),-DTK_CUDA=ON -DTK_NVCC="$$(tools/build_kernels.sh --nvcc)",-DTK_CUDA=OFF))
	@cmake --build --preset release -j $(JOBS) --target tokamak

serve: build ## build, download the model once, serve it: MODEL=name|path PORT=8000 HOST=127.0.0.1
	@model="$$(tools/get_model.py --model '$(MODEL)' | tail -n 1)"; \
	exec build/release/tokamak serve "$$model" --host '$(HOST)' --port '$(PORT)'

bench: build ## compare with llama.cpp: MODEL=name|path LLAMA_BENCH=llama-bench THREADS=1,2; the report goes to build/bench_vs.md
	@model="$$(tools/get_model.py --model '$(MODEL)' | tail -n 1)"; \
	build/release/tokamak bench vs "$$model" --llama-bench '$(LLAMA_BENCH)' --threads '$(THREADS)' \
	  --commit "$$(git describe --always --dirty 2>/dev/null || true)" -o build/bench_vs.md

test: test-deps ## install missing packages, build and run the tests; STAGES="dev tsan" chooses stages
	@failed=""; summary=""; \
	for stage in $(STAGES); do \
	  echo "== test-$$stage"; start=$$SECONDS; result=passed; \
	  $(MAKE) --no-print-directory test-$$stage || { result=FAILED; failed+=" $$stage"; }; \
	  summary+="$$(printf '  %-8s %-7s %4d s' $$stage $$result $$((SECONDS - start)))"$$'\n'; \
	done; \
	printf 'make test, %d s:\n%s' $$SECONDS "$$summary"; \
	[ -z "$$failed" ] || { echo "make test: FAILED:$$failed"; exit 1; }; echo "make test: all passed"

test-more: ## the stages that CI runs besides make test: tsan, cross and includes
	@$(MAKE) --no-print-directory test STAGES="tsan cross includes"

test-deps:
	@tools/install_deps.sh test

test-dev: ## unit, golden and lint tests under ASan + UBSan
	$(call configure,dev,$(test_options))
	@cmake --build --preset dev -j $(JOBS)
	@$(CTEST) --test-dir build/dev -LE 'blackbox|optimised|joint'

test-release: ## kernels and numerics in the release build; black-box tests of the binary
	$(call configure,release,$(test_options))
	@cmake --build --preset release -j $(JOBS) --target release_tests
	@$(CTEST) --test-dir build/release -L 'release|blackbox'

test-tsan: ## threaded code under ThreadSanitizer
	$(call configure,tsan)
	@cmake --build --preset tsan -j $(JOBS) --target tsan_tests
	@$(CTEST) --test-dir build/tsan -L tsan

test-cross: ## the other architecture's kernels, under qemu-user
	$(call configure,cross,-DTK_CROSS_CPU=$(OTHER_CPU))
	@cmake --build --preset cross -j $(JOBS) --target op_tests tensor_test
	@$(CTEST) --test-dir build/cross -R '^(tensor|op_tests_[1-5])$$'

test-includes: ## every source file includes what it uses; those of the product compile alone
	$(call configure,plain,-DTK_TESTS=ON)
	@JOBS=$(JOBS) python3 tools/check_includes.py --compile

test-cuda: ## every CUDA kernel compiles, and none spills registers; needs no GPU
	@tools/install_deps.sh cuda
	@ARCHS="$(or $(ARCHS),90a ptx)" tools/build_kernels.sh build/kernels

test-fuzz: ## a few seconds of libFuzzer for each parser
	$(call configure,fuzz)
	@cmake --build --preset fuzz -j $(JOBS) --target fuzzers
	@$(CTEST) --test-dir build/fuzz -L fuzz

lint: ## the checks of tools/check_*
	@status=0; for c in includes layers op_names size text; do python3 tools/check_$$c.py || status=1; done; \
	tools/check_format.sh || status=1; exit $$status

format: ## format all C++ files
	@tools/check_format.sh --fix

clean: ## remove build/ (models are kept in the cache folder)
	@rm -rf build
