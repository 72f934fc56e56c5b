#!/usr/bin/env bash
# Builds, tests and measures on an x86-64 machine where nothing can be installed: one call, one log.
#   tools/gpu_check.sh [kernels|all]     default: kernels (the lanes up to backend/ and the op tests)
#   tools/gpu_check.sh backend           tests of the cuda backend on the device, and the speed of its ops
#   tools/gpu_check.sh build             only builds what `backend` runs
#   tools/gpu_check.sh cuda [part ...]   tests and measures the CUDA kernels (tests/cuda/decode_bench.cc; part sanitize: compute-sanitizer)
# The first three forms need g++ (C++20), cmake, ninja there, and .deps/amd64 from tools/fetch_amd64_deps.sh beside the sources; `backend`
# also build/kernels from tools/build_kernels.sh, and python3 there with numpy, safetensors and gguf to write the tests' models;
# packages are looked for in build/python too (pip install --target build/python --no-deps gguf). `cuda` needs g++ alone, fmt's headers (CPATH), and the kernels in build/kernels from tools/build_kernels.sh.
# Everything is done in build/gpu-check; what earlier calls built there is used again.
set -uo pipefail
cd "$(dirname "$0")/.."
what="${1:-kernels}"
top="$PWD"
build="$top/build/gpu-check"
root="$build/deps"

fail() { echo "gpu_check: FAILED: $*"; exit 1; }
step() { echo "== $* ($SECONDS s)"; }

step machine
uname -m; nproc; g++ --version | head -n 1; cmake --version | head -n 1
grep -m1 'model name' /proc/cpuinfo
grep -m1 '^flags' /proc/cpuinfo | tr ' ' '\n' | grep -E '^(avx2|fma|f16c|avx512(f|bw|_vnni|_bf16|_fp16)|amx_(int8|bf16|tile)|avx_vnni)$' | xargs
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no GPU"

if [ "$what" = cuda ]; then
  shift
  mkdir -p "$build/cuda"
  step build
  sources="$(ls tests/cuda/*.cc) src/backend/cuda/cache_map.cc src/backend/cuda/decode_pack.cc src/backend/cuda/decode_stream.cc src/backend/cuda/driver.cc src/backend/cuda/few_rows_launch.cc
    src/backend/cuda/paged_attention.cc src/backend/cuda/prefill_launch.cc src/backend/common/sampler.cc
    src/backend/common/sample_table.cc $(ls src/backend/common/token_chooser*.cc) src/backend/common/logits_math.cc src/backend/common/mirostat.cc src/backend/common/rejection.cc
    src/ops/sampling_rows.cc src/tensor/dtype.cc src/tensor/group_formats.cc $(ls src/tensor/block_formats*.cc | grep -v _test) src/base/rng.cc src/base/error.cc src/plan/step.cc"
  for source in $sources; do echo "$source"; done | xargs -P "$(nproc)" -I{} bash -c \
    'g++ -std=c++20 -O2 -w -ffp-contract=off -DFMT_HEADER_ONLY -Iinclude -Isrc -Itests/cuda -c "$1" -o "$2/$(echo "$1" | tr / _).o"' _ {} "$build/cuda" \
    || fail "compile"
  g++ "$build"/cuda/*.o -o "$build/decode_bench" -ldl -lpthread || fail "link"
  [ $# -gt 0 ] || set -- decode decode-large attention prefill sample products decode-time attention-time prefill-time sample-time products-time fused-time
  status=0
  for part in "$@"; do
    step "$part"
    if [ "$part" = sanitize ]; then
      for tool in memcheck initcheck synccheck racecheck; do
        timeout 100 compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/decode_bench" build/kernels products-tiny | tail -n 1 ||
          { echo "$tool: failed"; status=1; }
      done
      continue
    fi
    timeout 100 "$build/decode_bench" build/kernels "$part" || { echo "$part: status $?"; status=1; }
  done
  step "done, status $status"
  exit $status
fi

step unpack
if [ ! -e "$root/.done" ]; then
  ls .deps/amd64/*.deb >/dev/null 2>&1 || fail "no .deps/amd64; run tools/fetch_amd64_deps.sh first"
  mkdir -p "$root"
  for deb in .deps/amd64/*.deb; do
    if command -v dpkg-deb >/dev/null; then
      dpkg-deb -x "$deb" "$root" || fail "cannot unpack $deb"
    else
      ar p "$deb" data.tar.xz | tar -xJ -C "$root" || fail "cannot unpack $deb"
    fi
  done
  touch "$root/.done"
fi
libs="$root/usr/lib/x86_64-linux-gnu"
export LD_LIBRARY_PATH="$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export CPATH="$root/usr/include${CPATH:+:$CPATH}" LIBRARY_PATH="$libs${LIBRARY_PATH:+:$LIBRARY_PATH}"
export PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_LIBDIR="$libs/pkgconfig:$root/usr/share/pkgconfig"

step configure
kernels_only=ON
[ "$what" != kernels ] && kernels_only=OFF
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=12 -DTK_KERNELS_ONLY=$kernels_only \
  -DTK_PYTHON="$([ "$what" = backend ] && command -v python3)" \
  -DCMAKE_PREFIX_PATH="$root/usr;$libs" -DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu \
  -DBOOST_ROOT="$root/usr" >"$build/configure.log" 2>&1 || { tail -n 40 "$build/configure.log"; fail configure; }

step build
targets=()
case "$what" in
  backend | build) targets=(--target op_tests cuda_models_test cuda_engine_test cuda_search_test cuda_stream_test family_table tokamak) ;;
esac
cmake --build "$build" "${targets[@]}" >"$build/build.log" 2>&1 || { grep -E -A8 'FAILED|error' "$build/build.log" | head -n 60; fail build; }
tail -n 1 "$build/build.log"
[ "$what" != build ] || exit 0

status=0
if [ "$what" = backend ]; then
  step "tests' models"
  PYTHONPATH="$top/build/python" ctest --test-dir "$build" -R '^(tiny_models|tiny_families|cuda_model_.*)$' --output-on-failure >"$build/models.log" 2>&1 || { tail -n 20 "$build/models.log"; fail "tests' models"; }
  export TOKAMAK_TEST_GPU=1 TOKAMAK_SOURCE_DIR="$top" TOKAMAK_CUDA_KERNELS="$top/build/kernels" TOKAMAK_TINY_MODELS="$build/tiny_models" TOKAMAK_TINY_FAMILIES="$build/tiny_families" \
    TOKAMAK_STREAM_MODELS="$build/stream_models"
  step devices
  "$build/tokamak" inspect --devices || status=1
  step ops
  parts="$(nproc)"  # references are computed on the CPU
  for i in $(seq "$parts"); do
    { timeout 200 "$build/tests/ops/op_tests" --backend cuda --part "$i/$parts" || echo "part $i: status $?"; } >"$build/ops.$i.log" 2>&1 &
  done
  wait
  for i in $(seq "$parts"); do cat "$build/ops.$i.log"; rm "$build/ops.$i.log"; done >"$build/ops.log"
  cat "$build/ops.log"
  ! grep -qE 'FAILED|: status' "$build/ops.log" || status=1
  awk '/ cases, / { ran += $3; failed += $5; none += $7 } END { print "all parts: " ran " cases, " failed " failed, " none " without a kernel" }' "$build/ops.log"
  for name in models stream engine search; do
    step "$name"
    timeout 200 "$build/tests/cuda_backend/cuda_${name}_test" --gtest_brief=1 || status=1
  done
  step families
  timeout 300 "$build/tests/cuda_backend/family_table" || status=1
  step speed
  timeout 200 "$build/tests/ops/op_tests" --backend cuda --perf || status=1
  step "done, status $status"
  exit $status
fi

step test
ctest --test-dir "$build" -j "$(nproc)" --output-on-failure -LE lint 2>&1 | tail -n 40 || status=1

step bench
ops="$(find "$build" -name op_tests -type f | head -n 1)"
if [ -n "$ops" ]; then "$ops" --perf 2>&1 | tail -n 80 || status=1; else echo "no op_tests in this tree"; fi

step "done, status $status"
exit $status
