#!/usr/bin/env bash
# Compiles CUDA kernels to cubins and fails when one spills registers. Needs nvcc, no GPU.
#   tools/build_kernels.sh [folder [source ...]]   default: build/cubin, all kernels
#   tools/build_kernels.sh --check folder          only looks through the compiler's logs of an earlier call
set -euo pipefail
cd "$(dirname "$0")/.."

# "Function properties for f" is followed by its stack frame and spills, then its registers.
check() {  # name, log
  if grep -qE '[1-9][0-9]* bytes spill' "$2"; then
    echo "$1: registers are spilled"
    grep -B1 -E '[1-9][0-9]* bytes spill' "$2"
    return 1
  fi
  echo "$1: $(grep -c 'Used [0-9]* registers' "$2") kernels, at most $(grep -o 'Used [0-9]* registers' "$2" |
    grep -o '[0-9]*' | sort -n | tail -n 1) registers"
}

if [ "${1:-}" = --check ]; then
  status=0 found=0
  for source in src/backend/cuda/*.cu src/backend/cuda/ops/*.cu tests/cuda/*.cu; do
    name="$(basename "$source" .cu)"
    [ -f "$2/$name.log" ] || { echo "$name: was not compiled to $2"; status=1; continue; }
    found=$((found + 1))
    check "$name" "$2/$name.log" || status=1
  done
  [ $found -gt 0 ] || status=1
  exit $status
fi

out="${1:-build/cubin}"
[ $# -gt 1 ] && shift || set -- src/backend/cuda/*.cu src/backend/cuda/ops/*.cu tests/cuda/*.cu
nvcc="${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}"
[ -x "$nvcc" ] || { echo "build_kernels: no nvcc; set NVCC" >&2; exit 1; }
mkdir -p "$out"
status=0
for source in "$@"; do
  name="$(basename "$source" .cu)"
  if ! "$nvcc" -O3 -std=c++20 -gencode=arch=compute_90a,code=sm_90a -Isrc -Itests/cuda -cubin -Xptxas -v \
      "$source" -o "$out/$name.cubin" >"$out/$name.log" 2>&1; then
    cat "$out/$name.log"
    status=1
    continue
  fi
  check "$name" "$out/$name.log" || status=1
done
exit $status
