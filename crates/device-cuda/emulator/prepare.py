#!/usr/bin/env python3
"""Rewrite the kernels in a folder, in place, to C++ for device.h: each PTX instruction becomes a call of a
function with its name.

    python3 prepare.py FOLDER
"""
import os
import re
import sys

# Replaces gemm/wgmma.h up to its descriptors of operands.
WGMMA = """#pragma once
#include "gemm/ptx.h"
template <int N> struct Wgmma {
    template <int TRANSPOSED = 0> static void multiply(float (&d)[N / 2], const u32 (&a)[4], u64 b, int accumulate) {
        emulated_wgmma(d, N, a, b, accumulate, TRANSPOSED);
    }
    static void multiply_shared(float (&d)[N / 2], u64 a, u64 b, int accumulate) { emulated_wgmma_shared(d, N, a, b, accumulate); }
};
INLINE void wgmma_fence() {}
INLINE void wgmma_commit() {}
template <int N> INLINE void wgmma_wait() {}
template <int N> INLINE void wgmma_settle(float (&)[N]) {}
"""


def split(text, separator):
    """The parts of a text between separators that are neither in a string nor in parentheses."""
    parts, depth, quoted = [""], 0, False
    i = 0
    while i < len(text):
        c = text[i]
        if c == "\\":
            parts[-1] += text[i : i + 2]
            i += 2
            continue
        if c == '"':
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
            if depth == 0 and c == separator:
                parts.append("")
                i += 1
                continue
        parts[-1] += c
        i += 1
    return parts


def call(inside):
    """The call of a function that replaces an asm statement. `inside` is the text in its parentheses."""
    template, *lists = split(inside, ":")
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', template))
    operation = re.search(r"\b[a-z][a-z0-9]*\.[\w.:]+", text)
    if not operation:
        return ""  # an asm without an instruction is only a barrier for the compiler
    name = re.sub(r"[^a-z0-9]", "_", operation[0].lower().rstrip(";."))
    name += "".join("_" + more.lower() for more in re.findall(r"%%(\w+)|(0x[0-9A-Fa-f]+);", text) for more in more if more)
    operands = []
    for constraints in lists[:2]: # outputs, inputs
        for operand in split(constraints, ","):
            if not operand.strip():
                continue
            expression = re.match(r'\s*"[^"]*"\s*\((.*)\)\s*$', operand, re.S)
            if not expression:
                sys.exit(f"an operand of {name}: {operand}")
            operands.append(expression[1])
    return f"ptx_{name}({', '.join(operands)})"


def without_asm(text):
    out, end = "", 0
    for found in re.finditer(r"\basm(\s+volatile)?\s*\(", text):
        depth, at, quoted = 1, found.end(), False
        while depth > 0:
            c = text[at]
            if c == "\\":
                at += 1
            elif c == '"':
                quoted = not quoted
            elif not quoted:
                depth += {"(": 1, ")": -1}.get(c, 0)
            at += 1
        out += text[end : found.start()] + call(text[found.end() : at - 1])
        end = at
    return out + text[end:]


def prepared(name, text):
    if name == "gemm/wgmma.h":
        text = WGMMA + text[text.index("// K-major operand") :]
    text = without_asm(text)
    text = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];", r"\1 *\2 = (\1 *)emulated_shared;", text)
    text = re.sub(r"__shared__ (alignas\(\d+\))", r"\1 __shared__", text)
    text = text.replace("__shared__", "static").replace("#pragma unroll", "//")
    # The engine gives the address of the arguments.
    text = re.sub(r"const __grid_constant__ (\w+) (\w+)", r"const \1 &\2", text)
    # A loop that waits for what another thread writes lets that thread go on.
    text = re.sub(r"(while \([^\n]*volatile[^\n]*\)) \{\}", r"\1 emulated_poll();", text)
    # Names of headers are paths from the folder, wherever they are included.
    text = re.sub(r'#include "([^"]+)"', r"#include <\1>", text)
    # <sys/types.h> has these.
    text = re.sub(r"typedef unsigned (short|int|long long) (ushort|uint|ulong);\n", "", text)
    # A word of C++20.
    return re.sub(r"\bawait\(", "await_others(", text)


def main(folder):
    for parent, _, names in os.walk(folder):
        for name in names:
            if not name.endswith((".cu", ".cuh", ".h")):
                continue
            path = os.path.join(parent, name)
            with open(path) as file:
                text = file.read()
            with open(path, "w") as file:
                file.write(prepared(os.path.relpath(path, folder), text))


if __name__ == "__main__":
    main(*sys.argv[1:])
