"""Code that the suites for GPUs (apple.py, cuda.py) share: engines that alternate over files, and
tables of their rates.

Each run is a separate process. The first round warms the machine up and is discarded. The result of
a test is the median of the other rounds, with their standard deviation. A missing engine or model
is skipped with a note.
"""
import json
import shutil
import statistics
import sys
from dataclasses import dataclass, field

from engines import output

# Tests: prompts with these numbers of tokens, and 128 generated tokens.
PROMPTS = (128, 512, 1024, 2048)
GENERATED = 128


@dataclass(frozen=True)
class Configuration:
    name: str
    gguf: str = ""  # type in the GGUF file's name
    mlx: int = 0    # bits of MLX's groups of 64

    @property
    def title(self):
        return f"{self.name} {self.gguf.upper() if self.gguf else f'MLX {self.mlx} bits'}"


def key(n_prompt, n_gen):
    return f"pp{n_prompt}" if n_prompt else f"tg{n_gen}"


class IngleOnGpu:
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

    def __init__(self, program, *options):
        self.program, self.options = program, options

    def model(self, folder, c):
        return folder / f"{c.name}-{c.gguf}.gguf" if c.gguf else None

    def run(self, model, n_prompt, n_gen):
        rows = json.loads(output([self.program, "-m", model, "-p", n_prompt, "-n", n_gen, "-r", 1, "-o", "json", *self.options]))
        return {key(row["n_prompt"], row["n_gen"]): row["avg_ts"] for row in rows}


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


def engines_in_path(all_engines):
    """The engines whose program is in PATH."""
    made = []
    for engine in all_engines:
        if shutil.which(engine.program):
            made.append(engine)
        else:
            print(f"{engine.title}: no {engine.program} in PATH; left out", file=sys.stderr)
    return made


def chosen(configurations, only):
    return [c for c in configurations if not only or only.lower() in c.title.lower()]


def measure(all_engines, c, folder, pairs):
    """Rows of one configuration."""
    here, rows = [], []
    for engine in all_engines:
        model = engine.model(folder, c)
        if model is not None and model.exists():
            here.append((engine, model))
        elif model is not None:
            print(f"{engine.title}: no {model.name} in {folder}; left out", file=sys.stderr)
    for n_prompt, n_gen in [*((n, 0) for n in PROMPTS), (0, GENERATED)]:
        of_test = {engine.title: Row(c, engine.title, key(n_prompt, n_gen)) for engine, _ in here}
        # The first round is discarded.
        for number in range(pairs + 1):
            for engine, model in here:
                speed = engine.run(model, n_prompt, n_gen)[key(n_prompt, n_gen)]
                if number > 0:
                    of_test[engine.title].runs.append(speed)
        rows += of_test.values()
    return rows


def as_json(rows):
    return [{"model": r.configuration.title, "engine": r.engine, "test": r.test, "median": r.median(),
             "deviation": r.deviation(), "runs": r.runs} for r in rows]


def markdown(rows):
    lines = ["| model | test | engine | tok/s (median) | ± | of llama.cpp |", "|---|---|---|---|---|---|"]
    llama = {(r.configuration, r.test): r.median() for r in rows if r.engine == LlamaBench.title}
    for r in rows:
        base = llama.get((r.configuration, r.test))
        ratio = f"{r.median() / base:.2f}" if base else ""
        lines.append(f"| {r.configuration.title} | {r.test} | {r.engine} | {r.median():.1f} | {r.deviation():.1f} | {ratio} |")
    return "\n".join(lines)
