#!/usr/bin/env python3
"""Exports fixtures to GGUF with Ingle, and compares both engines' logits of the same file.

    python3 scripts/peers/logits.py --ingle target/release/ingle [MODEL_FOLDER ...]
    needs: pip install llama-cpp-python numpy (LLAMA_CPP_LIB_PATH names a llama.cpp built elsewhere)

The default models are all decoders of fixtures/models. Each is converted to F32 and run with its
fixture's tokens: by Ingle's interpreter and CPU with F32 keys and values, and by llama.cpp in one
batch without flash attention, which computes in F16. The table has the largest difference over all
positions, in standard deviations of the logits, and the first position beyond --bound. In a model
with a window, that is the position at which a window matters. If one of the engines refuses a
model, its row has the reason. The exit status is 1 if a family that both run is beyond the bound.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
# Encoders, speech models, rerankers and vision models, which have no logits of text alone.
OTHERS = {"bert", "modernbert", "xlm_roberta", "xlm_roberta_reranker", "nomic_bert", "embedding_gemma", "qwen3_embedding",
          "qwen3_reranker", "whisper", "smolvlm", "gemma3_vl", "gemma4_vl",
          "gemma4_moe_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5_vl"}


def run(command):
    """The output of a command, or the last line of its error."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        raise RuntimeError(lines[0])
    return done.stdout


def of_ingle(binary, path, tokens, device):
    """Ingle's logits, `(n, n_vocab)`."""
    n_vocab = 1 << 20
    text = run([binary, "logits", path, "--tokens", ",".join(map(str, tokens)), "--kv-type", "f32", "--device", device, "--top",
                n_vocab, "--ctx", len(tokens) + 1, "--json"])
    top = json.loads(text)["top"]
    rows = np.full((len(top), max(token for token, *_ in top[0]) + 1), np.nan)
    for row, best in zip(rows, top):
        for token, logit, _ in best:
            row[token] = logit
    return rows


def of_llama(path, tokens):
    """llama.cpp's logits, computed in this process. Callers start a process for this, because
    llama.cpp ends its process on some files.
    """
    import ctypes

    import llama_cpp as L

    L.llama_backend_init()
    model = L.llama_model_load_from_file(str(path).encode(), L.llama_model_default_params())
    if not model:
        sys.exit("llama.cpp does not load it")
    params = L.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 512, 512, 512, 1, 1
    params.type_k = params.type_v = L.GGML_TYPE_F32
    params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = L.llama_init_from_model(model, params)
    if not context:
        sys.exit("llama.cpp makes no context for it")
    batch = L.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    if L.llama_decode(context, batch) != 0:
        sys.exit("llama.cpp does not compute it")
    n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    rows = [np.ctypeslib.as_array(ctypes.cast(L.llama_get_logits_ith(context, i), ctypes.POINTER(ctypes.c_float)), (n_vocab,))
            for i in range(len(tokens))]
    print(json.dumps(np.stack(rows).astype(float).tolist()))


def why(lines):
    """llama.cpp's message about a file that it refuses."""
    said = [line for line in lines if "error" in line or "GGML_ASSERT" in line or "Error:" in line]
    return (said or lines[-1:] or ["it ends without a word"])[-1].strip()[:160]


def compare(a, folder, scratch):
    tokens = json.loads((folder / "expected.json").read_text())["input_ids"]
    path = Path(scratch) / f"{folder.name}.gguf"
    try:
        run([a.ingle, "convert", folder, "-o", path, "--to", "gguf:f32", "--requantize"])
        ours = {device: of_ingle(a.ingle, path, tokens, device) for device in ("reference", "cpu")}
    except RuntimeError as error:
        return None, f"Ingle: {error}"
    done = subprocess.run([sys.executable, __file__, "--llama", path, ",".join(map(str, tokens))], capture_output=True, text=True)
    path.unlink()
    if done.returncode != 0:
        return None, f"llama.cpp: {why(done.stderr.splitlines())}"
    theirs = np.array(json.loads(done.stdout.splitlines()[-1]))
    n_vocab = min(theirs.shape[1], ours["reference"].shape[1])
    spread = ours["reference"][:, :n_vocab].std()
    by_row = {device: np.abs(rows[:, :n_vocab] - theirs[:, :n_vocab]).max(1) / spread for device, rows in ours.items()}
    off = {device: rows.max() for device, rows in by_row.items()}
    same = (ours["reference"][:, :n_vocab].argmax(1) == theirs[:, :n_vocab].argmax(1)).mean()
    beyond = np.flatnonzero(~(by_row["reference"] <= a.bound))
    first = f"from position {beyond[0]}" if len(beyond) else ""
    return off, f"{off['reference']:.1e} | {off['cpu']:.1e} | {100 * same:.0f} % | {first}"


def main():
    if sys.argv[1:2] == ["--llama"]:
        return of_llama(sys.argv[2], [int(token) for token in sys.argv[3].split(",")])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folders", nargs="*", type=Path, metavar="MODEL_FOLDER")
    p.add_argument("--ingle", required=True, type=Path)
    p.add_argument("--bound", type=float, default=0.02, help="[%(default)s]")
    a = p.parse_args()
    found = [path.parent for path in sorted((ROOT / "fixtures/models").glob("*/expected.json"))]
    refused, beyond = [], []
    print("| model | the interpreter and llama.cpp | the CPU and llama.cpp | same best token | beyond {} |\n|---|---|---|---|---|".format(a.bound))
    with tempfile.TemporaryDirectory() as scratch:
        for folder in a.folders or [folder for folder in found if folder.name not in OTHERS]:
            off, text = compare(a, folder, scratch)
            if off is None:
                refused.append(f"- {folder.name}: {text}")
                continue
            print(f"| {folder.name} | {text} |", flush=True)
            if not max(off.values()) <= a.bound:
                beyond.append(folder.name)
    if refused:
        print("\nNot compared:\n\n" + "\n".join(refused))
    if beyond:
        print(f"\nbeyond {a.bound}: {', '.join(beyond)}", file=sys.stderr)
    return len(beyond) > 0


if __name__ == "__main__":
    sys.exit(main())
