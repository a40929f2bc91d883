#!/bin/bash
# Executes kernels of prompts on the CPU, as they are for Hopper and for other chips, and compares them with a plain evaluation. Needs a
# C++ compiler with _Float16: CXX, c++, or the newest clang++ there is. Usage: run.sh [SEEDS]
set -e
cd "$(dirname "$0")"
to=$(mktemp -d)
trap 'rm -rf "$to"' EXIT
cp -r ../src/kernels "$to/kernels"
python3 prepare.py "$to/kernels"
# Sums must not depend on what the compiler fuses.
flags="-std=c++17 -O2 -w -ffp-contract=off -I . -I $to/kernels"
if [ "$(uname -m)" = x86_64 ]; then flags+=" -march=x86-64-v3"; fi
compiler=${CXX:-$(command -v c++ || compgen -c clang++- | sort -V | tail -1)}
$compiler $flags -DHOPPER -o "$to/hopper" check.cc engine.cc
$compiler $flags -o "$to/others" check.cc engine.cc
for seed in ${*:-1 2 3}; do
  for of in hopper others; do
    echo -n "$of, "
    "$to/$of" "$seed"
  done
done
