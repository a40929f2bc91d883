#!/usr/bin/env python3
"""Measures how much llama.cpp's GELU table moves the logits of Gemma 4 E2B's fixture.

    python3 scripts/peers/gelu_table.py [LLAMA_JSON]
    needs: pip install torch transformers

llama.cpp reads GELU from a table with F16 inputs and outputs. transformers computes the fixture
with and without such a table, in f32 and in f64, which shows how much the table amplifies rounding.
Differences are in standard deviations of the logits.

LLAMA_JSON is the output of `scripts/peers/logits.py --llama GGUF TOKENS` for the fixture's export.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).resolve().parent.parent.parent / "fixtures/models/gemma4_e2b"
IDS = torch.tensor([json.loads((FOLDER / "expected.json").read_text())["input_ids"]])


class Table(torch.nn.Module):
    def forward(self, x):
        h = x.half().float()
        y = 0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)))
        return torch.where(x <= -10, 0, torch.where(x >= 10, x, y.half().to(x.dtype)))


def logits(dtype, with_table):
    kind = transformers.Gemma4ForCausalLM
    model = kind.from_pretrained(FOLDER, dtype=dtype, attn_implementation="eager").eval()
    for module in model.modules():
        if with_table and hasattr(module, "act_fn"):
            module.act_fn = Table()
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits[0].numpy()


def show(what, a, b, spread):
    off = np.abs(a - b).max(1) / spread
    print(f"{what:45} largest {off.max():.1e}, median of positions {np.median(off):.1e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    exact, table = logits(torch.float32, False), logits(torch.float32, True)
    spread = exact.std()
    show("the table moves logits by", table, exact, spread)
    show("f64 and f32 differ, without the table, by", logits(torch.float64, False), exact, spread)
    show("f64 and f32 differ, with the table, by", logits(torch.float64, True), table, spread)
    if len(sys.argv) > 1:
        theirs = np.array(json.loads(Path(sys.argv[1]).read_text().splitlines()[-1]))[:, : exact.shape[1]]
        show("llama.cpp and transformers differ by", theirs, exact, spread)
        show("llama.cpp and that with the table by", theirs, table, spread)
