#!/bin/bash
# Makes libcuda and libnvrtc of an emulated GPU in a folder. Programs that find them there
# (LD_LIBRARY_PATH) run the CUDA device on the CPU. The machine's C++ compiler compiles its kernels
# when they are needed. Needs python3 and the compiler that compiler.sh finds. Usage: build.sh
# FOLDER
set -e
mkdir -p "$1"
to=$(cd "$1" && pwd)
cd "$(dirname "$0")"
. ./compiler.sh
flags+=" -fPIC -shared"
version=$({ echo "$PWD $to $compiler $flags"; cat ./*.sh ./*.cc ./*.h ./*.py; } | sha256sum | cut -c1-6)
if [ "$(cat "$to/version" 2>/dev/null)" = "$version" ]; then exit; fi
# Running programs may use the old library, so the new one replaces it by a rename.
make() {
  $compiler $flags -O2 -Wall -Wextra -Wl,-soname,"$1" -o "$to/$1.$$" "${@:2}"
  mv "$to/$1.$$" "$to/$1"
}
make libcuda.so.1 engine.cc driver.cc -ldl
# The version is in the names of compiled kernels in a cache.
make libnvrtc.so.13 compiler.cc -DEMULATOR="\"$PWD\"" -DBUILT="\"$to\"" -DCOMPILE="\"$compiler $flags\"" -DVERSION=$((16#$version))
echo "$version" >"$to/version"
