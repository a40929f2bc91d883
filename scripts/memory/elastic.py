#!/usr/bin/env python3
"""Measures a server while a hog takes memory, returns it, and takes it again, under the load of 16
clients.

    python3 scripts/memory/elastic.py MODEL.gguf --ingle target/release/ingle [--llama llama-server] [--limit 1GiB | --beside]
        [--shares 25,50,75] [--seconds 1,10] [--clients 16] [--max-tokens 256] [--keep 6] [--recover 12] [--threads 2]

With --limit (the default), server and hog share a memory control group with that limit (version 1
or 2). With --beside there is no group: another process first takes the free memory of the machine,
except the reserve and the limit, which server and hog then share. For each share and number of
seconds, the hog takes that share of the server's pools, keeps it, returns it, and takes it again.
`ingle bench-serve --check-solo` sends requests meanwhile, and repeats each of them alone
afterwards; answers that differ are counted. Resident memory is read from /proc, outside the
process.

If llama-server is given, it runs in the same group with the same load and hog.

Prints Markdown tables with a row for each taking, and the counts. The exit status is 1 if a
sequence was lost, an answer changed or a process was killed.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))
from serve import free_port  # noqa: E402

MIB = 1 << 20


def size(text):
    number, unit = re.fullmatch(r"(\d+)([KMGT]?)(?:iB)?", text).groups()
    return int(number) << 10 * " KMGT".index(unit or " ")


class Group:
    """A memory control group with a limit, or the whole machine without one."""

    def __init__(self, limit):
        self.folder = None
        if limit is None:
            return
        groups = [line.strip().split(":", 2) for line in open("/proc/self/cgroup")]
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        name = f"ingle-elastic-{os.getpid()}"
        if v1.is_dir():
            own = next((path for _, controllers, path in groups if "memory" in controllers.split(",")), "/")
            parent = v1 / own.lstrip("/")
            self.folder = (parent if parent.is_dir() else v1) / name
            limit_file = "memory.limit_in_bytes"
        else:
            self.folder = pathlib.Path("/sys/fs/cgroup") / name
            limit_file = "memory.max"
        self.folder.mkdir()
        (self.folder / limit_file).write_text(str(limit))

    def enter(self):
        if self.folder:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self):
        if not self.folder:
            return 0
        for file in ["memory.oom_control", "memory.events"]:
            if (self.folder / file).exists():
                found = re.search(r"oom_kill (\d+)", (self.folder / file).read_text())
                return int(found.group(1)) if found else 0
        return 0

    def free(self):
        """Free bytes, including page cache."""
        if not self.folder:
            text = pathlib.Path("/proc/meminfo").read_text()
            return int(re.search(r"MemAvailable:\s+(\d+)", text).group(1)) * 1024
        names = [("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"), ("memory.max", "memory.current", "")]
        for limit, used, prefix in names:
            if (self.folder / limit).exists():
                stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
                cache = sum(int(stat[f"{prefix}{kind}_file"]) for kind in ["active", "inactive"])
                return int((self.folder / limit).read_text()) - int((self.folder / used).read_text()) + cache

    def remove(self):
        if self.folder:
            for _ in range(50):
                try:
                    self.folder.rmdir()
                    return
                except OSError:
                    time.sleep(0.1)


def swap_used():
    text = pathlib.Path("/proc/meminfo").read_text()
    total, free = (int(re.search(name + r":\s+(\d+)", text).group(1)) for name in ["SwapTotal", "SwapFree"])
    return (total - free) * 1024


def resident(pid):
    """Anonymous memory of a process."""
    fields = pathlib.Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")


class Watch(threading.Thread):
    """Samples every 50 ms: time, resident bytes, tokens, and Ingle's budget."""

    def __init__(self, pid, url, tokens):
        super().__init__(daemon=True)
        self.pid, self.url, self.tokens, self.samples, self.is_over = pid, url, tokens, [], False

    def run(self):
        while not self.is_over:
            try:
                text = urllib.request.urlopen(self.url + "/metrics", timeout=5).read().decode()
                number = lambda name: sum(float(n) for n in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))
                self.samples.append({
                    "at": time.monotonic(), "rss": resident(self.pid), "tokens": number(self.tokens),
                    "budget": number("ingle_memory_budget_bytes"), "held": number("ingle_memory_held_bytes"),
                    "reserve": number("ingle_memory_reserve_bytes"), "booked": number("ingle_memory_booked_bytes"),
                    "floor": number("ingle_memory_floor_bytes"), "running": number("ingle_requests_running"),
                    "parked": number("ingle_requests_parked"),
                })
            except (OSError, ValueError):
                pass
            time.sleep(0.05)

    def last(self):
        return self.samples[-1]

    def between(self, begin, end):
        return [s for s in self.samples if begin <= s["at"] <= end]

    def rate(self, begin, end):
        found = self.between(begin, end)
        if len(found) < 2 or found[-1]["at"] <= found[0]["at"]:
            return 0.0
        return (found[-1]["tokens"] - found[0]["tokens"]) / (found[-1]["at"] - found[0]["at"])


def serve(name, options, group):
    port = free_port()
    if name == "ingle":
        command = [options.ingle, "serve", options.model, "--port", str(port), "-t", str(options.threads), "--slots",
                   str(options.clients), "-c", str(options.context), "--deterministic"]
    else:
        command = [options.llama, "-m", options.model, "--port", str(port), "-t", str(options.threads), "-np",
                   str(options.clients), "-kvu", "-c", str(options.context * options.clients), "--metrics"]
    log = open(f"/tmp/elastic-{name}.log", "w")
    server = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=group.enter)
    url = f"http://127.0.0.1:{port}"
    for _ in range(900):
        try:
            if urllib.request.urlopen(url + "/health").status == 200:
                return server, url
        except OSError:
            time.sleep(0.2)
        if server.poll() is not None:
            break
    sys.exit(f"{name} did not start; see {log.name}")


def scenario(name, options, sizes):
    """Runs the load and the hog. `sizes` are the bytes of each taking, if another server's run has
    set them.
    """
    group = Group(None if options.beside else options.limit)
    kills, swap = group.kills(), swap_used()
    server, url = serve(name, options, group)
    start_hog = lambda: subprocess.Popen([sys.executable, HERE / "hog.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True, preexec_fn=group.enter)
    hog, others = start_hog(), []

    def tell(line, whom=hog):
        try:
            whom.stdin.write(line + "\n")
            whom.stdin.flush()
            return whom.stdout.readline().strip() != ""
        except OSError:
            return False

    if options.beside:
        others.append(start_hog())
        # The kernel should rather kill this process.
        pathlib.Path(f"/proc/{others[0].pid}/oom_score_adj").write_text("1000")
        reserve = 0
        if name == "ingle":
            text = urllib.request.urlopen(url + "/metrics").read().decode()
            reserve = int(float(re.search(r"^ingle_memory_reserve_bytes(?:{[^}]*})? (\S+)$", text, re.M).group(1)))
        ballast = max(0, group.free() - reserve - options.limit)
        tell(f"take {ballast} 20", others[0])
        print(f"{name}: another process holds {ballast / MIB:.0f} MiB, the reserve is {reserve / MIB:.0f}", file=sys.stderr)

    load = [options.ingle, "bench-serve", url, "--json", "--workload", options.workload, "--clients", str(options.clients),
            "--seed", str(options.seed), "--requests", str(options.requests), "--max-tokens", str(options.max_tokens)]
    if name == "ingle":
        load.append("--check-solo")
    bench = subprocess.Popen(load, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch = Watch(server.pid, url, "ingle_tokens_generated_total" if name == "ingle" else "llamacpp:tokens_predicted_total")
    watch.start()
    rows, took = [], []
    plan = [(share, seconds) for share in options.shares for seconds in options.seconds for _ in range(2)]
    time.sleep(options.warm)
    for index, (share, seconds) in enumerate(plan):
        if bench.poll() is not None or server.poll() is not None or not watch.samples:
            break
        before = watch.last()
        rate_before = watch.rate(time.monotonic() - options.keep, time.monotonic())
        if sizes is None:
            spare = max(0, group.free() - int(before["reserve"]))
            elastic = max(0, before["held"] - options.floor)
            wanted = spare + int(share / 100 * elastic)
        else:
            wanted = sizes[index] if index < len(sizes) else 0
        took.append(wanted)
        begun = time.monotonic()
        is_taken = tell(f"take {wanted} {seconds}")
        time.sleep(options.keep)
        during = watch.between(begun, time.monotonic())
        rate_during = watch.rate(begun + seconds, time.monotonic())
        tell("give")
        given = time.monotonic()
        time.sleep(options.recover)
        back = None
        for tenth in range(0, int(10 * options.recover) - 20):
            if watch.rate(given + tenth / 10, given + tenth / 10 + 2) >= 0.9 * rate_before:
                back = tenth / 10
                break

        def longest_above(most):
            """Longest time in which a sample exceeded its `most`."""
            longest, since = 0.0, None
            for sample in during:
                since = (since or sample["at"]) if sample["held"] > most(sample) else None
                longest = max(longest, sample["at"] - since if since else 0.0)
            return longest

        rows.append({
            "share": share, "seconds": seconds, "hog": wanted, "taken": is_taken, "rss_before": before["rss"],
            "rss_least": min((s["rss"] for s in during), default=0), "over_budget": longest_above(lambda s: s["budget"]),
            # Memory of the oldest sequence is kept even beyond the budget, and only it may use the
            # reserve.
            "beyond_promise": longest_above(
                lambda s: max(s["budget"], s["floor"], s["held"] if s["running"] <= 1 else 0)),
            "least_budget": min((s["budget"] for s in during), default=0), "floor": max((s["floor"] for s in during), default=0),
            "rate_before": rate_before, "rate_during": rate_during, "back": back,
            "parked": max((s["parked"] for s in during), default=0),
        })
        print(f"{name}: {rows[-1]}", file=sys.stderr, flush=True)
    out, err = bench.communicate(timeout=options.patience)
    watch.is_over = True
    is_alive = server.poll() is None
    result = {"rows": rows, "sizes": took, "kills": group.kills() - kills, "alive": is_alive, "swap": swap_used() - swap,
              "bench": json.loads(out) if out.strip() else {"error": err[-400:]}}
    for process in [server, hog, *others]:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    group.remove()
    return result


def show(name, result):
    print(f"\n{name}\n")
    print("| hog takes | in s | hog MiB | resident before | least | least budget | floor | over budget, ms | of it beyond the promise | tok/s before | during | parked | 90 % after, s |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for r in result["rows"]:
        back = "-" if r["back"] is None else f"{r['back']:.1f}"
        print(f"| {r['share']} % | {r['seconds']:g} | {r['hog'] / MIB:.0f} | {r['rss_before'] / MIB:.0f} | {r['rss_least'] / MIB:.0f} "
              f"| {r['least_budget'] / MIB:.0f} | {r['floor'] / MIB:.0f} | {1000 * r['over_budget']:.0f} "
              f"| {1000 * r['beyond_promise']:.0f} | {r['rate_before']:.0f} | {r['rate_during']:.0f} | {r['parked']:.0f} | {back} |")
    print(f"\nOOM kills {result['kills']}, server alive {result['alive']}, swap {result['swap'] / MIB:.0f} MiB more")
    print(f"load: {json.dumps(result['bench'])[:1500]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--ingle", default="target/release/ingle")
    parser.add_argument("--llama")
    parser.add_argument("--limit", type=size, default=1 << 30)
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--shares", type=lambda t: [int(n) for n in t.split(",")], default=[25, 50, 75])
    parser.add_argument("--seconds", type=lambda t: [float(n) for n in t.split(",")], default=[1.0, 10.0])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workload", default="sharegpt")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--floor", type=size, default=64 * MIB, help="what the oldest sequence keeps: not the hog's")
    parser.add_argument("--warm", type=float, default=15.0, help="seconds before the hog begins")
    parser.add_argument("--keep", type=float, default=6.0, help="seconds for which it keeps what it took")
    parser.add_argument("--recover", type=float, default=12.0, help="seconds until it comes again")
    parser.add_argument("--patience", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ours = scenario("ingle", options, None)
    show("ingle", ours)
    if options.llama:
        show("llama-server", scenario("llama-server", options, ours["sizes"]))
    bench = ours["bench"] if isinstance(ours["bench"], dict) else ours["bench"][0]
    is_bad = ours["kills"] or not ours["alive"] or "error" in bench or bench.get("errors") or bench.get("killed") or bench.get("different")
    sys.exit(1 if is_bad else 0)


if __name__ == "__main__":
    main()
