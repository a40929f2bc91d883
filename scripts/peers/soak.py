#!/usr/bin/env python3
"""Runs `ingle serve` under load for a long time: memory, open files and threads must not grow.

    python3 scripts/peers/soak.py MODEL [--ingle target/release/ingle] [--minutes 60] [--threads 2] [--pause 0] [--samples FILE]

Runs `ingle bench-serve` repeatedly, with bursts, shared prefixes, growing chats and clients that
hang up. After each round, when nothing runs, it samples the process. `--pause` seconds pass between
rounds. Keys and values have a budget (`--kv-budget`).

- Within plan: resident memory never exceeds the fixed part, the budget of keys and values, and 64
MB for the server.
- No growth: after the first third of the rounds, resident memory without keys and values grows by
less than 2 % of the fixed part in an hour. The slope is Theil-Sen's, the median of the slopes of
all pairs, on which single rounds have no effect. It is also accepted if 95 % of the slopes of
resampled rounds reach below the limit. Samples are averages of one turn of all workloads, because a
repeating pattern is not growth.
- At the end the process has the files and threads of the start, nothing runs, and SIGTERM ends the
server with status 0.

The exit status is 1 otherwise.
"""

import argparse
import itertools
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

WORKLOADS = ["sharegpt", "prefix", "disconnects", "growing"]


def held(pid):
    """Resident bytes, open files and threads of the process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    resident = int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024
    threads = int(re.search(r"Threads:\s+(\d+)", status).group(1))
    return resident, len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())), threads


def slope(points):
    """Theil-Sen's slope: the median of the slopes of all pairs of (hours, bytes), with the 5th and
    95th percentile of the slopes of resampled points.
    """

    def of(points):
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2) if a[0] != b[0]]
        return statistics.median(slopes) if slopes else 0.0

    chance = random.Random(0)
    again = sorted(of(chance.choices(points, k=len(points))) for _ in range(200))
    return of(points), again[10], again[189]


def turns(samples):
    """Averages of each turn of all workloads."""
    n = len(WORKLOADS)
    whole = [samples[i : i + n] for i in range(0, len(samples) - n + 1, n)]
    return [tuple(statistics.mean(column) for column in zip(*turn)) for turn in whole]


def metric(url, name):
    """Sum of a metric over all models."""
    metrics = urllib.request.urlopen(url + "/metrics").read().decode()
    return sum(float(n) for n in re.findall(rf"^ingle_{name}\{{.*\}} (\S+)$", metrics, re.MULTILINE))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--ingle", default="target/release/ingle")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=16, help="of a round")
    parser.add_argument("--pause", type=float, default=0, help="seconds between rounds")
    parser.add_argument("--kv-budget", default="256M")
    parser.add_argument("--samples", type=pathlib.Path, help="file for what each round ended with, a JSON array a line")
    options = parser.parse_args()
    command = [options.ingle, "serve", options.model, "--port", "0", "-t", str(options.threads), "-c", "4096", "--slots", "8",
               "--kv-budget", options.kv_budget]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    url = next(re.match(r"listening at (\S+)", line).group(1) for line in server.stderr if line.startswith("listening"))
    for line in server.stderr:
        if line.startswith("ready"):
            break
    threading.Thread(target=server.stderr.read, daemon=True).start()
    before = held(server.pid)
    fixed, budget = metric(url, "memory_fixed_bytes"), metric(url, "kv_bytes_budget")
    begun, samples, errors, over = time.monotonic(), [], 0, 0
    for seed, workload in enumerate(itertools.cycle(WORKLOADS)):
        minutes = (time.monotonic() - begun) / 60
        if minutes >= options.minutes:
            break
        load = [
            options.ingle, "bench-serve", url, "--json", "--workload", workload, "--arrivals", "bursty", "--rate", "4",
            "--requests", str(options.requests), "--max-tokens", str(options.max_tokens), "--max-words", "256", "--seed", str(seed),
        ]
        report = json.loads(subprocess.run(load, capture_output=True, text=True, check=True).stdout)
        report = report[0] if isinstance(report, list) else report
        errors += report["errors"] + report["killed"]
        # Clients that hung up are let go within a step.
        time.sleep(1 + options.pause)
        resident, files, threads = held(server.pid)
        keys_and_values = metric(url, "memory_held_bytes")
        # What the server allows itself grows to `--kv-budget` while it runs.
        budget = max(budget, metric(url, "kv_bytes_budget"))
        most = fixed + budget + 64e6
        over += resident > most
        samples.append((minutes / 60, resident - keys_and_values, resident, files, threads))
        if options.samples:
            with options.samples.open("a") as out:
                out.write(json.dumps([workload, *samples[-1]]) + "\n")
        print(
            f"{minutes:6.1f} min  {resident / 1e6:7.1f} MB, {keys_and_values / 1e6:.1f} of {budget / 1e6:.1f} MB keys and values, "
            f"{files} files, {threads} threads  {workload}", flush=True,
        )
    # Threads for what blocks end when they were idle for 10 s; connections are being closed.
    time.sleep(15)
    after = held(server.pid)
    running = sum(metric(url, name) for name in ["requests_running", "requests_waiting", "requests_parked"])
    server.terminate()
    status = server.wait(60)
    averages = turns([sample for sample in samples if sample[0] * 60 >= options.minutes / 3])
    found, low, high = slope([average[:2] for average in averages]) if len(averages) > 2 else (0.0, 0.0, 0.0)
    limit = 0.02 * fixed
    grown = low > limit
    left = after[1] > before[1] or after[2] > before[2]
    print(f"resident memory less keys and values: {found / 1e6:+.2f} MB an hour ({low / 1e6:+.2f} to {high / 1e6:+.2f}, limit "
          f"{limit / 1e6:.2f}); most resident {max(sample[2] for sample in samples) / 1e6:.0f} MB of {most / 1e6:.0f}; files "
          f"{before[1]} and {after[1]}, threads {before[2]} and {after[2]}")
    print(f"{len(samples)} rounds, {errors} errors, {running:.0f} requests left, exit status {status}, "
          f"{'GROWN' if grown else 'not grown'}, {'LEFT OVER' if left else 'nothing left over'}, {'OVER PLAN' if over else 'within plan'}")
    return 1 if grown or left or over or errors or running or status else 0


if __name__ == "__main__":
    sys.exit(main())
