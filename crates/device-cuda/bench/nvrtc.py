#!/usr/bin/env python3
"""Compile a kernel file as the device does: with NVRTC, without headers of the toolkit.

    python3 nvrtc.py KERNELS linear/q4_0.cu OUT.cubin      NVRTC: the library's path, if it is not found by its name
"""
import ctypes
import os
import sys


def headers(root):
    for folder, _, files in os.walk(root):
        for name in files:
            if name.endswith((".h", ".cuh")):
                path = os.path.join(folder, name)
                with open(path, "rb") as f:
                    yield os.path.relpath(path, root).encode(), f.read()


def main(root, name, out):
    lib = ctypes.CDLL(os.environ.get("NVRTC", "libnvrtc.so"))
    with open(os.path.join(root, name), "rb") as f:
        source = f.read()
    # Those that the kernels of all GPUs share lie beside this crate.
    shared = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../device-gpu/src/kernels")
    names, texts = zip(*headers(root), *headers(shared))
    array = ctypes.c_char_p * len(names)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    lib.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), len(names), array(*texts), array(*names))
    options = [b"--gpu-architecture=" + os.environ.get("ARCH", "sm_90a").encode(), b"--std=c++17", b"-default-device"]
    code = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if code:
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetProgramLog(program, log)
        sys.exit(f"{name}: {log.value.decode()}")
    lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetCUBIN(program, cubin)
    with open(out, "wb") as f:
        f.write(cubin.raw)


if __name__ == "__main__":
    main(*sys.argv[1:])
