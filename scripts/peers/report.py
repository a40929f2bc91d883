"""The results as Markdown, JSON and a chart."""
import datetime
import html
import platform
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass
class Run:
    machine: str
    threads: int
    pairs: int
    versions: dict
    n_prompt: int
    n_gen: int
    results: list
    extras: list


def machine():
    """The CPU and its instruction sets."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    fields = {k.strip(): v.strip() for k, v in fields.items()}
    flags = set(fields.get("flags", "").split())
    sets = [name for flag, name in (("avx2", "AVX2"), ("avx_vnni", "AVX-VNNI"), ("avx512f", "AVX-512"), ("avx512_vnni", "VNNI"),
                                    ("avx512_bf16", "BF16"), ("amx_int8", "AMX")) if flag in flags]
    family = f"family {fields.get('cpu family')}, model {fields.get('model')}"
    return f"{fields.get('model name', platform.machine())} ({family}; {', '.join(sets)}), {sum(l.startswith('processor') for l in text.splitlines())} cores"


def as_json(run):
    return {**asdict(run), "date": datetime.date.today().isoformat()}


def heading(run):
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return f"{run.machine}; {versions}; {datetime.date.today()}; {run.threads} threads, median of {run.pairs} alternating pairs"


def markdown(run):
    """The table of files, and the table of additional results."""
    lines = [
        textwrap.fill(heading(run) + ".", 100) + "\n",
        f"| file (sha256) | prefill {run.n_prompt} tok/s: Ingle | llama.cpp | ratio | target | of the arithmetic | "
        f"decode {run.n_gen} tok/s: Ingle | llama.cpp | ratio | target | of the bandwidth |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in run.results:
        cells = [f"{r['title']} ({r['sha256'][:8]})"]
        for k in (0, 1):
            target = f"{r['targets'][k]}x" if r["targets"] else "–"
            cells += [speed(r["ingle"][k]), speed(r["peer"][k]), f"**{r['ratio'][k]:.2f}x**", target, f"{100 * r['shares'][k]:.0f} %"]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| measurement | result |", "|---|---|"] + [f"| {what} | {value} |" for what, value in run.extras]
    return "\n".join(lines) + "\n"


def speed(tokens):
    return f"{tokens:.0f}" if tokens >= 100 else f"{tokens:.1f}"


def page(run):
    return f"""# Ingle and its peers on a CPU

This page is written by `python3 scripts/peers --suite`. Logs of experiments are in
`crates/device-cpu/src/kernels/NOTES.md` and `linear/NOTES.md`.

A ratio above 1 means that Ingle is faster. On a shared machine, only ratios of one run are meaningful.
"of the arithmetic" is the share of the int8 peak (of BF16's or f32's peak for files of floats), and "of
the bandwidth" the share of the read bandwidth. Both peaks are measured in the same process.
[peers-batches.md](peers-batches.md) has batches of sequences.

![ratios](peers.svg)

{markdown(run)}"""


def chart(run):
    """A chart with two bars of ratios for each file, a line at llama.cpp's 1, and a mark at each
    target.
    """
    row, left, scale, top = 46, 250, 70, 60
    width = left + int(scale * max([8] + [max(r["ratio"]) for r in run.results])) + 60
    height = top + row * len(run.results) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="10" y="20" font-size="15">Times as fast as llama.cpp: prefill (dark) and decode (light)</text>',
        f'<text x="10" y="40" fill="#666" font-size="10">{html.escape(heading(run))}</text>',
    ]
    for i, r in enumerate(run.results):
        y = top + row * i
        out.append(f'<text x="{left - 8}" y="{y + 22}" text-anchor="end">{html.escape(r["title"])}</text>')
        for k, colour in ((0, "#9a3412"), (1, "#fb923c")):
            length, at = scale * r["ratio"][k], y + 4 + 16 * k
            out.append(f'<rect x="{left}" y="{at}" width="{length:.1f}" height="14" fill="{colour}"/>')
            out.append(f'<text x="{left + length + 4:.1f}" y="{at + 11}">{r["ratio"][k]:.2f}</text>')
            if r["targets"]:
                mark = left + scale * r["targets"][k]
                out.append(f'<line x1="{mark:.1f}" x2="{mark:.1f}" y1="{at}" y2="{at + 14}" stroke="black" stroke-width="2"/>')
    out.append(f'<line x1="{left + scale}" x2="{left + scale}" y1="{top}" y2="{height - 24}" stroke="#444" stroke-dasharray="4 3"/>')
    out.append(f'<text x="{left}" y="{height - 8}" fill="#666">dashed: llama.cpp = 1; black marks: targets</text>')
    return "\n".join(out + ["</svg>\n"])
