"""Alternating pairs of runs, and the median of their ratios."""
import hashlib
import statistics
import sys
from pathlib import Path


def text_pairs(ingle, llama, model, n_prompt, n_gen, n_pairs, entry=None):
    """Prefill and generation of both engines on one file."""
    title = entry.title if entry else Path(model).name
    pairs = []
    for _ in range(n_pairs):
        theirs = llama.bench(model, n_prompt, n_gen)
        rows = ingle.bench(model, n_prompt, n_gen)
        prefill = next(r for r in rows if r["n_gen"] == 0)
        decode = next(r for r in rows if r["n_gen"] > 0)
        ours = [prefill["avg_ts"], decode["avg_ts"]]
        pairs.append({"ingle": ours, "peer": theirs, "shares": [prefill["share_of_peak"], decode["share_of_peak"]]})
        print(f"{title}: prefill {ours[0]:.0f} / {theirs[0]:.0f}, decode {ours[1]:.1f} / {theirs[1]:.1f} tok/s, "
              f"{100 * pairs[-1]['shares'][0]:.0f} % of arithmetic, {100 * pairs[-1]['shares'][1]:.0f} % of bandwidth", file=sys.stderr)
    median = lambda what: [statistics.median(what(q, k) for q in pairs) for k in (0, 1)]
    return {
        "title": title,
        "targets": [entry.prefill_target, entry.decode_target] if entry else None,
        "sha256": sha256(model),
        "ratio": median(lambda q, k: q["ingle"][k] / q["peer"][k]),
        "ingle": median(lambda q, k: q["ingle"][k]),
        "peer": median(lambda q, k: q["peer"][k]),
        "shares": median(lambda q, k: q["shares"][k]),
        "pairs": pairs,
    }


def time_pairs(title, ours, theirs, n_pairs):
    """Compares two functions that return seconds; returns the factor by which Ingle is faster."""
    pairs = []
    for _ in range(n_pairs):
        pairs.append([theirs(), ours()])
        print(f"{title}: {pairs[-1][1]:.3f} / {pairs[-1][0]:.3f} s", file=sys.stderr)
    return {
        "title": title,
        "ratio": statistics.median(t / o for t, o in pairs),
        "ingle": statistics.median(o for _, o in pairs),
        "peer": statistics.median(t for t, _ in pairs),
    }


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
