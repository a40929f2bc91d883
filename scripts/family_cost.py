#!/usr/bin/env python3
"""Counts the code of each model family: lines of its descriptor, and rows of non-standard names;
and the same for image encoders.

    python3 scripts/family_cost.py        prints the tables of docs/families.md
"""
import re
from pathlib import Path

MODEL = Path(__file__).resolve().parent.parent / "crates/model/src"
FAMILIES = (MODEL / "families.rs").read_text()
NAMES = "".join(path.read_text() for path in [MODEL / "names.rs", *sorted((MODEL / "names").glob("*.rs"))])

rows_of = {name: body.count("\n") for name, body in re.findall(r"const (\w+): &\[TensorName\] = &\[(.*?)\n\];", NAMES, re.S)}
shared = {
    name: body for name, body in re.findall(r"\nconst (\w+): ArchDescriptor = ArchDescriptor \{\n(.*?)\n\};", FAMILIES, re.S)
}


def tables(body):
    found = re.search(r"tensors: &\[([^\]]*)\]", body)
    return [table.strip() for table in found.group(1).split(",") if table.strip()] if found else None


users = {}
families = []
for body in re.findall(r"\n    ArchDescriptor \{\n(.*?)\n    \},", FAMILIES, re.S):
    base = re.search(r"\.\.(?:ArchDescriptor::)?(\w+)$", body.strip()).group(1)
    own = tables(body) or tables(shared.get(base, "")) or ["STANDARD"]
    title = re.search(r'title: "([^"]+)"', body).group(1)
    families.append((title, body.count("\n") + 3, base, [table for table in own if table != "STANDARD"]))
    for table in own:
        users.setdefault(table, []).append(title)

print("| family | lines | on | rows of names |")
print("|---|---|---|---|")
for title, lines, base, own in families:
    base = f"{base} ({shared[base].count(chr(10)) + 3} lines)" if base in shared else ""
    names = ", ".join(f"{rows_of.get(t, 0)} {t}" + ("" if len(users[t]) == 1 else f" (of {len(users[t])})") for t in own)
    print(f"| {title} | {lines} | {base} | {names} |")

TOWERS = (MODEL / "vision/descriptor.rs").read_text()
towers = re.findall(r"\nconst (\w+): VisionDescriptor = VisionDescriptor \{\n(.*?)\n\};", TOWERS, re.S)
print("\n| tower | of checkpoints of | lines | on |")
print("|---|---|---|---|")
for name, body in towers:
    kinds = ", ".join(re.findall(r'"([^"]+)"', re.search(r"hf: &\[(.*?)\]", body, re.S).group(1)))
    base = re.search(r"\.\.(\w+)$", body.strip())
    print(f"| {name} | {kinds} | {body.count(chr(10)) + 3} | {base.group(1) if base else ''} |")
