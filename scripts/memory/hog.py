#!/usr/bin/env python3
"""A process that takes and returns memory, by commands on standard input.

    take BYTES SECONDS    touches the bytes, evenly over the seconds; prints `taken`
    give                  returns all of them; prints `given`
"""

import mmap
import sys
import time

PIECE = 1 << 20


def take(total, seconds):
    begun = time.monotonic()
    pieces = []
    while len(pieces) * PIECE < total:
        piece = mmap.mmap(-1, PIECE)
        for at in range(0, PIECE, mmap.PAGESIZE):
            piece[at] = 1
        pieces.append(piece)
        due = begun + seconds * len(pieces) * PIECE / total
        time.sleep(max(0.0, due - time.monotonic()))
    return pieces


held = []
for line in sys.stdin:
    words = line.split()
    if words[:1] == ["take"]:
        held = take(int(words[1]), float(words[2]))
        print("taken", flush=True)
    elif words == ["give"]:
        for piece in held:
            piece.close()
        held = []
        print("given", flush=True)
