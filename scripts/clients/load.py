#!/usr/bin/env python3
"""guidellm, a load generator, against a real server: no request may fail.

    python load.py target/release/ingle [--rows FILE] [--requests 48]
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import harness
from harness import CHAT, check, expect, in_environment


@check("guidellm", "8 clients at once: chats, streamed")
def _(server):
    with tempfile.TemporaryDirectory() as folder:
        prompts, report = pathlib.Path(folder) / "prompts.jsonl", pathlib.Path(folder) / "report.json"
        rows = [{"prompt": f"Tell me about the number {n}.", "output_tokens_count": 24} for n in range(OPTIONS.requests)]
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = [
            in_environment("guidellm"), "run", "--backend", f"kind=openai_http,target={server.url}", "--profile", "kind=concurrent,streams=8",
            "--constraint", f"kind=max_requests,count={OPTIONS.requests}", "--data", f"kind=json_file,path={prompts}", "--output",
            f"kind=json,path={report}", "--disable-console-interactive",
        ]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=600)
        expect(done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:])
        totals = json.loads(report.read_text())["benchmarks"][0]["metrics"]["request_totals"]
        expect(totals["successful"] == OPTIONS.requests and totals["errored"] == 0, totals)
        return f"{totals['successful']} requests, none failed"


def main():
    server = harness.Server(OPTIONS.binary, CHAT, options=["--slots", "8", "-c", "1024", "--no-warmup"], key=None)
    try:
        return harness.run(OPTIONS, server)
    finally:
        server.stop()


if __name__ == "__main__":
    OPTIONS = harness.arguments(__doc__, (["--requests"], {"type": int, "default": 48, "help": "requests in all"}))
    sys.exit(main())
