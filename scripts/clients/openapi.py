#!/usr/bin/env python3
"""schemathesis over /openapi.json: whatever it sends, no status of 500 or above (501 says by name what is not there).

    python openapi.py target/release/ingle [--rows FILE] [--examples 10]
"""

import re
import subprocess
import sys

import harness
from harness import CHAT, EMBED, KEY, SPEECH, check, expect, in_environment


@check("schemathesis", "every path of /openapi.json, no 5xx")
def _(server):
    command = [
        in_environment("schemathesis"), "run", server.url + "/openapi.json", "--header", f"authorization: Bearer {KEY}",
        "--checks", "not_a_server_error", "--max-examples", str(OPTIONS.examples), "--phases", "examples,fuzzing",
        "--request-timeout", "120", "--seed", "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    expect(done.returncode == 0, done.stdout[-8000:] + done.stderr[-1000:])
    found = re.search(r"(\d+) generated", done.stdout)
    return f"{found.group(1)} cases" if found else None


def main():
    server = harness.Server(OPTIONS.binary, CHAT, EMBED, SPEECH, options=["--slots", "4", "--no-warmup", "-c", "1024", "--max-tokens", "16"])
    try:
        return harness.run(OPTIONS, server)
    finally:
        server.stop()


if __name__ == "__main__":
    OPTIONS = harness.arguments(__doc__, (["--examples"], {"type": int, "default": 10, "help": "cases of each path"}))
    sys.exit(main())
