#!/usr/bin/env python3
"""The table of results of docs/cuda.md: measure it on a GPU, print it, write it. `cargo xtask tidy`
compares the page with it.

    python3 scripts/cuda_table.py                            print the table of the last run
    python3 scripts/cuda_table.py --write                    put the table into docs/cuda.md
    python3 scripts/cuda_table.py --run NAME=FILE.gguf ...   measure these models with `ingle bench`

The last run is crates/device-cuda/bench/results.tsv: a line for each model and test, in tokens a
second. --run replaces a model's lines and keeps llama.cpp's figures, which `scripts/peers --suite
cuda` measures. INGLE names the program (target/release/ingle).
"""
import csv
import datetime
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "crates/device-cuda/bench/results.tsv"
PAGE = ROOT / "docs/cuda.md"
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->\n"
FIELDS = ["model", "gpu", "date", "test", "ingle", "llama.cpp"]

# Test: the arguments of `ingle bench`, and the field of its JSON.
TESTS = {
    "tg128": (["-p", "0", "-n", "128", "-r", "6"], "avg_ts"),
    "tg64@2048": (["-p", "0", "-n", "64", "-d", "2048", "-r", "2"], "avg_ts"),
    "tg64@8192": (["-p", "0", "-n", "64", "-d", "8192", "-r", "2"], "avg_ts"),
    "pp2048": (["--chunk", "2048", "-p", "2048", "-n", "0", "-r", "4"], "avg_ts"),
    "parallel8": (["--parallel", "8", "-p", "16", "-n", "64"], "speed_tg"),
}
# Columns after the GPU: heading, tests whose figure may stand there, engine.
COLUMNS = [
    ("decode", ("tg128", "tg64"), "ingle"),
    ("llama.cpp", ("tg128",), "llama.cpp"),
    ("after 2,048", ("tg64@2048", "tg128@2048"), "ingle"),
    ("after 8,192", ("tg64@8192", "tg128@8192"), "ingle"),
    ("prompt of 2,048", ("pp2048",), "ingle"),
    ("llama.cpp", ("pp2048",), "llama.cpp"),
    ("8 sequences", ("parallel8",), "ingle"),
]


def read():
    with open(DATA, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def table(rows):
    """The rows as Markdown, a line for each model on a GPU, in the order of the file."""
    lines = {}
    for row in rows:
        lines.setdefault((row["model"], row["gpu"], row["date"]), {})[row["test"]] = row
    titles = ["model", "GPU", "date"] + [title for title, _, _ in COLUMNS]
    out = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for key, tests in lines.items():
        figures = []
        for _, names, engine in COLUMNS:
            found = [tests[name][engine] for name in names if name in tests and tests[name][engine]]
            figures.append(f"{round(float(found[0])):,}" if found else "")
        out.append("| " + " | ".join([*key, *figures]) + " |")
    return "\n".join(out) + "\n"


def measured(name, path):
    """Lines of a model, measured now on the first GPU."""
    program = os.environ.get("INGLE", str(ROOT / "target/release/ingle"))
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    gpu = gpu.replace("NVIDIA ", "").split(" ")[0]
    for test, (arguments, field) in TESTS.items():
        command = [program, "bench", path, "--device", "cuda", "--json", *arguments]
        command += [] if "--parallel" in arguments else ["--no-peaks"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        speed = json.loads(text)[0][field]
        print(f"{name} {test}: {speed:,.0f}", file=sys.stderr)
        yield dict(zip(FIELDS, [name, gpu, str(datetime.date.today()), test, f"{speed:.0f}", ""]))


def run(models):
    rows = read()
    for model in models:
        name, path = model.split("=", 1)
        new = list(measured(name, path))
        same_gpu = [row for row in rows if (row["model"], row["gpu"]) == (name, new[0]["gpu"])]
        peers = {row["test"]: row["llama.cpp"] for row in same_gpu}
        for row in new:
            row["llama.cpp"] = peers.get(row["test"], "")
        at = rows.index(same_gpu[0]) if same_gpu else len(rows)
        rows = [row for row in rows if row not in same_gpu]
        rows[at:at] = new
        with open(DATA, "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, delimiter="\t", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def main(arguments):
    mode, models = arguments[:1], arguments[1:]
    if mode == ["--run"]:
        run(models)
    text = table(read())
    if mode == ["--write"]:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(before + BEGIN + text + END + rest.split(END)[1])
    elif mode in ([], ["--run"]):
        print(text, end="")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
