#!/usr/bin/env bash
# Installs all external dependencies of Tokamak.
#   tools/install_deps.sh build   for a release build and `make serve`
#   tools/install_deps.sh test    the same, plus what `make test` needs
#   tools/install_deps.sh cuda    nvcc from Python packages, unless there is one (tools/build_kernels.sh says where it looks)
# Does nothing, and needs no network, if everything is installed. Uses sudo if not root.
set -euo pipefail

what="${1:-build}"
case "$what" in
  build|test|cuda) ;;
  *) echo "usage: tools/install_deps.sh build|test|cuda" >&2; exit 2 ;;
esac

here="$(cd "$(dirname "$0")" && pwd)"
cache="${TOKAMAK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tokamak}"
[ "$what" = cuda ] && "$here/build_kernels.sh" --nvcc >/dev/null 2>&1 && exit 0

optional=()  # tests that need one of these are skipped if it cannot be installed
packages=(
  g++ cmake make ninja-build ccache mold pkg-config git
  nlohmann-json3-dev libboost-dev libcli11-dev libfmt-dev libpcre2-dev libssl-dev libutf8proc-dev libxxhash-dev
  libjs-katex fonts-katex libjs-highlight.js  # embedded in the chat page
  python3 python3-venv ca-certificates        # tools/get_model.py
  curl unzip                                  # tokamak pull
)
if [ "$what" = test ]; then
  packages+=(libgtest-dev libgmock-dev googletest)
  packages+=(clang libclang-rt-14-dev clang-format)  # fuzzers; the format check
  packages+=(qemu-user-static)                       # runs the other architecture's op tests
  optional+=(chromium)                               # tests of the chat page, with playwright (requirements-test.txt)
  case "$(uname -m)" in
    aarch64) packages+=(g++-x86-64-linux-gnu) ;;
    x86_64) packages+=(g++-aarch64-linux-gnu) ;;
  esac
fi

if ! command -v dpkg-query >/dev/null; then
  echo "install_deps: this is not Debian; please install the equivalents of: ${packages[*]}" >&2
  exit 1
fi
is_missing() {
  case "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null || true)" in
    installed*) return 1 ;;
  esac
}
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" >&2 </dev/null
}
missing=() wanted_too=()
for p in "${packages[@]}"; do if is_missing "$p"; then missing+=("$p"); fi; done
for p in "${optional[@]}"; do if is_missing "$p"; then wanted_too+=("$p"); fi; done

if [ $((${#missing[@]} + ${#wanted_too[@]})) -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null; then
      as_root=(sudo)
    elif [ ${#missing[@]} -gt 0 ]; then
      echo "install_deps: not root, and sudo is not available" >&2
      exit 1
    fi
  fi
fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "install_deps: installing ${#missing[@]} Debian packages: ${missing[*]}" >&2
  "${as_root[@]}" apt-get update -q >&2
  install "${missing[@]}"
fi
for p in "${wanted_too[@]}"; do
  echo "install_deps: installing $p" >&2
  install "$p" || { "${as_root[@]}" apt-get update -q >&2 && install "$p"; } ||
    echo "install_deps: $p cannot be installed; the tests that need it will be skipped" >&2
done

# The CUDA compiler: about 260 MB in the cache folder.
if [ "$what" = cuda ]; then
  echo "install_deps: installing nvcc into $cache/cuda" >&2
  mkdir -p "$cache"
  /usr/bin/python3 -m venv "$cache/cuda-venv"
  "$cache/cuda-venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --target "$cache/cuda" \
    -r "$here/requirements-cuda.txt" >&2 </dev/null
  rm -rf "$cache/cuda-venv"
fi

# Python test packages live in a virtual environment in the cache folder: Debian's own Python is not modified.
if [ "$what" = test ]; then
  wanted="$(sha256sum <"$here/requirements-test.txt" | cut -d' ' -f1)"
  stamp="$cache/venv/.tokamak-requirements"
  if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
    echo "install_deps: installing Python test packages into $cache/venv" >&2
    mkdir -p "$cache"
    [ -x "$cache/venv/bin/pip" ] || /usr/bin/python3 -m venv "$cache/venv"
    "$cache/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: \
      -r "$here/requirements-test.txt" >&2 </dev/null
    echo "$wanted" >"$stamp"
  fi
fi
