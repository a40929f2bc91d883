#!/usr/bin/env python3
"""Runs routers of other projects in front of two instances.

    python routers.py target/release/ingle [--rows FILE] [--only NAME,NAME]

Starts two `ingle serve` and a router, sends streams, hangs up within one, kills an instance, and
checks that requests continue. `routers.txt` has the routers. Ray Serve and Dynamo are started from
docs/deploy, which also has the compose file.
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import harness
from harness import CHAT, HERE, KEY, check, expect, free_port, get, in_environment, wait_until

DEPLOY = HERE.parent.parent / "docs" / "deploy"


class Stream:
    """A streamed chat. Iteration yields its events; `is_whole` is true if the last line was [DONE].
    """

    def __init__(self, url, prompt, max_tokens, **more):
        at = urllib.parse.urlsplit(url)
        body = {"model": CHAT, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "stream": True, **more}
        self.connection = http.client.HTTPConnection(at.hostname, at.port, timeout=120)
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        self.response = self.connection.getresponse()
        self.is_whole = False
        if self.response.status != 200:
            raise AssertionError(f"status {self.response.status}: {self.response.read()[:300]!r}")

    def __iter__(self):
        for line in self.response:
            if line.strip() == b"data: [DONE]":
                self.is_whole = True
            elif line.startswith(b"data: "):
                yield json.loads(line[6:])

    def close(self):
        self.response.close()
        self.connection.close()


def whole(url, prompt, max_tokens, **more):
    """The text of a stream, which must end with [DONE]."""
    stream = Stream(url, prompt, max_tokens, **more)
    text = "".join(choice["delta"].get("content") or "" for event in stream for choice in event.get("choices", []))
    expect(stream.is_whole, f"a stream without [DONE]: {text!r}")
    return text


def metric(server, name):
    """The value of a metric of the instance's only model."""
    request = urllib.request.Request(server.url + "/metrics", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return float(re.search(rf"^{name}\{{.*\}} (\S+)$", answer.read().decode(), re.MULTILINE).group(1))


@contextlib.contextmanager
def instances(binary, n=2):
    """`n` instances of a server, with one slot more than needed."""
    servers = []
    try:
        for _ in range(n):
            servers.append(harness.Server(binary, CHAT, options=["--slots", "8", "-t", "1", "--no-warmup", "-c", "4096"]))
        yield servers
    finally:
        for server in servers:
            server.kill()


@contextlib.contextmanager
def program(command, is_ready, what, environment=None):
    """A running program; its output is shown if the body fails."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            wait_until(is_ready, 180, what, process)
            yield process
        except BaseException:
            log.seek(0)
            print("".join(log.readlines()[-60:]), file=sys.stderr)
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def answers(url):
    """True if a request is answered."""
    try:
        return bool(whole(url, "Hello", 2))
    except (AssertionError, http.client.HTTPException):
        return False


def exercise(url, a, b, kills=True):
    """Runs all checks of a router at `url` in front of `a` and `b`; returns a summary."""
    expect(any(CHAT in model["id"] for model in json.loads(get_with_key(url + "/v1/models"))["data"]), "models")
    # Streams are spread over both instances.
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda n: whole(url, f"Count from {n} upwards, and explain why.", 24, ignore_eos=True), range(12)))
    expect(all(texts), texts)
    shares = [metric(server, "ingle_tokens_generated_total") for server in (a, b)]
    expect(all(shares), f"one instance got everything: {shares}")
    # After a client hangs up, its answer is cancelled.
    before = sum(metric(server, "ingle_tokens_generated_total") for server in (a, b))
    stream = Stream(url, "Tell me a very long story.", 3000, ignore_eos=True)
    for event, _ in zip(stream, range(5)):
        expect(event["choices"], event)
    expect(sum(metric(server, "ingle_requests_running") for server in (a, b)) == 1, "nothing runs")
    stream.close()
    hung_up = time.monotonic()
    wait_until(lambda: not sum(metric(server, "ingle_requests_running") for server in (a, b)), 10, "the hang-up")
    seconds = time.monotonic() - hung_up
    spent = sum(metric(server, "ingle_tokens_generated_total") for server in (a, b)) - before
    expect(spent < 3000, spent)
    seen = f"a hang-up reached the instance after {seconds:.1f} s"
    if not kills:
        return seen
    # After one instance dies, its streams break, other streams continue, and new requests succeed.
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        begun = list(pool.map(lambda n: begin(url, n), range(8)))
        running = [metric(server, "ingle_requests_running") for server in (a, b)]
        expect(all(running), f"one instance runs everything: {running}")
        b.kill()
        ended = list(pool.map(finish, begun))
        expect(sum(ended) == running[0], f"{running} ran, and {sum(ended)} ended as they should")
        outcomes = list(pool.map(lambda n: attempt(url, n), range(24)))
    lost = [outcome for outcome in outcomes if outcome is not True]
    expect(not lost, lost)
    return f"{seen}; after a kill {sum(ended)} of 8 streams continued, and all 24 new requests were answered"


def get_with_key(url):
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def begin(url, n):
    """Starts a stream and waits for its first text; returns the stream and an iterator over the
    rest.
    """
    stream = Stream(url, f"Write a list of {n + 20} animals.", 200, ignore_eos=True)
    events = iter(stream)
    for _, _ in zip(events, range(3)):
        pass
    return stream, events


def finish(begun):
    """True if the stream ended with [DONE]."""
    stream, events = begun
    try:
        for event in events:
            if "error" in event:
                return False
    except (OSError, http.client.HTTPException):
        return False
    return stream.is_whole


def attempt(url, n):
    try:
        return bool(whole(url, f"Name the number {n}.", 8, ignore_eos=True))
    except (AssertionError, OSError, http.client.HTTPException) as error:
        return str(error)


@check("vllm-router", "two instances: streams, a hang-up, a killed instance")
def _(binary):
    with instances(binary) as (a, b):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [
            in_environment("vllm-router"), "--port", port, "--worker-urls", a.url, b.url, "--policy", "round_robin",
            "--prometheus-port", free_port(), "--worker-startup-check-interval", 1,
        ]
        with program(command, lambda: answers(url), "vllm-router"):
            return exercise(url, a, b)


@check("sglang-router", "two instances: streams, a hang-up, a killed instance")
def _(binary):
    with instances(binary) as (a, b):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [
            in_environment("sglang-router"), "launch", "--host", "127.0.0.1", "--port", port, "--worker-urls", a.url, b.url,
            "--policy", "round_robin", "--prometheus-port", free_port(), "--worker-startup-check-interval", 1, "--api-key", KEY,
        ]
        with program(command, lambda: answers(url), "sglang-router"):
            return exercise(url, a, b)


@check("vllm-router", "docs/deploy/compose.yaml: its commands, without containers")
def _(binary):
    import yaml

    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        keys = pathlib.Path(folder) / "keys"
        keys.write_text(KEY + "\n")
        found, urls = [], {}
        for name, service in services.items():
            if not name.startswith("instance"):
                continue
            _, model, *options = [str(keys) if part == "/run/secrets/keys" else part for part in service["command"]]
            server = harness.Server(binary, model, options=[*options, "-t", "1", "--no-warmup", "-c", "4096"], key=None)
            stack.callback(server.kill)
            server.url = server.url.replace("0.0.0.0", "127.0.0.1")
            found.append(server)
            urls[f"http://{name}:8080"] = server.url
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        line = services["router"]["command"][-1].partition("exec ")[2].replace("--port 8000", f"--port {port}")
        for name, at in urls.items():
            line = line.replace(name, at)
        command = line.replace("vllm-router", str(in_environment("vllm-router"))).split()
        command += ["--prometheus-port", free_port(), "--policy", "round_robin"]
        with program(command, lambda: answers(url), "vllm-router"):
            return exercise(url, *found)


@check("ray", "Ray Serve: two replicas, streams, a hang-up, a killed instance")
def _(binary):
    """Ray starts the instances itself, so their processes are searched."""
    port, with_key = free_port(), f"{binary} serve {CHAT} --slots 8 -t 1 --no-warmup -c 4096 --api-key '{KEY}'"
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        environment = {"INGLE": with_key, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder, "PYTHONPATH": str(DEPLOY)}
        ready = pathlib.Path(folder) / "ready"
        command = [sys.executable, "-c", RAY.format(port=port, ready=str(ready))]
        with program(command, ready.exists, "Ray Serve", environment):
            a, b = ray_instances(binary)
            seen = exercise(url, a, b, kills=False)
            b.kill()
            outcomes = []
            # Ray notices within the period of its health checks. Later requests must succeed.
            wait_until(lambda: attempt(url, 1) is True and attempt(url, 2) is True, 60, "Ray Serve after a kill")
            wait_until(lambda: len(ray_instances(binary)) == 2, 120, "a replica in place of the one that died")
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                outcomes = list(pool.map(lambda n: attempt(url, n), range(24)))
            lost = [outcome for outcome in outcomes if outcome is not True]
            expect(not lost, lost)
            return f"{seen}; a killed instance was replaced"


RAY = """
import ray, time
from ray import serve
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
serve.start(http_options={{"host": "127.0.0.1", "port": {port}}})
import ray_serve
serve.run(ray_serve.app)
open({ready!r}, "w").close()
time.sleep(1e6)
"""


class Found:
    """An instance that another program started."""

    def __init__(self, pid, url):
        self.pid, self.url = pid, url

    def kill(self):
        os.kill(self.pid, 9)


def ray_instances(binary):
    """The instances among the children of this process, by their ports."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if command[:2] == [os.fsencode(binary), b"serve"] and KEY.encode() in command:
                found.append(Found(int(entry.name), f"http://127.0.0.1:{listening_port(int(entry.name))}"))
        except (OSError, LookupError):
            continue
    return found


def listening_port(pid):
    """The TCP port that a process listens at."""
    sockets = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            return int(fields[1].rpartition(":")[2], 16)
    raise LookupError(pid)


@check("ai-dynamo", "Dynamo's bridge for text: two instances, streams, a hang-up")
def _(binary):
    with instances(binary) as (a, b), contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environment = {
            "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(folder / "kv"), "DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq",
            "INGLE_KEY": KEY, "DYN_SYSTEM_PORT": "-1",
        }
        for server in (a, b):
            worker = [sys.executable, DEPLOY / "dynamo_worker.py", server.url, CHAT]
            stack.enter_context(program(worker, lambda: True, "Dynamo's worker", environment))
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "dynamo.frontend", "--http-port", port]
        with program(command, lambda: answers(url), "Dynamo's frontend", environment):
            return exercise(url, a, b, kills=False)


if __name__ == "__main__":
    options = harness.arguments(__doc__)
    options.binary = os.path.abspath(options.binary)
    sys.exit(harness.run(options, options.binary))
