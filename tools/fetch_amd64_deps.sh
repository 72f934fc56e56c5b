#!/usr/bin/env bash
# Downloads the Debian amd64 packages that Tokamak links against into .deps/amd64/ (ignored by git, about 14 MB), for x86-64
# machines where nothing can be installed; tools/gpu_check.sh unpacks them there. Does not touch this machine's package
# lists. Needs Debian 12, no root.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  libfmt-dev libfmt9 nlohmann-json3-dev libcli11-dev libboost1.74-dev
  libpcre2-dev libpcre2-8-0 libssl-dev libssl3 libutf8proc-dev libutf8proc2 libxxhash-dev libxxhash0
  libgtest-dev libgmock-dev googletest
)
out="$PWD/.deps/amd64"
work="$PWD/.deps/apt"
mkdir -p "$out" "$work/lists/partial" "$work/cache/archives/partial"
: >"$work/status"
options=(
  -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root
  -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache"
)
apt-get "${options[@]}" -q update
(cd "$out" && rm -f ./*.deb && apt-get "${options[@]}" -q download "${packages[@]}")
rm -rf "$work"
echo "fetch_amd64_deps: $(ls "$out"/*.deb | wc -l) packages, $(du -sm "$out" | cut -f1) MB in .deps/amd64"
