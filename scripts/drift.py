#!/usr/bin/env python3
"""Measures the drift of decoding over many steps. The exact result is transformers in f64, and
transformers in f32 shows the expected error.

    python3 scripts/drift.py --ingle target/release/ingle [--steps 10000] [--devices cpu,reference] [MODEL_FOLDER ...]
    needs: pip install torch transformers

The default models are the recurrent families of fixtures/models. Each model gets the same random
tokens one by one, as in decode. The logits of the last positions are compared at the five best
tokens of f64. A Markdown table has the largest and the RMS difference over the last tenth of the
steps, and over the first tenth, to show a trend.
"""
import argparse
import inspect
import json
import subprocess
from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
RECURRENT = ["falcon_h1", "granitemoehybrid", "granitemoehybrid_dense", "kimi_linear", "lfm2", "lfm2_moe", "mamba2", "nemotron_h",
             "nemotron_h_latent", "nemotron_h_moe", "qwen3_5", "qwen3_5_moe", "qwen3_next"]


def steps_of(folder, tokens, dtype):
    """Logits `(steps, vocabulary)`, one token at a time with a cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
    names = (torch.float32, torch.float, torch.Tensor.float)
    if dtype == torch.float64:
        # transformers casts norms, gates, states and angles to torch.float32. From here on the name
        # means f64.
        torch.float32, torch.float, torch.Tensor.float = torch.float64, torch.float64, torch.Tensor.double
        for module in model.modules():
            if hasattr(module, "inv_freq"):
                module.inv_freq = module.compute_default_rope_parameters(model.config.get_text_config())[0]
    try:
        # Models without attention have another name for the cache.
        name = next(name for name in ("cache", "past_key_values") if name in inspect.signature(model.forward).parameters)
        cache, rows = None, []
        with torch.no_grad():
            for token in tokens:
                answer = model(input_ids=torch.tensor([[token]]), use_cache=True, **{name: cache})
                cache = answer[name]
                rows.append(answer.logits[0, -1].numpy().astype(np.float64))
    finally:
        torch.float32, torch.float, torch.Tensor.float = names
    return np.stack(rows)


def ingle(binary, folder, tokens, device, n_vocab):
    text = subprocess.run(
        [binary, "logits", folder, "--tokens", ",".join(map(str, tokens)), "--chunk", "1", "--ctx", str(len(tokens) + 1), "--kv-type",
         "f32", "--device", device, "--top", str(n_vocab), "--json"], check=True, capture_output=True, text=True).stdout
    rows = np.full((len(tokens), n_vocab), np.nan)
    for row, top in zip(rows, json.loads(text)["top"]):
        for token, logit, _ in top:
            row[token] = logit
    return rows


def difference(right, rows, where):
    """Largest and RMS difference at the five best tokens of `right`."""
    best = np.argsort(-right[where], axis=1)[:, :5]
    off = np.take_along_axis(rows[where], best, 1) - np.take_along_axis(right[where], best, 1)
    return f"{np.abs(off).max():.1e}, {np.sqrt((off**2).mean()):.1e}"


def main():
    p = argparse.ArgumentParser(prog="drift", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folders", nargs="*", type=Path, metavar="MODEL_FOLDER")
    p.add_argument("--ingle", required=True, type=Path)
    p.add_argument("--steps", type=int, default=10_000, help="[%(default)s]")
    p.add_argument("--devices", default="cpu,reference", help="[%(default)s]")
    p.add_argument("--seed", type=int, default=1, help="[%(default)s]")
    a = p.parse_args()
    torch.set_num_threads(1)
    first, last = slice(0, a.steps // 10), slice(-(a.steps // 10), None)
    print("| model | by | first tenth: largest, RMS | last tenth: largest, RMS |\n|---|---|---|---|")
    for folder in a.folders or [ROOT / "fixtures/models" / name for name in RECURRENT]:
        config = json.loads((folder / "config.json").read_text())
        n_vocab = config.get("text_config", config)["vocab_size"]
        tokens = np.random.default_rng(a.seed).integers(3, n_vocab, a.steps).tolist()
        right = steps_of(folder, tokens, torch.float64)
        found = {"transformers, f32": steps_of(folder, tokens, torch.float32)}
        for device in a.devices.split(","):
            found[f"Ingle, {device}"] = ingle(a.ingle, folder, tokens, device, n_vocab)
        for by, rows in found.items():
            print(f"| {folder.name} | {by} | {difference(right, rows, first)} | {difference(right, rows, last)} |", flush=True)


if __name__ == "__main__":
    main()
