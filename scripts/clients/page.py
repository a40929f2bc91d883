#!/usr/bin/env python3
"""Runs scripts/page/check.py on the server's pages in a browser, with a chat model and a speech
model.

    python page.py target/release/ingle [--rows FILE]

Debian's `chromium` and `chromium-driver` are needed.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import harness
from harness import CHAT, HERE, SPEECH, NotRun, check, expect


@check("selenium", "the chat page and the status page in Chromium")
def _(server):
    if not pathlib.Path("/usr/bin/chromedriver").exists():
        raise NotRun("no chromium-driver on this machine")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, HERE.parent / "page" / "check.py", server.url, folder]
        done = subprocess.run(command, capture_output=True, text=True)
    expect(done.returncode == 0, "\n".join(re.findall(r"^FAIL.*", done.stdout, re.M)) or done.stderr[-2000:])
    return f"{done.stdout.count('PASS')} checks"


def main():
    server = harness.Server(OPTIONS.binary, CHAT, SPEECH, options=["--slots", "4"], key=None)
    try:
        return harness.run(OPTIONS, server)
    finally:
        server.stop()


if __name__ == "__main__":
    OPTIONS = harness.arguments(__doc__)
    sys.exit(main())
