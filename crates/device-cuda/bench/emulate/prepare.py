#!/usr/bin/env python3
"""Copy the kernels to where emulate.h can run them: what is an instruction by its name becomes C++.

    python3 prepare.py KERNELS TO
"""
import os
import re
import shutil
import sys

# Functions, and what they do.
COMMON = {
    "announce": "",
    "prefetch": "(void)p;",
    "f32_of_f16": "return half_value(bits);",
    "f16_of_f32": "return half_bits(x);",
}
PTX = {
    "shared_address": "return (u32)((const u8 *)p - emulated_shared);",
    "pack_half2": "return half_bits(low) | (u32)half_bits(high) << 16;",
    "to_half": "return half_bits(x);",
    "from_half": "return half_value(h);",
    "half2_mul": "return half_bits(low_half(a) * low_half(b)) | (u32)half_bits(high_half(a) * high_half(b)) << 16;",
    "exp2_fast": "return exp2f(x);",
    "reciprocal_fast": "return 1.0f / x;",
    "copy_16": "async_copy(to, from, inside);",
    "copy_commit": "async_commit();",
    "copy_wait": "async_wait(N);",
    "load_matrices": "load_8x8s(v, address, false);",
    "load_matrices_transposed": "load_8x8s(v, address, true);",
    "mma_16x8x16": "multiply_16x8(d, a, b0, b1);",
}
WGMMA = """#pragma once
#include "gemm/ptx.h"
template <int N> struct Wgmma {
    template <int TRANSPOSED = 0> static void multiply(float (&d)[N / 2], const u32 (&a)[4], u64 b, int accumulate) {
        multiply_64xn_registers(d, N, a, b, accumulate, TRANSPOSED);
    }
    static void multiply_shared(float (&d)[N / 2], u64 a, u64 b, int accumulate) { multiply_64xn_shared(d, N, a, b, accumulate); }
};
INLINE void wgmma_fence() {}
INLINE void wgmma_commit() {}
template <int N> INLINE void wgmma_wait() {}
template <int N> INLINE void wgmma_settle(float (&)[N]) {}
"""


def body_of(text, name):
    """Where a function's body begins and ends, braces included."""
    found = re.search(r"\b%s\([^;{]*\)\s*\{" % name, text)
    if not found:
        sys.exit(f"no function {name}")
    begin = end = found.end() - 1
    depth = 0
    while True:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
        if depth == 0:
            return begin, end


def replace(path, functions):
    with open(path) as file:
        text = file.read()
    for name, becomes in functions.items():
        begin, end = body_of(text, name)
        text = text[:begin] + "{ " + becomes + " }" + text[end:]
    # What the kernels that are run do not call.
    text = re.sub(r"asm( volatile)?\([^\n]*\);", ";", text)
    text = re.sub(r"asm( volatile)?\((.|\n)*?\);\n", ";\n", text)
    with open(path, "w") as file:
        file.write(text)


def main(kernels, to):
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(kernels, to)
    for folder, _, names in os.walk(to):
        for name in names:
            path = os.path.join(folder, name)
            with open(path) as file:
                text = file.read()
            text = re.sub(r"extern __shared__ (__align__\(\d+\) )?(\w+) (\w+)\[\];", r"\2 *\3 = (\2 *)emulated_shared;", text)
            text = text.replace("__shared__", "static").replace("#pragma unroll", "//")
            # <sys/types.h> has these.
            text = re.sub(r"typedef unsigned (short|int|long long) (ushort|uint|ulong);\n", "", text)
            # A word of C++20.
            text = re.sub(r"\bawait\(", "await_others(", text)
            with open(path, "w") as file:
                file.write(text)
    replace(os.path.join(to, "common.cuh"), COMMON | {"await_others": ""})
    replace(os.path.join(to, "gemm/ptx.h"), PTX)
    path = os.path.join(to, "gemm/wgmma.h")
    with open(path) as file:
        text = file.read()
    operands = text[text.index("INLINE u64 wgmma_operand") : text.index("// What threads wrote")]
    with open(path, "w") as file:
        file.write(WGMMA + operands + "INLINE void wgmma_written() {}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
