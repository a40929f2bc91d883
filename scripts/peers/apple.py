"""Compares Ingle, llama.cpp, mlx-lm and uzu on a Mac, with the configurations that they publish.

    python3 scripts/peers --suite apple [--only TEXT] [--pairs N] [--json]

gpus.py describes the timing. Engines are searched in PATH: `llama-bench`, `mlx_lm.benchmark`,
`uzu`. --llama-bench, --mlx and --uzu name other programs, by which Linux tests this file with
stubs.

Models are folders and files in --models-dir: NAME-TYPE.gguf for Ingle and llama.cpp, NAME-mlx-BITS
for mlx-lm and Ingle, NAME-uzu for uzu.
"""
import json
import re
import tempfile
from pathlib import Path

import gpus
from engines import output
from gpus import Configuration, key


def configurations():
    all_of = [Configuration(f"qwen3-{size}", kind) for size in ("0.6b", "1.7b", "4b", "8b") for kind in ("q4_0", "q8_0")]
    all_of += [Configuration(f"llama-3.2-{size}", kind) for size in ("1b", "3b") for kind in ("q4_0", "q8_0")]
    all_of += [Configuration(name, kind) for name in ("qwen3-30b-a3b", "gemma-4-e2b", "gemma-4-26b-a4b") for kind in ("q4_0", "q8_0")]
    all_of += [Configuration("qwen3-0.6b", kind) for kind in ("q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k", "bf16")]
    all_of += [Configuration("qwen3-0.6b", mlx=bits) for bits in (3, 4, 6, 8)]
    return all_of


class Mlx:
    title = "mlx-lm"

    def __init__(self, program):
        self.program = program

    def model(self, folder, c):
        # Four and eight bits mean the GGUF types with these bits.
        bits = c.mlx or {"q4_0": 4, "q8_0": 8}.get(c.gguf)
        return folder / f"{c.name}-mlx-{bits}" if bits else None

    def run(self, model, n_prompt, n_gen):
        text = output([self.program, "--model", model, "-p", n_prompt or 1, "-g", n_gen or 1, "-n", 1])
        found = {name: float(value) for name, value in re.findall(r"(prompt_tps|generation_tps)=([\d.]+)", text)}
        if n_prompt:
            return {key(n_prompt, 0): found["prompt_tps"]}
        return {key(0, n_gen): found["generation_tps"]}


class Uzu:
    """`uzu bench MODEL TASK RESULT`. Its prompts are texts, so a prompt of `n` words stands for `n`
    tokens.
    """

    title = "uzu"

    def __init__(self, program):
        self.program = program

    def model(self, folder, c):
        return folder / f"{c.name}-uzu" if c.gguf == "q4_0" else None

    def run(self, model, n_prompt, n_gen):
        with tempfile.TemporaryDirectory() as folder:
            task, result = Path(folder) / "task.json", Path(folder) / "result.json"
            words = " ".join(["the"] * max(n_prompt, 1))
            task.write_text(json.dumps({
                "identifier": "ingle-peers", "repo_id": model.name, "number_of_runs": 1, "tokens_limit": max(n_gen, 1),
                "messages": [{"role": "user", "content": words}], "greedy": True,
            }))
            output([self.program, "bench", model, task, result])
            row = json.loads(result.read_text())[0]
        if n_prompt:
            return {key(n_prompt, 0): row["prompt_tokens_per_second"]}
        return {key(0, n_gen): row["generate_tokens_per_second"]}


def measure(ingle, a):
    peers = [gpus.LlamaBench(a.llama_bench), Mlx(a.mlx), Uzu(a.uzu)]
    engines = [gpus.IngleOnGpu(ingle, a.device or "metal"), *gpus.engines_in_path(peers)]
    chosen = gpus.chosen(configurations(), a.only)
    return [row for c in chosen for row in gpus.measure(engines, c, a.models_dir, a.pairs)]
