#!/usr/bin/env python3
"""Runs llama.cpp's own server tests against Ingle.

    python llama_server.py target/release/ingle [--rows FILE] [--tests PATTERN] [--beside LLAMA_SERVER] [--all]

The unchanged tests are in the source package of llama-cpp-python. Ingle is started in the place of
llama-server (`llama_server_shim.py`). The tests' model is in no package registry, so SmolLM2
replaces it, and `llama_server_plugin.py` skips checks that depend on the model's text.
`llama_server_exceptions.txt` lists tests that do not apply, with reasons; `--all` runs them, too.
`--beside` runs the real llama-server with the same models, to find failures of the model.
"""

import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import harness
from harness import CHAT, EMBED, HERE

VERSION = "0.3.36"
INSIDE = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/"


def sources(folder):
    """Unpacks llama.cpp's tests and chat templates below `folder`."""
    root = folder / "llama.cpp"
    if root.is_dir():
        return root
    folder.mkdir(exist_ok=True)
    # Only this package is needed as source; its build dependencies may be wheels.
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", folder,
         f"llama-cpp-python=={VERSION}"],
        check=True,
    )
    part = folder / "llama.cpp.part"
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(folder / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
        for member in archive:
            path = member.name.removeprefix(INSIDE)
            if member.isfile() and path.startswith(("tools/server/tests/", "models/templates/")):
                target = part / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.extractfile(member).read())
    part.rename(root)
    return root


def main():
    binary = str(pathlib.Path(OPTIONS.binary).resolve())
    folder = pathlib.Path(sys.executable).parent.parent
    tests = sources(folder) / "tools" / "server" / "tests"
    outcomes = folder / "outcomes.jsonl"
    outcomes.unlink(missing_ok=True)
    environment = {
        **os.environ, "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1", "INGLE": binary, "OUTCOMES": str(outcomes),
        "CHAT_MODEL": harness.model_file(binary, CHAT) if OPTIONS.beside else CHAT,
        "EMBED_MODEL": harness.model_file(binary, EMBED) if OPTIONS.beside else EMBED,
        "SHIM_REASON": str(folder / "reason"), "EXCEPTIONS": str(HERE / "llama_server_exceptions.txt"),
        "LLAMA_SERVER_BIN_PATH": str(HERE / "llama_server_shim.py"), "PORT": str(harness.free_port()),
        "LLAMA_SERVER": OPTIONS.beside or "", "ALL": "1" if OPTIONS.all or OPTIONS.beside else "",
    }
    command = [sys.executable, "-m", "pytest", "-p", "llama_server_plugin", "-q", "--tb=short", "-m", "not slow", "unit"]
    if OPTIONS.tests:
        command += ["-k", OPTIONS.tests]
    with (folder / "pytest.log").open("w") as log:
        done = subprocess.run(command, cwd=tests, env=environment, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode > 1:
        raise SystemExit(f"pytest ended with {done.returncode}; see {folder / 'pytest.log'}")
    found = [json.loads(line) for line in outcomes.read_text().splitlines()]
    failed = [(name, reason) for name, outcome, reason in found if outcome == "failed"]
    passed = [name for name, outcome, _ in found if outcome == "passed"]
    skipped = collections.Counter(reason for _, outcome, reason in found if outcome == "skipped")
    for name in passed:
        print("PASS", name)
    for reason, n in skipped.most_common():
        print(f"does not apply ({n}): {reason}")
    for name, reason in failed:
        print("FAIL", name, reason)
    summary = f"{len(passed)} pass, {len(failed)} fail, {sum(skipped.values())} do not apply"
    print(summary)
    if OPTIONS.rows:
        row = ["llama.cpp's server tests", f"llama-cpp-python {VERSION}", "tools/server/tests", ("FAIL: " if failed else "PASS: ") + summary]
        OPTIONS.rows.write_text(json.dumps(row) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    OPTIONS = harness.arguments(
        __doc__,
        (["--tests"], {"help": "only tests that match this, as pytest's -k"}),
        (["--beside"], {"help": "llama-server to run instead of Ingle"}),
        (["--all"], {"action": "store_true", "help": "run the tests that do not apply, too"}),
    )
    sys.exit(main())
