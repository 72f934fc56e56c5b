#!/usr/bin/env bash
# Compiles every CUDA kernel to build/cubin and fails when one spills registers. Needs nvcc, no GPU.
#   tools/build_kernels.sh [folder]      default: build/cubin
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-build/cubin}"
nvcc="${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}"
[ -x "$nvcc" ] || { echo "build_kernels: no nvcc; set NVCC" >&2; exit 1; }
mkdir -p "$out"
status=0
for source in src/backend/cuda/*.cu tests/cuda/*.cu; do
  name="$(basename "$source" .cu)"
  log="$out/$name.log"
  if ! "$nvcc" -O3 -std=c++20 -gencode=arch=compute_90a,code=sm_90a -Isrc -Itests/cuda -cubin -Xptxas -v \
      "$source" -o "$out/$name.cubin" >"$log" 2>&1; then
    cat "$log"
    status=1
    continue
  fi
  # "Function properties for f" is followed by its stack frame and spills, then its registers.
  spills="$(grep -E '[1-9][0-9]* bytes spill' "$log" || true)"
  if [ -n "$spills" ]; then
    echo "$source: registers are spilled"
    grep -B1 -E '[1-9][0-9]* bytes spill' "$log"
    status=1
  fi
  echo "$name: $(grep -c 'Used [0-9]* registers' "$log") kernels, at most $(grep -o 'Used [0-9]* registers' "$log" |
    grep -o '[0-9]*' | sort -n | tail -n 1) registers"
done
exit $status
