"""Helpers of every script in this folder: a running server, named checks, and rows for
docs/clients.md.
"""

import argparse
import importlib.metadata
import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
CHAT, EMBED, SPEECH = "smollm2:135m", "minilm:l6", "whisper:tiny"
KEY = "a key of the tests"

CHECKS = []


class NotRun(Exception):
    """Raised if a check does not apply on this machine, with the reason."""


def check(client, what):
    """Registers a check: `client` is the package's name, `what` a line of the table."""

    def register(function):
        CHECKS.append((client, what, function))
        return function

    return register


def expect(good, found):
    if not good:
        raise AssertionError(f"found {found!r}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(is_ready, seconds, what, process=None):
    """Calls `is_ready` until it is true; an error names `what`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process is not None and process.poll() is not None:
            raise SystemExit(f"{what}: the process has ended with {process.returncode}")
        try:
            if is_ready():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{what}: not within {seconds} s")


def get(url, timeout=10):
    """Status and body of a GET request. An error status raises nothing."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Server:
    """A running `ingle serve`."""

    def __init__(self, binary, *models, options=(), key=KEY, environment=None):
        command = [binary, "serve", *models, "--port", "0", *options]
        if key:
            command += ["--api-key", key]
        self.lines, self.key = [], key
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        found = None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.match(r"listening at (\S+)", line)
            if found:
                break
        if not found:
            raise SystemExit(f"the server did not start: {''.join(self.lines)}")
        self.url = found.group(1)
        # A full pipe would stop the server.
        threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True).start()
        try:
            wait_until(lambda: get(self.url + "/health")[0] == 200, 300, "the server", self.process)
        except SystemExit as error:
            raise SystemExit(f"{error}: {''.join(self.lines)}") from error

    def get(self, path):
        """Status and body of a GET request with the server's key."""
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()

    def stop(self):
        self.process.terminate()
        code = self.process.wait(60)
        if code != 0:
            raise SystemExit(f"the server ended with {code} after SIGTERM: {''.join(self.lines[-20:])}")

    def kill(self):
        self.process.kill()
        self.process.wait()


# Versions of programs that are not Python packages.
VERSIONS = {}


def version(client):
    if client in VERSIONS:
        return VERSIONS[client]
    try:
        return importlib.metadata.version(client)
    except importlib.metadata.PackageNotFoundError:
        return ""


def arguments(description, *more):
    """The options of every script, and those in `more`, as arguments of `add_argument`."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("binary", help="ingle")
    parser.add_argument("--rows", type=pathlib.Path, help="write the outcomes here, a JSON list in each line")
    parser.add_argument("--only", help="only checks of these clients, separated by commas")
    for names, keys in more:
        parser.add_argument(*names, **keys)
    return parser.parse_args()


def run(options, *given):
    """Runs the checks with the arguments `given`; returns the exit status of the process."""
    failed = 0
    rows = options.rows.open("w") if options.rows else None
    for client, what, function in CHECKS:
        if options.only and client not in options.only.split(","):
            continue
        began = time.monotonic()
        try:
            more = function(*given)
            outcome = f"PASS: {more}" if isinstance(more, str) else "PASS"
        except NotRun as reason:
            outcome = f"NOT RUN: {reason}"
        except Exception:
            outcome, failed = "FAIL", failed + 1
            traceback.print_exc()
        print(f"{outcome}  {client}: {what} ({time.monotonic() - began:.1f} s)", flush=True)
        if rows:
            rows.write(json.dumps([client, version(client), what, outcome]) + "\n")
            rows.flush()
    return 1 if failed else 0


def model_file(binary, name):
    """The path of a model's file in the cache, fetched if needed."""
    subprocess.run([binary, "pull", name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = subprocess.run([binary, "list", "--json"], check=True, capture_output=True, text=True)
    return next(model["path"] for model in json.loads(found.stdout) if model["name"] == name)


def in_environment(name):
    """The path of a program in this Python's virtual environment."""
    path = pathlib.Path(sys.executable).parent / name
    if not path.exists():
        raise NotRun(f"{name} is not installed")
    return path
