#!/usr/bin/env python3
"""What each engine gives keys and values on Macs of 8 to 512 GB and in a control group, alone and beside others.

    python3 scripts/memory/table.py MODEL.gguf --ingle target/release/ingle [--ctx 8192]

"Others" are a browser and an IDE that hold 6 GiB together, less on small machines (a third at most). Each cell is bytes for keys
and values in GiB, then how much more than the machine has is held when others take 4 GiB more. Prints a table in Markdown.
"""

import argparse
import json
import subprocess

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model")
parser.add_argument("--ingle", default="target/release/ingle")
parser.add_argument("--ctx", default="8192")
options = parser.parse_args()
ENGINES = ["vllm", "mistralrs", "llama.cpp", "vllm-metal"]
GIB = 1 << 30
machines = [(f"Mac, {n} GB", n * GIB) for n in [8, 16, 24, 32, 36, 64, 128, 192, 512]] + [("control group, 4 GiB", 4 * GIB)]
print("| machine | others hold | vLLM | mistral.rs | llama.cpp | vllm-metal | Ingle |")
print("|---|--:|--:|--:|--:|--:|--:|")
for name, total in machines:
    for others in [0, min(6 * GIB, total // 3)]:
        command = [options.ingle, "plan", options.model, "--ctx", options.ctx, "--device", "cpu", "--json", "--machine", str(total),
                   "--others", str(others)]
        for engine in ENGINES:
            command += ["--like", engine]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        cells = []
        for outcome in map(json.loads, lines):
            kv, over = outcome["kv_bytes"], outcome["over_after_4gib"]
            cells.append("does not start" if kv is None else f"{kv / GIB:.1f}" + (f", over by {over / GIB:.1f}" if over else ""))
        print(f"| {name} | {others / GIB:.1f} GiB | " + " | ".join(cells) + " |")
