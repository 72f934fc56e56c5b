#!/usr/bin/env bash
# Fails if a C++ file is not formatted according to .clang-format; `make format` (or --fix) repairs it.
# The version is Debian 12's: other versions format some lines differently.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=clang-format-14
command -v "$tool" >/dev/null || { echo "check_format: $tool is missing; run tools/install_deps.sh test" >&2; exit 1; }
mapfile -d '' files < <(find src apps tests include bench -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 2>/dev/null | sort -z)
[ ${#files[@]} -gt 0 ] || { echo "check_format: found no files" >&2; exit 1; }

if [ "${1:-}" = --fix ]; then
  printf '%s\0' "${files[@]}" | xargs -0 -n 20 -P "$(nproc)" "$tool" -i
  echo "check_format: formatted ${#files[@]} files"
  exit
fi
wrong="$(printf '%s\0' "${files[@]}" | xargs -0 -n 40 -P "$(nproc)" "$tool" --dry-run -Werror 2>&1 >/dev/null |
  sed -nE 's/^([^: ]+):[0-9]+:[0-9]+: error: .*/\1/p' | sort -u)" || true
[ -z "$wrong" ] || echo "$wrong" | sed 's/$/: not formatted; run make format/'
echo "check_format: ${#files[@]} files, $(printf '%s' "$wrong" | grep -c . || true) to repair"
[ -z "$wrong" ]
