#!/usr/bin/env bash
# Makes the environments of the peers that benches/compare.py measures, with pip alone: one virtual environment an engine
# and build, under RSLLM_PEERS or .cache/peers. An environment that works is left as it is; name some to make only those:
#
#   benches/build_peers.sh                     all of them (about 15 minutes on two cores)
#   benches/build_peers.sh llama-avx2 mistralrs
#
# llama.cpp is compiled three times. gcc 12 miscompiles its AMX code (a fault in the compiler's header drops the stores
# before `ldtilecfg`, and the engine dies), so the native builds need clang 19: CC and CXX, or clang-19 on the path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

llama_version=0.3.36
xllamacpp_version=2026.10.11549
mistralrs_version=0.9.5
peers=${RSLLM_PEERS:-.cache/peers}
mkdir -p "$peers"

say() { printf '\n== %s\n' "$*"; }

# environment NAME MODULE: a fresh virtual environment, unless the module already loads from it (then: false).
environment() {
  if "$peers/$1/bin/python" -c "import $2" 2>/dev/null; then
    say "$1 is there"
    return 1
  fi
  say "$1"
  rm -rf "${peers:?}/$1"
  python3 -m venv "$peers/$1"
}

# The wheel is kept beside the environment; its name does not tell the builds apart, so each has a folder.
llama() {
  local name=$1
  shift
  environment "$name" llama_cpp || return 0
  env "$@" "$peers/$name/bin/python" -m pip install --quiet --no-cache-dir --no-binary llama-cpp-python \
    "llama-cpp-python==$llama_version"
}

clang() {
  if [ -z "${CC:-}" ] && ! command -v clang-19 >/dev/null; then
    echo "$1 needs clang 19: install clang-19, or set CC and CXX" >&2
    return 1
  fi
}

wheel() {
  environment "$1" "$2" || return 0
  "$peers/$1/bin/python" -m pip install --quiet --only-binary "$2" "$2==$3"
}

build() {
  case $1 in
    llama-native) clang "$1" && llama "$1" CC="${CC:-clang-19}" CXX="${CXX:-clang++-19}" CMAKE_ARGS="-DGGML_NATIVE=ON" ;;
    llama-no-amx) clang "$1" && llama "$1" CC="${CC:-clang-19}" CXX="${CXX:-clang++-19}" \
      CFLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" CXXFLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" \
      CMAKE_ARGS="-DGGML_NATIVE=ON" ;;
    llama-avx2) llama "$1" CMAKE_ARGS="-DGGML_NATIVE=OFF" ;;
    xllamacpp) wheel "$1" xllamacpp "$xllamacpp_version" ;;
    mistralrs) wheel "$1" mistralrs "$mistralrs_version" ;;
    *) echo "no such peer: $1" >&2; return 2 ;;
  esac
}

if [ $# -eq 0 ]; then
  set -- llama-avx2 xllamacpp mistralrs llama-native llama-no-amx
fi
failed=()
for name in "$@"; do
  build "$name" || failed+=("$name")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "not made: ${failed[*]}" >&2
  exit 1
fi
