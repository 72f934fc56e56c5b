#!/usr/bin/env bash
# Compiles CUDA kernels to fat binaries and fails when one spills registers. Needs nvcc, no GPU.
#   tools/build_kernels.sh [folder [source ...]]   default: build/kernels, all kernels
#   tools/build_kernels.sh --check folder          only looks through the compiler's logs of an earlier call
#   tools/build_kernels.sh --nvcc                  prints the compiler that would be used
# nvcc is $NVCC, the one of the PATH, that of /usr/local/cuda, or what `tools/install_deps.sh cuda` has installed.
# ARCHS="90a" compiles for fewer GPUs than the default "80 90a ptx" (ptx: for GPUs that are newer than both).
set -euo pipefail
cd "$(dirname "$0")/.."
all=(src/backend/cuda/*.cu src/backend/cuda/ops/*.cu tests/cuda/*.cu)

find_nvcc() {
  local cache="${TOKAMAK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tokamak}" candidate
  for candidate in "${NVCC:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc "$cache/cuda/nvidia/cu13/bin/nvcc"; do
    [ -n "$candidate" ] && [ -x "$candidate" ] && { echo "$candidate"; return; }
  done
  echo "build_kernels: no nvcc; set NVCC or run tools/install_deps.sh cuda" >&2
  return 1
}

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

compile() {  # source
  local name archs arch options=()
  name="$(basename "$1" .cu)"
  archs="${ARCHS:-80 90a ptx}"
  grep -q '^// Hopper only' "$1" && archs="90a"
  for arch in $archs; do
    case "$arch" in
      ptx) options+=(-gencode=arch=compute_80,code=compute_80) ;;
      *) options+=("-gencode=arch=compute_$arch,code=sm_$arch") ;;
    esac
  done
  if ! "$nvcc" -O3 -std=c++20 "${options[@]}" -Isrc -Itests/cuda -fatbin -Xptxas -v "$1" -o "$out/$name.fatbin" \
      >"$out/$name.log" 2>&1; then
    cat "$out/$name.log"
    return 1
  fi
  check "$name" "$out/$name.log"
}

case "${1:-}" in
  --nvcc)
    find_nvcc
    exit
    ;;
  --check)
    status=0
    for source in "${all[@]}"; do
      name="$(basename "$source" .cu)"
      [ -f "$2/$name.log" ] || { echo "$name: was not compiled to $2"; status=1; continue; }
      check "$name" "$2/$name.log" || status=1
    done
    exit $status
    ;;
esac

out="${1:-build/kernels}"
[ $# -gt 1 ] && shift || set -- "${all[@]}"
nvcc="$(find_nvcc)"
mkdir -p "$out"
export nvcc out ARCHS="${ARCHS:-}"
export -f compile check
# The largest first: they take longest.
ls -S "$@" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'set -euo pipefail; compile "$1"' _ {}
