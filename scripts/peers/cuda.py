"""Compares Ingle and llama.cpp on an NVIDIA GPU, with random weights in the exact shapes of public
models.

    python3 scripts/peers --suite cuda [--only TEXT] [--pairs N] [--json]

gpus.py describes the timing. llama.cpp is the `llama-bench` in PATH or of --llama-bench, built with
-DGGML_CUDA=ON. It runs all layers on the GPU, with flash attention, and prompts in one batch. Files
that are missing in --models-dir are made, and removed afterwards. This needs a Python with gguf and
numpy (--python), and 60 GB for the largest file.
"""
import sys

import gpus
import suite
from gpus import Configuration

LLAMA_OPTIONS = ("-ngl", "99", "-fa", "1", "-b", "2048", "-ub", "2048")


def configurations():
    four_bits = [("qwen3-0.6b", "q4_0"), ("llama-3.2-1b", "q4_0"), ("llama-3.2-3b", "q4_0"), ("qwen3-8b", "q4_k"), ("qwen3-30b-a3b", "q4_0")]
    return [Configuration(name, kind) for name, four in four_bits for kind in (four, "q8_0", "bf16")]


def measure(ingle, a):
    of_ingle = gpus.IngleOnGpu(ingle, a.device or "cuda")
    engines = [of_ingle, *gpus.engines_in_path([gpus.LlamaBench(a.llama_bench, *LLAMA_OPTIONS)])]
    rows = []
    for c in gpus.chosen(configurations(), a.only):
        path = of_ingle.model(a.models_dir, c)
        is_ours = not path.exists()
        if is_ours:
            suite.make(path, a.python or sys.executable, c.name, c.gguf)
        try:
            rows += gpus.measure(engines, c, a.models_dir, a.pairs)
        finally:
            if is_ours:
                path.unlink()
    return rows
