"""Measurements without llama.cpp: long contexts, the first token, speech and embeddings."""
import statistics
import subprocess
import time
from pathlib import Path

from engines import FasterWhisper, ROOT, SentenceTransformers
from pairs import time_pairs
from suite import SUITE

AUDIO = ROOT / "fixtures" / "audio" / "jfk.wav"


def measure(ingle, arguments):
    """A list of (what, value) lines of text."""
    lines = [*deep_contexts(ingle, arguments), first_token(ingle, arguments.pairs)]
    whisper = FasterWhisper(arguments.python, arguments.t)
    for name in ("whisper:tiny", "whisper:base"):
        lines.append(speech(ingle, whisper, name, arguments))
    lines.append(embeddings(ingle, SentenceTransformers(arguments.python, arguments.t), arguments))
    return lines


def deep_contexts(ingle, a):
    """Rates with 4,096 tokens of context as shares of those with 512 and with none, for small and
    larger models. Small models are also measured with 8-bit keys and values.
    """
    small = ("SmolLM2-135M Q4_1", "qwen3-0.6b shape, Q4_K, 8 layers")
    large = ("llama-3.2-1b shape, Q6_K, 8 layers", "qwen3-30b-a3b shape, Q4_0, 4 layers")
    for entry in SUITE:
        if entry.title in small + large:
            yield from deep_context(ingle, entry, a, ("i16", "i8") if entry.title in small else ("i16",))


def deep_context(ingle, entry, a, kv_types):
    model, n = entry.fetch(ingle, a.models_dir, a.python), a.pairs
    for kv_type in kv_types:
        long, long_rate = kept(ingle.bench(model, "512,4096", 0, 0, kv_type, min(n, 3)))
        last, _ = kept(ingle.bench(model, 512, 0, "0,3584", kv_type, min(n, 3)))
        deep, deep_rate = kept(ingle.bench(model, 0, 64, "0,4096", kv_type, 2 * n))
        yield (f"{entry.title} at 4,096 tokens of context, `{kv_type}`",
               f"prefill of 4,096 tokens has {100 * long:.0f} % of the rate of 512 (its last 512 tokens {100 * last:.0f} %), "
               f"decode has {100 * deep:.0f} % of its first rate: {long_rate:.0f} and {deep_rate:.0f} tok/s")
    entry.release(model)


def kept(rows):
    """The rate of the second of two alternating tests, as a share of the first one's rate, and
    absolute.
    """
    first, second = (row["samples_ts"] for row in rows)
    return statistics.median(y / x for x, y in zip(first, second)), statistics.median(second)


def first_token(ingle, n_runs):
    """Time from the start of the process to the first byte of an answer to 8 tokens, with files in the page cache."""
    model = ingle.pull("smollm2:135m")
    seconds = []
    for _ in range(max(n_runs, 5) + 1):
        start = time.perf_counter()
        run = subprocess.Popen([str(ingle.binary), "complete", model, "-p", "The sky is blue because of the", "-n", "2", "-t",
                                str(ingle.threads)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        run.stdout.read(1)
        seconds.append(time.perf_counter() - start)
        run.stdout.read()
        run.wait()
    return ("first byte of a warm SmolLM2 run, 8 tokens of prompt", f"{1000 * statistics.median(seconds[1:]):.0f} ms")


def speech(ingle, whisper, name, a):
    folder = Path(ingle.pull(name))
    folder = folder if folder.is_dir() else folder.parent

    def ours():
        start = time.perf_counter()
        ingle.run("transcribe", name, AUDIO, "--word-timestamps", "--beam-size", 5, "--format", "json", "-t", ingle.threads)
        return time.perf_counter() - start

    def theirs():
        run = whisper.transcribe(folder, AUDIO)
        return run["load"] + run["seconds"]

    pair = time_pairs(name, ours, theirs, a.pairs)
    return (f"{name}, 11 s of speech, beam 5, word times, with loading",
            f"{pair['ingle']:.2f} s; faster-whisper in int8: {pair['peer']:.2f} s; **{pair['ratio']:.2f}x**")


def embeddings(ingle, peer, a):
    if not peer.is_there():
        return ("minilm:l6", f"not measured: the environment lacks {', '.join(peer.packages)}")
    folder = Path(ingle.pull("minilm:l6"))
    folder = folder if folder.is_dir() else folder.parent
    texts = a.models_dir / "sentences.txt"
    texts.parent.mkdir(parents=True, exist_ok=True)
    words = (ROOT / "ARCHITECTURE.md").read_text().split()
    texts.write_text("\n".join(" ".join(words[i:i + 16 + i % 48]) for i in range(0, 1024, 2)))

    def ours():
        start = time.perf_counter()
        ingle.run("embed", "minilm:l6", "--file", texts, "--json", "-t", ingle.threads)
        return time.perf_counter() - start

    pair = time_pairs("minilm:l6", ours, lambda: peer.embed(folder, texts)["seconds"], a.pairs)
    return ("minilm:l6, 512 texts of 16 to 63 words (ours with the process's start, theirs without)",
            f"{pair['ingle']:.2f} s; sentence-transformers: {pair['peer']:.2f} s; **{pair['ratio']:.2f}x**")
