#!/bin/bash
# Runs the kernels of prompts on the CPU, both those for Hopper and those for other GPUs, and
# compares them with a plain evaluation. Needs python3 and the compiler that compiler.sh finds.
# Usage: check.sh [SEEDS]
set -e
cd "$(dirname "$0")"
to=$(mktemp -d)
trap 'rm -rf "$to"' EXIT
cp -r ../src/kernels "$to/kernels"
cp ../../device-gpu/src/kernels/*.h "$to/kernels/"
python3 prepare.py "$to/kernels"
. ./compiler.sh
flags+=" -O2 -w -I . -I $to/kernels"
$compiler $flags -DHOPPER -o "$to/hopper" check.cc engine.cc
$compiler $flags -o "$to/others" check.cc engine.cc
for seed in ${*:-1 2 3}; do
  for of in hopper others; do
    echo -n "$of, "
    "$to/$of" "$seed"
  done
done
