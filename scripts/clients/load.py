#!/usr/bin/env python3
"""guidellm, a load generator, against a real server.

    python load.py target/release/ingle [--rows FILE] [--seconds 20]
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import harness
from harness import CHAT, KEY, check, expect, in_environment


def main():
    server = harness.Server(OPTIONS.binary, CHAT, options=["--slots", "16", "-c", "2048"], key=None)
    try:
        return harness.run(OPTIONS, server)
    finally:
        server.stop()


if __name__ == "__main__":
    OPTIONS = harness.arguments(__doc__, (["--seconds"], {"type": int, "default": 20, "help": "how long each load is kept up"}))
    sys.exit(main())
