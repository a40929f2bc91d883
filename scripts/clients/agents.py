#!/usr/bin/env python3
"""Runs agents of other vendors against models that write a script.

    python agents.py target/release/ingle --programs target/clients/agents [--rows FILE] [--only CLIENT]

Claude Code and Codex are installed from npm. Only an address, a model and a key are configured.
Each agent must read a file, edit it, run a command on it, and end. The model's answers are known
(scripted.py). The test is that the agent sends valid requests, understands the answers, and
continues.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import harness
import scripted
from harness import NotRun, check, expect

KEY = "sk-of-the-tests"
# Prompts of agents have some 20,000 tokens, and more with a small vocabulary.
CONTEXT = 131072
PACKAGES = {"claude": "@anthropic-ai/claude-code", "codex": "@openai/codex"}
BEFORE, AFTER = "The sky is grey.", "The sky is blue."


def install(folder):
    """Installs the programs from npm into a folder. The check of a missing program reports it."""
    folder.mkdir(parents=True, exist_ok=True)
    place = lambda package: folder / "node_modules" / package / "package.json"
    missing = [package for package in PACKAGES.values() if not place(package).is_file()]
    if missing and shutil.which("npm"):
        npm = ["npm", "install", "--prefix", folder, "--no-fund", "--no-audit", *missing]
        subprocess.run(npm, check=False, stdout=subprocess.DEVNULL)
    for name, package in PACKAGES.items():
        if place(package).is_file():
            harness.VERSIONS[name] = json.loads(place(package).read_text())["version"]


def program(options, name):
    path = options.programs / "node_modules" / ".bin" / name
    if not path.exists():
        raise NotRun(f"npm cannot install {PACKAGES[name]} here")
    return path


class Work:
    """A folder with a file to work on, and a home folder for the agent."""

    def __init__(self, name):
        self.held = tempfile.TemporaryDirectory(prefix=f"ingle-{name}-", ignore_cleanup_errors=True)
        self.root = pathlib.Path(self.held.name)
        self.folder, self.home = self.root / "work", self.root / "home"
        self.folder.mkdir()
        self.home.mkdir()
        (self.folder / "notes.txt").write_text(BEFORE + "\n")

    def path(self, name):
        return str(self.folder / name)

    def run(self, command, **environment):
        kept = {key: os.environ[key] for key in ["PATH", "LANG", "TERM"] if key in os.environ}
        done = subprocess.run(
            command, cwd=self.folder, env={**kept, "HOME": str(self.home), **environment}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=580,
        )
        expect(done.returncode == 0, (done.returncode, done.stdout[-3000:], done.stderr[-3000:]))
        return done.stdout

    def check(self):
        """Checks that the file was edited, and that the command ran on the edited file."""
        expect((self.folder / "notes.txt").read_text() == AFTER + "\n", (self.folder / "notes.txt").read_text())
        expect((self.folder / "loud.txt").read_text() == AFTER.upper() + "\n", "no loud.txt")


def serve(binary, work, model, answers):
    """A server of a model that writes these answers in turn."""
    file, config = work.root / "model.gguf", work.root / "models.toml"
    scripted.write(file, answers, CONTEXT)
    config.write_text(f'[[models]]\nname = "{model}"\nsource = "{file}"\nctx = {CONTEXT}\n')
    return harness.Server(binary, options=["--config", config, "--no-warmup"], key=KEY)


def computed(server):
    """Number of prompt tokens that were computed, without cached ones."""
    lines = server.get("/metrics")[1].splitlines()
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("ingle_tokens_computed_total{"))


COMMAND = "tr a-z A-Z < notes.txt > loud.txt"


@check("claude", "Claude Code reads a file, edits it, runs a command and ends")
def _(options):
    agent, work = program(options, "claude"), Work("claude")
    notes = work.path("notes.txt")
    server = serve(options.binary, work, "scripted", [
        "I will look at the file.\n" + scripted.call("Read", file_path=notes),
        scripted.call("Edit", file_path=notes, old_string=BEFORE, new_string=AFTER),
        "Now its letters.\n" + scripted.call("Bash", command=COMMAND, description="Write it in capitals"),
        "The file has been edited.",
    ])
    try:
        command = [agent, "-p", "--allowedTools", "Read Edit Bash", "--"]
        environment = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_MODEL": "scripted"}
        said = work.run([*command, "Edit the notes."], **environment)
        work.check()
        expect(said.strip() == "The file has been edited.", said)
        # A second conversation has another accounting header, and its tools are cached.
        first = computed(server)
        (work.folder / "notes.txt").write_text(BEFORE + "\n")
        work.run([*command, "Please do edit my notes once more."], **environment)
        work.check()
        second = computed(server) - first
    finally:
        server.stop()
    expect(second < first / 3, (first, second))
    return f"{first} prompt tokens were computed, and {second} for a second conversation"


def codex(options, model, answers):
    """Runs Codex with a model that writes these answers. Returns Codex's record of the
    conversation, with the results of tools.
    """
    agent, work = program(options, "codex"), Work("codex")
    server = serve(options.binary, work, model, answers(work))
    try:
        provider = {"name": "Ingle", "base_url": server.url + "/v1", "env_key": "INGLE_KEY", "wire_api": "responses"}
        settings = [f"model_providers.ingle.{key}={json.dumps(value)}" for key, value in provider.items()]
        settings += ['model_provider="ingle"', f"model={json.dumps(model)}"]
        command = [agent, "exec", "--json", "--skip-git-repo-check"]
        command += ["--dangerously-bypass-approvals-and-sandbox", *(word for setting in settings for word in ["-c", setting])]
        said = work.run([*command, "Edit the notes."], INGLE_KEY=KEY)
    finally:
        server.stop()
    work.check()
    events = [json.loads(line) for line in said.splitlines()]
    last = [event["item"] for event in events if event["type"] == "item.completed"][-1]
    expect((last["type"], last["text"]) == ("agent_message", "The notes are edited."), last)
    kept = [path.read_text() for path in (work.home / ".codex" / "sessions").rglob("*.jsonl")]
    expect(len(kept) == 1, len(kept))
    return kept[0]


PATCH = f"*** Begin Patch\n*** Update File: notes.txt\n@@\n-{BEFORE}\n+{AFTER}\n*** End Patch"


@check("codex", "Codex reads a file, calls a tool of a namespace, edits, runs a command and ends")
def _(options):
    kept = codex(options, "scripted", lambda work: [
        "I will look at the file.\n" + scripted.call("exec_command", cmd="cat notes.txt"),
        scripted.call("multi_agent_v1__close_agent", target="nobody"),
        scripted.call("exec_command", cmd=f"apply_patch <<'EOF'\n{PATCH}\nEOF\n"),
        scripted.call("exec_command", cmd=COMMAND),
        "The notes are edited.",
    ])
    expect("unsupported call" not in kept and '"namespace":"multi_agent_v1"' in kept, kept)


@check("codex", "Codex with a model that edits by a custom tool")
def _(options):
    kept = codex(options, "gpt-5.5", lambda work: [
        scripted.call("exec_command", cmd="cat notes.txt"),
        scripted.call("apply_patch", input=PATCH),
        scripted.call("exec_command", cmd=COMMAND),
        "The notes are edited.",
    ])
    expect("unsupported call" not in kept, kept)


@check("codex", "Codex with a model that writes programs, with tools inside the conversation")
def _(options):
    run = lambda what: scripted.call("exec", input=f"const done = await {what};\ntext(done);\n")
    kept = codex(options, "gpt-6-sol", lambda work: [
        run(f"tools.exec_command({json.dumps({'cmd': 'cat notes.txt'})})"),
        run(f"tools.apply_patch({json.dumps(PATCH)})"),
        run(f"tools.exec_command({json.dumps({'cmd': COMMAND})})"),
        "The notes are edited.",
    ])
    expect("unsupported call" not in kept, kept)


if __name__ == "__main__":
    where = (["--programs"], {"type": pathlib.Path, "required": True, "help": "what npm installs goes here"})
    options = harness.arguments(__doc__, where)
    options.programs = options.programs.resolve()
    install(options.programs)
    sys.exit(harness.run(options, options))
