#!/bin/bash
# Makes libcuda and libnvrtc of an emulated GPU in a folder. Programs that find them there (LD_LIBRARY_PATH) run the CUDA device on the CPU, its kernels
# compiled by the machine's C++ compiler when they are needed. Needs python3 and a compiler with _Float16: CXX, c++, or the newest clang++ there is.
# Usage: build.sh FOLDER
set -e
mkdir -p "$1"
to=$(cd "$1" && pwd)
cd "$(dirname "$0")"
compiler=${CXX:-$(command -v c++ || compgen -c clang++- | sort -V | tail -1)}
if [ -z "$compiler" ]; then
  echo "no C++ compiler was found: install g++ or clang" >&2
  exit 1
fi
# With instructions for halves; and sums must not depend on what the compiler fuses.
flags="-std=c++17 -fPIC -shared -ffp-contract=off"
if [ "$(uname -m)" = x86_64 ]; then flags+=" -march=x86-64-v3"; fi
version=$({ echo "$PWD $to $compiler $flags"; cat build.sh ./*.cc ./*.h ./*.py; } | sha256sum | cut -c1-6)
if [ "$(cat "$to/version" 2>/dev/null)" = "$version" ]; then exit; fi
# Other programs may be using what is there.
make() {
  $compiler $flags -O2 -Wall -Wextra -Wl,-soname,"$1" -o "$to/$1.$$" "${@:2}"
  mv "$to/$1.$$" "$to/$1"
}
make libcuda.so.1 engine.cc driver.cc -ldl
# The version is in the names of compiled kernels in a cache.
make libnvrtc.so.13 compiler.cc -DEMULATOR="\"$PWD\"" -DBUILT="\"$to\"" -DCOMPILE="\"$compiler $flags\"" -DVERSION=$((16#$version))
echo "$version" >"$to/version"
