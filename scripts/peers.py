#!/usr/bin/env python3
"""Ingle and llama.cpp on the same file, turn about: the ratio of their speeds.

    python3 scripts/peers.py MODEL [MODEL ...]      [-p 512] [-n 128] [-t 2] [--pairs 5] [--json]

MODEL is a GGUF file, or a name that `ingle pull` knows.

Installs llama-cpp-python (which compiles llama.cpp for this machine) into target/peers on first use, and builds
Ingle if there is no binary yet. The two engines run alternately, each in a process of its own, so that a drift of
the machine's speed meets both; what is printed is the median of the ratios pair by pair. A ratio above 1 means that
Ingle is faster.
"""
import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "target" / "peers"


def python():
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install():
    """A virtual environment with llama-cpp-python; its version."""
    probe = [str(python()), "-c", "import llama_cpp; print(llama_cpp.__version__)"]
    if not python().exists() or subprocess.run(probe, capture_output=True).returncode != 0:
        print("installing llama-cpp-python (compiles llama.cpp, some minutes) ...", file=sys.stderr)
        venv.create(VENV, with_pip=True)
        env = {**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON"}
        subprocess.run([str(python()), "-m", "pip", "install", "-q", "llama-cpp-python"], check=True, env=env)
    return subprocess.run(probe, check=True, capture_output=True, text=True).stdout.strip()


def llama_cpp(model, n_prompt, n_gen, threads):
    """Runs inside the virtual environment: tokens a second of one prefill and one generation, after a warm-up."""
    import ctypes
    import time

    import llama_cpp as L

    silent = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(silent, ctypes.c_void_p(0))
    L.llama_backend_init()
    loaded = L.llama_model_load_from_file(model.encode(), L.llama_model_default_params())
    params = L.llama_context_default_params()
    params.n_ctx = max(n_prompt, n_gen) + 64
    params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    ctx = L.llama_init_from_model(loaded, params)
    n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(loaded))

    def decode(tokens):
        array = (L.llama_token * len(tokens))(*tokens)
        if L.llama_decode(ctx, L.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")
        L.llama_synchronize(ctx)

    def clear():
        L.llama_memory_clear(L.llama_get_memory(ctx), True)

    prompt = [(i * 7919 + 13) % n_vocab for i in range(n_prompt)]
    decode(prompt[:32])
    decode(prompt[:1])
    clear()
    start = time.perf_counter()
    for i in range(0, n_prompt, 512):
        decode(prompt[i:i + 512])
    prefill = n_prompt / (time.perf_counter() - start)
    clear()
    start = time.perf_counter()
    for i in range(n_gen):
        decode([prompt[i % n_prompt]])
    generate = n_gen / (time.perf_counter() - start)
    print(json.dumps([prefill, generate]))


def ingle(binary, model, n_prompt, n_gen, threads):
    """The same two figures from `ingle bench --json`."""
    out = subprocess.run([str(binary), "bench", model, "-p", str(n_prompt), "-n", str(n_gen), "-r", "1", "-t", str(threads),
                          "--no-peaks", "--json"], check=True, capture_output=True, text=True).stdout
    rows = json.loads(out)
    return [next(r["avg_ts"] for r in rows if r["n_prompt"] == n_prompt and r["n_gen"] == 0),
            next(r["avg_ts"] for r in rows if r["n_gen"] == n_gen and r["n_prompt"] == 0)]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("-p", type=int, default=512, help="prompt tokens")
    p.add_argument("-n", type=int, default=128, help="generated tokens")
    p.add_argument("-t", type=int, default=2, help="threads of each engine")
    p.add_argument("--pairs", type=int, default=5)
    p.add_argument("--json", action="store_true")
    p.add_argument("--llama-cpp", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.llama_cpp:
        return llama_cpp(a.models[0], a.p, a.n, a.t)
    version = install()
    binary = ROOT / "target" / "release" / ("ingle.exe" if os.name == "nt" else "ingle")
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "ingle"], check=True, cwd=ROOT)
    results = []
    for name in a.models:
        model = name
        if not Path(name).exists():
            model = subprocess.run([str(binary), "pull", name], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        pairs = []
        for _ in range(a.pairs):
            theirs = json.loads(subprocess.run([str(python()), __file__, "--llama-cpp", model, "-p", str(a.p), "-n", str(a.n),
                                                "-t", str(a.t)], check=True, capture_output=True, text=True).stdout)
            ours = ingle(binary, model, a.p, a.n, a.t)
            pairs.append({"ingle": ours, "llama_cpp": theirs})
            print(f"{Path(model).name}: prefill {ours[0]:.0f} / {theirs[0]:.0f}, decode {ours[1]:.1f} / {theirs[1]:.1f} tok/s",
                  file=sys.stderr)
        ratio = [statistics.median(q["ingle"][k] / q["llama_cpp"][k] for q in pairs) for k in (0, 1)]
        speed = [[statistics.median(q[e][k] for q in pairs) for k in (0, 1)] for e in ("ingle", "llama_cpp")]
        digest = hashlib.sha256(Path(model).read_bytes()).hexdigest()
        results.append({"model": Path(model).name, "sha256": digest, "prefill_ratio": ratio[0], "decode_ratio": ratio[1],
                        "ingle": speed[0], "llama_cpp": speed[1], "pairs": pairs})
    if a.json:
        return print(json.dumps({"machine": platform.processor() or platform.machine(), "threads": a.t,
                                 "llama_cpp_python": version, "n_prompt": a.p, "n_gen": a.n, "results": results}))
    print(f"llama-cpp-python {version}, {a.t} threads, median of {a.pairs} pairs, ratio = Ingle / llama.cpp\n")
    print(f"| file | prefill {a.p}: Ingle | llama.cpp | ratio | decode {a.n}: Ingle | llama.cpp | ratio |")
    print("|---|---|---|---|---|---|---|")
    for r in results:
        print(f"| {r['model']} | {r['ingle'][0]:.0f} | {r['llama_cpp'][0]:.0f} | **{r['prefill_ratio']:.2f}x** "
              f"| {r['ingle'][1]:.1f} | {r['llama_cpp'][1]:.1f} | **{r['decode_ratio']:.2f}x** |")


if __name__ == "__main__":
    main()
