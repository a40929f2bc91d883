#!/usr/bin/env python3
"""Memory for keys and values that each engine reserves on a machine, by its own formula.

    python3 scripts/memory/table.py MODEL.gguf --ingle target/release/ingle [--ctx 8192] [--machine GIB] [--others GIB]

Prints a Markdown table of Macs of 8 to 512 GB and of a control group of 4 GiB, or of the one machine of --machine. Each machine is
counted alone, and with other programs that hold --others: by default 6 GiB (a browser and an IDE), or a third of a small machine.

A cell is GiB for keys and values. "over by" is the memory that is missing if the other programs take 4 GiB more later.
docs/memory.md names the origin of each formula. `ingle plan` supplies the sizes of the model.
"""

import argparse
import dataclasses
import json
import os
import subprocess

GIB = 1 << 30


@dataclasses.dataclass
class Machine:
    """Bytes of the machine, and bytes that other programs hold."""

    total: int
    others: int

    def gpu_limit(self) -> int:
        """Bytes that macOS lets a GPU use (recommendedMaxWorkingSetSize), as measured on many Macs."""
        return self.total // 3 * 2 if self.total <= 36 * GIB else self.total // 4 * 3


@dataclasses.dataclass
class Model:
    """Bytes of weights and activations together, bytes of keys and values a token, and the context in tokens."""

    fixed: int
    kv_per_token: int
    context: int


def vllm(machine: Machine, model: Model) -> int:
    """0.9 of all memory less weights and profiled peak; refuses to start if less is free."""
    wanted = machine.total // 10 * 9
    return wanted - model.fixed if machine.total - machine.others >= wanted else 0


def mistralrs(machine: Machine, model: Model) -> int:
    """0.9 of the GPU's limit less the memory in use; other programs do not count."""
    return machine.gpu_limit() // 10 * 9 - model.fixed


def llama_cpp(machine: Machine, model: Model) -> int:
    """The whole context at start, if the GPU's limit has room; other programs do not count."""
    whole = model.kv_per_token * model.context
    return whole if whole <= machine.gpu_limit() - model.fixed else 0


def ingle(machine: Machine, model: Model) -> int:
    """All free memory, minus a reserve of an eighth, which is 64 MiB to 1 GiB."""
    reserve = min(max(machine.total // 8, 64 << 20), GIB)
    return machine.total - machine.others - model.fixed - reserve


# vllm-metal has mistral.rs's formula: 0.9 of the limit less weights and overhead.
ENGINES = {"vLLM": vllm, "mistral.rs": mistralrs, "llama.cpp": llama_cpp, "vllm-metal": mistralrs, "Ingle": ingle}


def cell(name: str, machine: Machine, model: Model) -> str:
    """The outcome of one engine. Ingle returns keys and values when others need memory; the other engines keep theirs."""
    formula = ENGINES[name]
    kv = formula(machine, model)
    if kv <= 0:
        return "does not start"
    later = Machine(machine.total, machine.others + 4 * GIB)
    kept = max(formula(later, model), 0) if name == "Ingle" else kv
    over = model.fixed + kept + later.others - machine.total
    return f"{kv / GIB:.1f}" + (f", over by {over / GIB:.1f}" if over > 0 else "")


def sizes(path: str, binary: str, context: str) -> Model:
    """The sizes of a model on the CPU, from `ingle plan`."""
    command = [binary, "plan", path, "--ctx", context, "--device", "cpu", "--json"]
    plan = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    fixed = max(plan["mapped"] + plan["committed"], os.path.getsize(path))
    return Model(fixed, max(plan["reserved"] // plan["n_ctx"], 1), plan["n_ctx"])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--ingle", default="target/release/ingle")
    parser.add_argument("--ctx", default="8192")
    parser.add_argument("--machine", type=float, metavar="GIB")
    parser.add_argument("--others", type=float, metavar="GIB")
    options = parser.parse_args()
    model = sizes(options.model, options.ingle, options.ctx)
    machines = [(f"Mac, {n} GB", n * GIB) for n in [8, 16, 24, 32, 36, 64, 128, 192, 512]] + [("control group, 4 GiB", 4 * GIB)]
    if options.machine:
        machines = [(f"{options.machine:g} GiB", int(options.machine * GIB))]
    print("| machine | others hold | " + " | ".join(ENGINES) + " |\n|---|--:" + "|--:" * len(ENGINES) + "|")
    for name, total in machines:
        held = min(6 * GIB, total // 3) if options.others is None else int(options.others * GIB)
        for others in [0, held]:
            cells = " | ".join(cell(engine, Machine(total, others), model) for engine in ENGINES)
            print(f"| {name} | {others / GIB:.1f} GiB | {cells} |")


if __name__ == "__main__":
    main()
