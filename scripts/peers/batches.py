"""Compares batches of sequences: `ingle bench --parallel` and llama.cpp's `llama-batched-bench`, in alternating runs.

    python3 scripts/peers/batches.py --llama build/bin/llama-batched-bench MODEL.gguf [MODEL.gguf ...]

llama-batched-bench is not in llama-cpp-python's package; its sources are in the package's sdist (`vendor/llama.cpp`). On a Linux
machine with other work, run it under `taskset`. The table has the medians of both, and of the ratios of the rounds.
"""
import argparse
import json
import statistics
from pathlib import Path

from engines import Ingle, output


def of_llama(binary, model, a):
    """Rows of llama-batched-bench, from its log."""
    n_positions = max(a.parallel) * (a.p + a.n) + 256
    text = output([binary, "-m", model, "-t", a.t, "-tb", a.t, "-c", n_positions, "-b", 2048, "-ub", 512, "-npp", a.p, "-ntg", a.n,
                   "-npl", ",".join(map(str, a.parallel)), "--output-format", "jsonl"])
    lines = (line[line.find('{"n_kv_max"'):] for line in text.splitlines() if '{"n_kv_max"' in line)
    return {row["pl"]: row["speed_tg"] for row in map(json.loads, lines)}


def of_ingle(ingle, model, a):
    text = ingle.run("bench", model, "--parallel", ",".join(map(str, a.parallel)), "-p", a.p, "-n", a.n, "-r", 1, "-t", a.t, "--json")
    return {row["pl"]: row["speed_tg"] for row in json.loads(text)}


def main():
    p = argparse.ArgumentParser(prog="batches", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+", metavar="MODEL")
    p.add_argument("--llama", type=Path, required=True, help="the program llama-batched-bench")
    p.add_argument("--ingle", type=Path, help="this binary instead of a fresh build")
    p.add_argument("--parallel", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8, 16], metavar="N,…")
    p.add_argument("-p", type=int, default=128, help="prompt tokens of each sequence [%(default)s]")
    p.add_argument("-n", type=int, default=128, help="generated tokens of each sequence [%(default)s]")
    p.add_argument("-t", type=int, default=2, help="threads of each engine [%(default)s]")
    p.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    a = p.parse_args()
    ingle = Ingle(a.ingle, a.t)
    print("| file | sequences | Ingle tok/s | of one | llama.cpp | ratio |\n|---|---|---|---|---|---|")
    for model in a.models:
        ours, theirs = zip(*((of_ingle(ingle, model, a), of_llama(a.llama, model, a)) for _ in range(a.rounds)))
        one = statistics.median(round[a.parallel[0]] for round in ours)
        for n in a.parallel:
            rate, peer = (statistics.median(round[n] for round in rounds) for rounds in (ours, theirs))
            ratio = statistics.median(x[n] / y[n] for x, y in zip(ours, theirs))
            print(f"| {Path(model).name} | {n} | {rate:.0f} | {rate / one:.2f} | {peer:.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
