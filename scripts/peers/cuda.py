"""Ingle and llama.cpp on an NVIDIA GPU, over random weights in the exact shapes of public models.

    python3 scripts/peers --suite cuda [--only TEXT] [--pairs N] [--json]

gpus.py says how they are timed. llama.cpp is the `llama-bench` in PATH, or what --llama-bench names, built with -DGGML_CUDA=ON; it
gets all layers on the GPU, its flash attention, and prompts in one batch. Files that are not under --models-dir yet are made there,
and removed again; this needs a Python with gguf and numpy (--python), and for the largest 60 GB.
"""
import subprocess
import sys
from pathlib import Path

import gpus
from gpus import Configuration

LLAMA_OPTIONS = ("-ngl", "99", "-fa", "1", "-b", "2048", "-ub", "2048")


def configurations():
    four_bits = [("qwen3-0.6b", "q4_0"), ("llama-3.2-1b", "q4_0"), ("llama-3.2-3b", "q4_0"), ("qwen3-8b", "q4_k"), ("qwen3-30b-a3b", "q4_0")]
    return [Configuration(name, kind) for name, four in four_bits for kind in (four, "q8_0", "bf16")]


def make(path, c, python):
    """The file of a configuration, whole or not at all."""
    print(f"making {path.name} ...", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    script = Path(__file__).with_name("make_gguf.py")
    done = subprocess.run([str(python), str(script), c.name, c.gguf, str(part)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        part.unlink(missing_ok=True)
        sys.exit(f"{path.name} could not be made:\n{done.stderr[-2000:]}")
    part.rename(path)


def measure(ingle, a):
    of_ingle = gpus.IngleOnGpu(ingle, a.device or "cuda")
    engines = [of_ingle, *gpus.engines_in_path([gpus.LlamaBench(a.llama_bench, *LLAMA_OPTIONS)])]
    rows = []
    for c in gpus.chosen(configurations(), a.only):
        path = of_ingle.model(a.models_dir, c)
        is_ours = not path.exists()
        if is_ours:
            make(path, c, a.python or sys.executable)
        try:
            rows += gpus.measure(engines, c, a.models_dir, a.pairs)
        finally:
            if is_ours:
                path.unlink()
    return rows
