#!/usr/bin/env python3
"""Runs clients of other projects against a real server: `cargo xtask clients`.

    python3 scripts/clients target/release/ingle [--table FILE] [--only GROUP,GROUP] [--environments FOLDER]

Each group has its own virtual environment, made from the group's requirements, because the
dependencies of groups contradict each other. The table has a row for each check, and keeps the old
rows of groups that did not run. The table is written only after every group has run once with these
environments. Otherwise `--only` in a fresh clone, such as in continuous integration, would empty
it.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent

# Group (also the name of its requirements), script, further arguments.
GROUPS = [
    ("official", "official.py", ["--only", "openai,openai (node),anthropic,ollama"]),
    ("built_on", "official.py", ["--only", "litellm,instructor"]),
    ("agents", "agents.py", []),
    ("openapi", "openapi.py", []),
    ("page", "page.py", []),
    ("evaluate_inspect", "evaluate_inspect.py", []),
    ("evaluate_lm", "evaluate_lm.py", []),
    ("llama_server", "llama_server.py", []),
    ("masks", "masks.py", []),
    ("load", "load.py", []),
    ("routers", "routers.py", ["--only", "vllm-router,sglang-router"]),
    ("ray", "routers.py", ["--only", "ray"]),
    ("dynamo", "routers.py", ["--only", "ai-dynamo"]),
]

HEAD = """# Clients

This page is written by `cargo xtask clients`. Clients of other projects run against `ingle serve` with
SmolLM2, MiniLM and Whisper. Agents run against models that write a script.

| client | version | what it does | outcome |
|---|---|---|---|
"""


def environment(folder, group):
    """The Python of a virtual environment with the group's requirements."""
    requirements = HERE / f"{group}.txt"
    home = folder / group
    python = home / "bin" / "python"
    done = home / "requirements.txt"
    if not (done.is_file() and done.read_text() == requirements.read_text()):
        shutil.rmtree(home, ignore_errors=True)
        # On Debian, `venv` needs another package for its pip, so the system's pip installs one.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
        subprocess.run([*install, "pip", "-r", requirements], check=True)
        # These packages require others that no registry has, but work without them.
        alone = HERE / f"{group}.no-deps.txt"
        if alone.is_file():
            subprocess.run([*install, "--no-deps", "-r", alone], check=True)
        done.write_text(requirements.read_text())
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", help="ingle")
    parser.add_argument("--table", type=pathlib.Path, help="write the outcomes here, as tables in Markdown")
    parser.add_argument("--only", help="only these groups")
    parser.add_argument("--masks", type=pathlib.Path, default=pathlib.Path("target/release/examples/masks"), help="the example of ingle-text")
    parser.add_argument("--environments", type=pathlib.Path, default=pathlib.Path("target/clients"))
    options = parser.parse_args()
    only = options.only.split(",") if options.only else [name for name, _, _ in GROUPS]
    folder = options.environments.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    found = json.loads((folder / "rows.json").read_text()) if (folder / "rows.json").is_file() else {}
    failed = []
    for name, script, more in GROUPS:
        if name not in only:
            continue
        began = time.monotonic()
        rows = folder / f"{name}.jsonl"
        rows.unlink(missing_ok=True)
        try:
            python = environment(folder, name)
        except subprocess.CalledProcessError as error:
            print(f"{name}: its packages cannot be installed here: {error}", flush=True)
            found[name] = [[name, "", "", "NOT RUN: its packages cannot be installed here"]]
            failed.append(name)
            continue
        if name == "official" and shutil.which("node"):
            more = [*more, "--node", "node"]
        if name == "agents":
            more = ["--programs", folder / "agents" / "npm"]
        if name == "masks":
            more = ["--example", options.masks]
        done = subprocess.run([python, HERE / script, options.binary, "--rows", rows, *more])
        print(f"{name}: status {done.returncode} after {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode != 0:
            failed.append(name)
        if rows.is_file():
            found[name] = [json.loads(line) for line in rows.read_text().splitlines()]
        (folder / "rows.json").write_text(json.dumps(found))
    if options.table and all(name in found for name, _, _ in GROUPS):
        cell = lambda text: " ".join(str(text).split()).replace("|", "\\|")
        lines = ["| " + " | ".join(map(cell, row)) + " |" for name, _, _ in GROUPS for row in found.get(name, [])]
        options.table.write_text(HEAD + "\n".join(lines) + "\n")
    if failed:
        print("failed: " + ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
