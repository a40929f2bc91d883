"""Tests of the suites for GPUs, with stubs in the place of engines: python3 -m unittest discover -s
scripts/peers
"""
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Each appends its name to the log and answers as the engine does; speeds grow from run to run.
COMMON = """#!{python}
import json, sys, pathlib
log = pathlib.Path({log!r})
log.open("a").write("{name}\\n")
n = log.read_text().split().count("{name}")
args = sys.argv[1:]
def of(flag): return int(args[args.index(flag) + 1])
"""
BENCH = """
p, g = of("-p"), of("-n")
print(json.dumps([{"n_prompt": p, "n_gen": 0 if p else g, "avg_ts": 100.0 + n}]))
"""
STUBS = {
    "ingle": BENCH,
    "llama-bench": BENCH,
    "mlx": 'print(f"Trial 1:  prompt_tps={200 + n}.5, generation_tps={n}.25, peak_memory=1.0")\n',
    # Makes a file, or cannot.
    "python": """
if args[1] == "qwen3-8b": sys.exit("no gguf")
pathlib.Path(args[3]).write_text("")
""",
    "uzu": """
task = json.load(open(args[2]))
assert args[0] == "bench" and task["number_of_runs"] == 1
json.dump([{"prompt_tokens_per_second": 300.0 + n, "generate_tokens_per_second": 30.0 + n}], open(args[3], "w"))
""",
}


class Suites(unittest.TestCase):
    def run_suite(self, *arguments, suite="apple", missing=(), code=0):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            log, models = folder / "log", folder / "models"
            log.write_text("")
            models.mkdir()
            for name in ("qwen3-0.6b-q4_0.gguf", "qwen3-0.6b-mlx-4", "qwen3-0.6b-uzu", "qwen3-0.6b-bf16.gguf"):
                (models / name).write_text("")
            for name, text in STUBS.items():
                path = folder / name
                path.write_text(COMMON.format(python=sys.executable, log=str(log), name=name) + text)
                path.chmod(path.stat().st_mode | stat.S_IXUSR)
            command = [sys.executable, str(HERE), "--suite", suite, "--models-dir", str(models), "--ingle", str(folder / "ingle"),
                       "--python", str(folder / "python")]
            for name in ("llama-bench", "mlx", "uzu"):
                command += [f"--{name}", "no-such-program" if name in missing else str(folder / name)]
            done = subprocess.run([*command, *arguments], capture_output=True, text=True, env={**os.environ})
            self.assertEqual(done.returncode, code, done.stderr)
            # Nothing that was made is left.
            self.assertEqual(len(list(models.iterdir())), 4)
            return done.stdout, done.stderr, log.read_text().split()

    def test_engines_alternate_and_the_first_round_is_discarded(self):
        out, errors, log = self.run_suite("--only", "qwen3-0.6b q4_0", "--pairs", "2", "--json")
        rows = json.loads(out)
        self.assertEqual(log[:8], ["ingle", "llama-bench", "mlx", "uzu"] * 2)
        self.assertEqual(len(rows), 4 * 5)
        first = rows[0]
        self.assertEqual((first["engine"], first["test"], first["runs"]), ("ingle", "pp128", [102.0, 103.0]))
        self.assertEqual((first["median"], round(first["deviation"], 3)), (102.5, 0.707))
        self.assertEqual({row["test"] for row in rows}, {"pp128", "pp512", "pp1024", "pp2048", "tg128"})

    def test_what_is_not_there_is_left_out_and_said(self):
        out, errors, log = self.run_suite("--only", "qwen3-0.6b bf16", "--pairs", "1", missing=("uzu",))
        self.assertIn("uzu: no no-such-program in PATH", errors)
        self.assertEqual(set(log), {"ingle", "llama-bench"})
        self.assertIn("| qwen3-0.6b BF16 | tg128 | ingle |", out)
        self.assertIn("1.00", out)
        _, errors, log = self.run_suite("--only", "qwen3-4b q4_0", "--pairs", "1")
        self.assertIn("no qwen3-4b-q4_0.gguf", errors)
        self.assertEqual(log, [])

    def test_cuda_compares_with_llama_cpp(self):
        out, errors, log = self.run_suite("--only", "qwen3-0.6b bf16", "--pairs", "1", suite="cuda")
        self.assertEqual((errors, set(log)), ("", {"ingle", "llama-bench"}))
        self.assertIn("| qwen3-0.6b BF16 | pp2048 | llama.cpp |", out)

    def test_cuda_makes_what_is_missing(self):
        _, errors, log = self.run_suite("--only", "llama-3.2-1b q8_0", "--pairs", "1", suite="cuda")
        self.assertEqual((errors, set(log)), ("making llama-3.2-1b-q8_0.gguf ...\n", {"python", "ingle", "llama-bench"}))
        _, errors, log = self.run_suite("--only", "qwen3-8b q4_k", suite="cuda", code=1)
        self.assertIn("qwen3-8b-q4_k.gguf could not be made:\nno gguf", errors)
        self.assertEqual(log, ["python"])


if __name__ == "__main__":
    unittest.main()
