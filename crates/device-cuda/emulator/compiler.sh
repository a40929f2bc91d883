# Sets $compiler, a C++ compiler with _Float16 (CXX, c++, or the newest installed clang++), and its
# $flags. Other scripts source this file.
compiler=${CXX:-$(command -v c++ || compgen -c clang++- | sort -V | tail -1)}
if [ -z "$compiler" ]; then
  echo "no C++ compiler was found: install g++ or clang" >&2
  exit 1
fi
# Sums must be the same with every compiler, so none may fuse operations.
flags="-std=c++17 -ffp-contract=off"
# x86-64-v3 has instructions for halves.
if [ "$(uname -m)" = x86_64 ]; then flags+=" -march=x86-64-v3"; fi
