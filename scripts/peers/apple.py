"""Ingle, llama.cpp, mlx-lm and uzu on a Mac, over the configurations that they publish.

    python3 scripts/peers --suite apple [--only TEXT] [--pairs N] [--json]

The engines alternate, each run a process of its own; the first round warms the machine and is discarded. The result of a
test is the median of the other rounds, with their standard deviation. An engine that is not installed, or a model that it does
not have, is left out and said so. Engines are found in PATH: `llama-bench`, `mlx_lm.benchmark`, `uzu`; --llama-bench, --mlx and
--uzu name others, which is how Linux tests this file with stubs.

Models are folders and files under --models-dir: NAME-TYPE.gguf for Ingle and llama.cpp, NAME-mlx-BITS for mlx-lm (which Ingle
reads too), NAME-uzu for uzu.
"""
import json
import re
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from engines import output

# Tests: prompts of so many tokens, and 128 generated ones.
PROMPTS = (128, 512, 1024, 2048)
GENERATED = 128


@dataclass(frozen=True)
class Configuration:
    name: str
    gguf: str = ""  # type in the GGUF file's name
    mlx: int = 0    # bits of MLX's groups of 64


def configurations():
    all_of = [Configuration(f"qwen3-{size}", kind) for size in ("0.6b", "1.7b", "4b", "8b") for kind in ("q4_0", "q8_0")]
    all_of += [Configuration(f"llama-3.2-{size}", kind) for size in ("1b", "3b") for kind in ("q4_0", "q8_0")]
    all_of += [Configuration(name, kind) for name in ("qwen3-30b-a3b", "gemma-4-e2b", "gemma-4-26b-a4b") for kind in ("q4_0", "q8_0")]
    all_of += [Configuration("qwen3-0.6b", kind) for kind in ("q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k", "bf16")]
    all_of += [Configuration("qwen3-0.6b", mlx=bits) for bits in (3, 4, 6, 8)]
    return all_of


def key(n_prompt, n_gen):
    return f"pp{n_prompt}" if n_prompt else f"tg{n_gen}"


class IngleMetal:
    title = "ingle"

    def __init__(self, ingle, device):
        self.ingle, self.device = ingle, device

    def model(self, folder, c):
        return folder / (f"{c.name}-{c.gguf}.gguf" if c.gguf else f"{c.name}-mlx-{c.mlx}")

    def run(self, model, n_prompt, n_gen):
        rows = json.loads(self.ingle.run("bench", model, "-p", n_prompt, "-n", n_gen, "-r", 1, "--json", "--device", self.device))
        return {key(row["n_prompt"], row["n_gen"]): row["avg_ts"] for row in rows}


class LlamaBench:
    title = "llama.cpp"

    def __init__(self, program):
        self.program = program

    def model(self, folder, c):
        return folder / f"{c.name}-{c.gguf}.gguf" if c.gguf else None

    def run(self, model, n_prompt, n_gen):
        rows = json.loads(output([self.program, "-m", model, "-p", n_prompt, "-n", n_gen, "-r", 1, "-o", "json"]))
        return {key(row["n_prompt"], row["n_gen"]): row["avg_ts"] for row in rows}


class Mlx:
    title = "mlx-lm"

    def __init__(self, program):
        self.program = program

    def model(self, folder, c):
        # Four and eight bits stand for the GGUF types of as many.
        bits = c.mlx or {"q4_0": 4, "q8_0": 8}.get(c.gguf)
        return folder / f"{c.name}-mlx-{bits}" if bits else None

    def run(self, model, n_prompt, n_gen):
        text = output([self.program, "--model", model, "-p", n_prompt or 1, "-g", n_gen or 1, "-n", 1])
        found = {name: float(value) for name, value in re.findall(r"(prompt_tps|generation_tps)=([\d.]+)", text)}
        if n_prompt:
            return {key(n_prompt, 0): found["prompt_tps"]}
        return {key(0, n_gen): found["generation_tps"]}


class Uzu:
    """`uzu bench MODEL TASK RESULT`; its own prompts are texts, so that a prompt of `n` words stands for `n` tokens."""

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


@dataclass
class Row:
    configuration: Configuration
    engine: str
    test: str
    runs: list = field(default_factory=list)

    def median(self):
        return statistics.median(self.runs)

    def deviation(self):
        return statistics.stdev(self.runs) if len(self.runs) > 1 else 0.0


def engines(ingle, a):
    """Those that are there."""
    made = [IngleMetal(ingle, a.device)]
    for kind, program in ((LlamaBench, a.llama_bench), (Mlx, a.mlx), (Uzu, a.uzu)):
        if shutil.which(program):
            made.append(kind(program))
        else:
            print(f"{kind.title}: no {program} in PATH; left out", file=sys.stderr)
    return made


def measure(ingle, a):
    all_engines, rows = engines(ingle, a), []
    chosen = [c for c in configurations() if not a.only or a.only.lower() in title(c).lower()]
    for c in chosen:
        here = []
        for engine in all_engines:
            model = engine.model(a.models_dir, c)
            if model is not None and model.exists():
                here.append((engine, model))
            elif model is not None:
                print(f"{engine.title}: no {model.name} in {a.models_dir}; left out", file=sys.stderr)
        for n_prompt, n_gen in [*((n, 0) for n in PROMPTS), (0, GENERATED)]:
            of_test = {engine.title: Row(c, engine.title, key(n_prompt, n_gen)) for engine, _ in here}
            # The first round is discarded.
            for number in range(a.pairs + 1):
                for engine, model in here:
                    speed = engine.run(model, n_prompt, n_gen)[key(n_prompt, n_gen)]
                    if number > 0:
                        of_test[engine.title].runs.append(speed)
            rows += of_test.values()
    return rows


def title(c):
    return f"{c.name} {c.gguf.upper() if c.gguf else f'MLX {c.mlx} bits'}"


def as_json(rows):
    return [{"model": title(r.configuration), "engine": r.engine, "test": r.test, "median": r.median(),
             "deviation": r.deviation(), "runs": r.runs} for r in rows]


def markdown(rows):
    lines = ["| model | test | engine | tok/s (median) | ± | of llama.cpp |", "|---|---|---|---|---|---|"]
    llama = {(r.configuration, r.test): r.median() for r in rows if r.engine == LlamaBench.title}
    for r in rows:
        base = llama.get((r.configuration, r.test))
        ratio = f"{r.median() / base:.2f}" if base else ""
        lines.append(f"| {title(r.configuration)} | {r.test} | {r.engine} | {r.median():.1f} | {r.deviation():.1f} | {ratio} |")
    return "\n".join(lines)
