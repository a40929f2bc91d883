#!/usr/bin/env python3
"""Print a hash of the PTX of persistent kernels, so that two versions of the sources can be compared.

    python3 ptx.py KERNELS [NAME...]    KERNELS: a folder `src/kernels`; NAME: a key of TEXTS, or all
    NVRTC=... python3 ptx.py ...        the library's path, if it is not found by its name

A change of names, comments or files must leave every hash as it was. The order of declarations and
the form of an expression may change the PTX without a change of meaning.
"""
import ctypes
import hashlib
import os
import sys

from nvrtc import compiled, headers

KERNEL = '#include "persistent/{}.cuh"\n{}(k, {})\n'
TEXTS = {
    "one": KERNEL.format("decode", "PERSISTENT_KERNEL", "128, 4, PAGES_F16, false"),
    "one_q8_0": KERNEL.format("decode", "PERSISTENT_KERNEL", "64, 3, PAGES_Q8_0, false"),
    "one_256": KERNEL.format("decode", "PERSISTENT_KERNEL", "256, 2, PAGES_F16, false"),
    "mixture": KERNEL.format("decode", "PERSISTENT_KERNEL", "128, 8, PAGES_F16, true"),
    "rows": KERNEL.format("decode_rows", "PERSISTENT_ROWS_KERNEL", "128, 4, PAGES_F16, false"),
    "rows_fp8": KERNEL.format("decode_rows", "PERSISTENT_ROWS_KERNEL", "64, 2, PAGES_FP8, false"),
    "rows_mixture": KERNEL.format("decode_rows", "PERSISTENT_ROWS_KERNEL", "64, 8, PAGES_F16, true"),
}
ALL_CODECS = "#define PERSISTENT_CODECS 1023\n"
TEXTS["mixture_rare"] = ALL_CODECS + TEXTS["mixture"]
TEXTS["rows_rare"] = ALL_CODECS + TEXTS["rows"]


def main(root, *names):
    library = ctypes.CDLL(os.environ.get("NVRTC", "libnvrtc.so"))
    included = list(headers(root))
    for name in names or TEXTS:
        ptx = compiled(library, f"{name}.cu", TEXTS[name].encode(), included, "compute_90a")
        print(name, len(ptx), hashlib.sha256(ptx).hexdigest()[:16], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
