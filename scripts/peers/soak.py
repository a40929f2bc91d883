#!/usr/bin/env python3
"""`ingle serve` under load for a long time: memory, open files and threads must not grow.

    python3 scripts/peers/soak.py MODEL [--ingle target/release/ingle] [--minutes 60] [--threads 2]

Runs `ingle bench-serve` again and again, with bursts, shared beginnings, growing chats and clients that hang up, and asks after each
round what the process holds. The first third is warming up; from then on resident memory may grow by 2 %, files and threads not at
all. At the end nothing may run, and SIGTERM must end the server with status 0. Exits 1 otherwise.
"""

import argparse
import itertools
import json
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.request

WORKLOADS = ["sharegpt", "prefix", "disconnects", "growing"]


def held(pid):
    """Resident bytes, open files, threads."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    resident = int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024
    threads = int(re.search(r"Threads:\s+(\d+)", status).group(1))
    return resident, len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())), threads


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--ingle", default="target/release/ingle")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    command = [options.ingle, "serve", options.model, "--port", "0", "-t", str(options.threads), "-c", "2048", "--slots", "8"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    url = next(re.match(r"listening at (\S+)", line).group(1) for line in server.stderr if line.startswith("listening"))
    for line in server.stderr:
        if line.startswith("ready"):
            break
    threading.Thread(target=server.stderr.read, daemon=True).start()
    begun, samples, errors = time.monotonic(), [], 0
    for seed, workload in enumerate(itertools.cycle(WORKLOADS)):
        minutes = (time.monotonic() - begun) / 60
        if minutes >= options.minutes:
            break
        load = [
            options.ingle, "bench-serve", url, "--json", "--workload", workload, "--arrivals", "bursty", "--rate", "4", "--requests", "16",
            "--max-tokens", str(options.max_tokens), "--max-words", "256", "--seed", str(seed),
        ]
        report = json.loads(subprocess.run(load, capture_output=True, text=True, check=True).stdout)
        report = report[0] if isinstance(report, list) else report
        errors += report["errors"] + report["killed"]
        samples.append((minutes, *held(server.pid)))
        print(f"{minutes:6.1f} min  {samples[-1][1] / 1e6:7.1f} MB  {samples[-1][2]} files  {samples[-1][3]} threads  {workload}", flush=True)
    time.sleep(2)
    metrics = urllib.request.urlopen(url + "/metrics").read().decode()
    running = sum(float(n) for n in re.findall(r"^ingle_requests_(?:running|waiting|parked)\{.*\} (\S+)$", metrics, re.MULTILINE))
    server.terminate()
    status = server.wait(60)
    later = [sample for sample in samples if sample[0] >= options.minutes / 3]
    # Connections that are just being closed count as files.
    grown = later and (later[-1][1] > 1.02 * later[0][1] or later[-1][2] > later[0][2] + 4 or later[-1][3] > later[0][3])
    print(f"{len(samples)} rounds, {errors} errors, {running:.0f} requests left, exit status {status}, {'GROWN' if grown else 'not grown'}")
    return 1 if grown or errors or running or status else 0


if __name__ == "__main__":
    sys.exit(main())
