"""The engines, each run in its own process."""
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
VENV = ROOT / "target" / "peers" / "venv"


def output(command, **options):
    """The output of a command; if it fails, its errors are printed."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    return done.stdout


class Ingle:
    def __init__(self, binary, threads):
        self.binary, self.threads = binary, threads
        if not binary:
            self.binary = ROOT / "target" / "release" / ("ingle.exe" if os.name == "nt" else "ingle")
            subprocess.run(["cargo", "build", "--release", "-q", "-p", "ingle-cli"], check=True, cwd=ROOT)

    def run(self, *arguments, **options):
        return output([self.binary, *arguments], **options)

    def pull(self, name):
        return self.run("pull", name).strip()

    def versions(self):
        return {"ingle": self.run("--version").split()[-1]}

    def bench(self, model, n_prompt, n_gen, depth=0, kv_type="i16", repetitions=1):
        """Rows of `ingle bench --json`, including the machine's limits measured in the same process. Each number may be a list with
        commas, whose tests alternate."""
        return json.loads(self.run("bench", model, "-p", n_prompt, "-n", n_gen, "-d", depth, "-r", repetitions, "-t", self.threads,
                                   "--json", "--kv-type", kv_type))


class Peer:
    """A Python package, in a virtual environment of the peers."""

    packages = ()
    probe = ""

    def __init__(self, python, threads):
        self.python, self.threads = python or VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python"), threads
        if not python and not self.python.exists():
            venv.create(VENV, with_pip=True)
        if not python and not self.is_there():
            print(f"installing {', '.join(self.packages)} ...", file=sys.stderr)
            env = {**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON"}
            subprocess.run([str(self.python), "-m", "pip", "install", "-q", *self.packages], check=True, env=env)

    def is_there(self):
        """True if the environment has the packages; one given with --python may not have all."""
        return subprocess.run([str(self.python), "-c", self.probe], capture_output=True).returncode == 0

    def versions(self):
        names = [p.split("=")[0] for p in self.packages]
        code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
        return json.loads(output([self.python, "-c", code, *names]))

    def run(self, *arguments):
        """Runs peer_runs.py inside the environment. Returns its output, parsed as JSON."""
        script = Path(__file__).with_name("peer_runs.py")
        return json.loads(output([self.python, script, *arguments]).splitlines()[-1])


class LlamaCpp(Peer):
    packages = ("llama-cpp-python", "gguf", "numpy")
    probe = "import llama_cpp, gguf, numpy"

    def bench(self, model, n_prompt, n_gen):
        """Tokens per second of one prefill and of one generation."""
        return self.run("llama-cpp", model, n_prompt, n_gen, self.threads)


class FasterWhisper(Peer):
    packages = ("faster-whisper",)
    probe = "import faster_whisper"

    def transcribe(self, folder, audio):
        """Seconds of a transcription in int8, beam 5, with word timestamps, and seconds of loading.
        """
        return self.run("faster-whisper", folder, audio, self.threads)


class SentenceTransformers(Peer):
    packages = ("sentence-transformers",)
    probe = "import sentence_transformers"

    def embed(self, folder, lines):
        """Seconds to embed the lines of a file."""
        return self.run("sentence-transformers", folder, lines, self.threads)
