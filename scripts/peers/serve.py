#!/usr/bin/env python3
"""Compares `ingle serve` with llama-server under the same load, in turns.

    python3 scripts/peers/serve.py MODEL.gguf --ingle target/release/ingle --llama path/to/llama-server
        [--threads 2] [--clients 1,2,4,8,16] [--rounds 2] [--workload sharegpt] [--requests 32] [--seed 0]

llama-server is built from the sources in the sdist of llama-cpp-python (`vendor/llama.cpp`: cmake
with GGML_NATIVE, target llama-server). Both servers get the same threads, slots and context, and
only one runs at a time. `ingle bench-serve` loads both with the same seeded plan. Prints a Markdown
table with a row for each run, and the ratios of the medians.
"""

import argparse
import json
import socket
import statistics
import subprocess
import time
import urllib.request


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(name, options, port):
    slots = max(options.clients)
    context = options.context
    if name == "ingle":
        return [options.ingle, "serve", options.model, "--port", str(port), "-t", str(options.threads), "--slots", str(slots),
                "-c", str(context)]
    return [options.llama, "-m", options.model, "--port", str(port), "-t", str(options.threads), "-np", str(slots), "-kvu",
            "-c", str(context * slots)]


def run(name, options, seed):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(command(name, options, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                if urllib.request.urlopen(url + "/health").status == 200:
                    break
            except OSError:
                time.sleep(0.2)
        clients = ",".join(map(str, options.clients))
        load = [options.ingle, "bench-serve", url, "--json", "--workload", options.workload, "--clients", clients, "--seed",
                str(seed), "--requests", str(options.requests), "--max-tokens", str(options.max_tokens), "--max-words",
                str(options.max_words)]
        if options.check_solo:
            load.append("--check-solo")
        done = subprocess.run(load, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--ingle", default="target/release/ingle")
    parser.add_argument("--llama", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8, 16])
    parser.add_argument("--context", type=int, default=2048, help="tokens of a slot")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workload", default="sharegpt")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--max-words", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-solo", action="store_true")
    options = parser.parse_args()
    found = {}
    for round_ in range(options.rounds):
        for name in ["ingle", "llama-server"]:
            for clients, report in zip(options.clients, run(name, options, options.seed + round_)):
                print(name, clients, json.dumps(report), flush=True)
                found.setdefault((name, clients), []).append(report)
    print("\n| clients | output tok/s | p50 first token | p99 between tokens | errors, killed, different |\n|---|---|---|---|---|")
    for clients in options.clients:
        ours, theirs = found["ingle", clients], found["llama-server", clients]

        def pair(*path):
            def value(report):
                for key in path:
                    report = report[key]
                return report

            a, b = (statistics.median(value(report) for report in reports) for reports in (ours, theirs))
            return a, b, a / b if b else float("nan")

        rate, first, gap = pair("output_tokens_per_second"), pair("ttft_ms", "p50"), pair("itl_ms", "p99")
        bad = [sum(report.get(key) or 0 for report in ours) for key in ("errors", "killed", "different")]
        print(f"| {clients} | {rate[0]:.0f} to {rate[1]:.0f}: {rate[2]:.2f}x | {first[0]:.0f} to {first[1]:.0f} ms: "
              f"{first[2]:.2f}x | {gap[0]:.1f} to {gap[1]:.1f} ms: {gap[2]:.2f}x | {', '.join(map(str, bad))} |")


if __name__ == "__main__":
    main()
