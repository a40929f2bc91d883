# Sets $compiler, a C++ compiler with _Float16 (CXX, c++, or the newest clang++ there is), and its
# $flags. Others source it.
compiler=${CXX:-$(command -v c++ || compgen -c clang++- | sort -V | tail -1)}
if [ -z "$compiler" ]; then
  echo "no C++ compiler was found: install g++ or clang" >&2
  exit 1
fi
# Sums must not depend on what the compiler fuses.
flags="-std=c++17 -ffp-contract=off"
# With instructions for halves.
if [ "$(uname -m)" = x86_64 ]; then flags+=" -march=x86-64-v3"; fi
