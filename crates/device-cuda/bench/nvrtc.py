#!/usr/bin/env python3
"""Compile a kernel file as the device does: with NVRTC, without headers of the toolkit.

    python3 nvrtc.py KERNELS linear/q4_0.cu OUT.cubin    a file under KERNELS
    python3 nvrtc.py KERNELS - OUT.cubin < TEXT          a text from standard input

NVRTC is the library's path, if it is not found by its name; ARCH is the architecture (sm_90a).
"""
import ctypes
import os
import sys


# Headers that the kernels of all GPUs share.
SHARED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../device-gpu/src/kernels")


def headers(root):
    """The headers under a folder, and the shared ones: their paths from it, and their texts."""
    for base in (root, SHARED):
        for folder, _, files in os.walk(base):
            for name in files:
                if name.endswith((".h", ".cuh")):
                    path = os.path.join(folder, name)
                    with open(path, "rb") as f:
                        yield os.path.relpath(path, base).encode(), f.read()


def compiled(library, name, source, included, architecture):
    """The code of a text: a cubin for sm_*, PTX for compute_*. Exits with the compiler's log."""
    names, texts = zip(*included)
    array = ctypes.c_char_p * len(names)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    at = ctypes.byref
    library.nvrtcCreateProgram(at(program), source, name.encode(), len(names), array(*texts), array(*names))
    options = [b"--gpu-architecture=" + architecture.encode(), b"--std=c++17", b"-default-device"]
    code = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if code:
        library.nvrtcGetProgramLogSize(program, at(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        sys.exit(f"{name}: {log.value.decode()}")
    kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
    getattr(library, f"nvrtcGet{kind}Size")(program, at(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{kind}")(program, text)
    library.nvrtcDestroyProgram(at(program))
    return text.raw


def main(root, name, out):
    library = ctypes.CDLL(os.environ.get("NVRTC", "libnvrtc.so"))
    if name == "-":
        source = sys.stdin.buffer.read()
    else:
        with open(os.path.join(root, name), "rb") as f:
            source = f.read()
    code = compiled(library, name, source, list(headers(root)), os.environ.get("ARCH", "sm_90a"))
    with open(out, "wb") as f:
        f.write(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
