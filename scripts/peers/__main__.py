"""Compares the speed of Ingle and its peers on the same files, in alternating runs.

    python3 scripts/peers MODEL [MODEL ...]        these models, compared with llama.cpp
    python3 scripts/peers --suite [--only TEXT]    every file of suite.py, also speech and embeddings;
                                                   writes docs/peers.md and docs/peers.svg
    python3 scripts/peers --suite apple            on a Mac: llama.cpp, mlx-lm and uzu (apple.py)
    python3 scripts/peers --suite cuda             on an NVIDIA GPU: llama.cpp (cuda.py)

MODEL is a GGUF file, or a name that `ingle pull` knows.

Installs the peers (llama-cpp-python, which compiles llama.cpp for this machine; for the suite also faster-whisper and
fastembed) into target/peers on first use, and builds Ingle unless --ingle is given. The engines alternate, each in a process
of its own, so that drift of the machine's speed affects both. The result is the median of the ratios of the pairs;
a ratio above 1 means that Ingle is faster.
"""
import argparse
import json
import sys
from pathlib import Path

import apple
import cuda
import extras
import gpus
import report
from engines import Ingle, LlamaCpp, ROOT
from pairs import text_pairs
from suite import SUITE

ON_GPUS = {"apple": apple, "cuda": cuda}


def arguments():
    p = argparse.ArgumentParser(prog="peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", metavar="MODEL")
    p.add_argument("--suite", nargs="?", const="cpu", choices=["cpu", *ON_GPUS], help="every file of suite.py, into docs/; apple, cuda: on a GPU")
    p.add_argument("--only", metavar="TEXT", help="only files of the suite with TEXT in their name; prints, and leaves docs/ unchanged")
    p.add_argument("-p", type=int, default=512, help="prompt tokens [%(default)s]")
    p.add_argument("-n", type=int, default=128, help="generated tokens [%(default)s]")
    p.add_argument("-t", type=int, default=2, help="threads of each engine [%(default)s]")
    p.add_argument("--pairs", type=int, default=5, help="[%(default)s]")
    p.add_argument("--json", action="store_true")
    p.add_argument("--ingle", type=Path, help="this binary instead of a fresh build")
    p.add_argument("--python", type=Path, help="a Python that has the peers installed, instead of target/peers")
    p.add_argument("--models-dir", type=Path, default=ROOT / "target" / "peers" / "models", help="where generated files go")
    p.add_argument("--device", help="Ingle's device in the suites for GPUs [metal, cuda]")
    for engine, program in (("llama-bench", "llama-bench"), ("mlx", "mlx_lm.benchmark"), ("uzu", "uzu")):
        p.add_argument(f"--{engine}", default=program, metavar="PROGRAM", help="in the suites for GPUs [%(default)s]")
    a = p.parse_args()
    if bool(a.models) == bool(a.suite):
        p.error("give models, or --suite")
    return a


def main():
    a = arguments()
    ingle = Ingle(a.ingle, a.t)
    if a.suite in ON_GPUS:
        rows = ON_GPUS[a.suite].measure(ingle, a)
        return print(json.dumps(gpus.as_json(rows)) if a.json else gpus.markdown(rows))
    llama = LlamaCpp(a.python, a.t)
    entries = [e for e in SUITE if not a.only or a.only.lower() in e.title.lower()] if a.suite else []
    results = []
    for entry in entries:
        path = entry.fetch(ingle, a.models_dir, llama.python)
        results.append(text_pairs(ingle, llama, path, a.p, a.n, a.pairs, entry))
        entry.release(path)
    for name in a.models:
        path = name if Path(name).exists() else ingle.pull(name)
        results.append(text_pairs(ingle, llama, path, a.p, a.n, a.pairs))
    more = extras.measure(ingle, a) if a.suite and not a.only else []
    run = report.Run(machine=report.machine(), threads=a.t, pairs=a.pairs, versions={**ingle.versions(), **llama.versions()},
                     n_prompt=a.p, n_gen=a.n, results=results, extras=more)
    if a.json:
        return print(json.dumps(report.as_json(run)))
    print(report.markdown(run))
    if a.suite and not a.only:
        docs = ROOT / "docs"
        (docs / "peers.md").write_text(report.page(run))
        (docs / "peers.svg").write_text(report.chart(run))
        print(f"written: {docs / 'peers.md'}, {docs / 'peers.svg'}", file=sys.stderr)


if __name__ == "__main__":
    main()
