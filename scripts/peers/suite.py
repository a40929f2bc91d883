"""The files of the suite: two real models, and random weights in the exact shapes of public models."""
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


def make(path, python, model, quant, *options):
    """Makes a file of random weights with a Python that has gguf and numpy; an incomplete file is
    removed.
    """
    print(f"making {path.name} ...", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    script = Path(__file__).with_name("make_gguf.py")
    command = [str(python), str(script), model, quant, str(part), *options]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        part.unlink(missing_ok=True)
        sys.exit(f"{path.name} could not be made:\n{done.stderr[-2000:]}")
    part.rename(path)


@dataclass(frozen=True)
class Entry:
    """A file, and the target: the factor by which Ingle should be faster than llama.cpp."""

    title: str
    prefill_target: float
    decode_target: float
    # A name in the catalog, or arguments of make_gguf.py.
    name: str = ""
    shape: tuple = ()

    def fetch(self, ingle, folder, python):
        """The path of the file. Generated files are made in `folder` by a Python that has gguf and
        numpy.
        """
        if self.name:
            return ingle.pull(self.name)
        path = folder / f"{'-'.join(self.shape[:2])}.gguf"
        if not path.exists():
            make(path, python, *self.shape)
        return str(path)

    def release(self, path):
        """Removes a generated file, which has several GB."""
        if self.shape:
            Path(path).unlink()


def shape(model, quant, layers, prefill, decode):
    return Entry(f"{model} shape, {quant.upper()}, {layers} layers", prefill, decode,
                 shape=(model, quant, "--layers", str(layers)))


SUITE = [
    Entry("SmolLM2-135M Q4_1", 4.5, 2.0, name="smollm2:135m"),
    Entry("Gemma-3-270M Q4_K_M", 2.5, 1.3, name="gemma3:270m-base"),
    shape("qwen3-0.6b", "q4_0", 8, 2.0, 1.15),
    shape("qwen3-0.6b", "q4_k", 8, 2.2, 1.2),
    shape("qwen3-0.6b", "q8_0", 8, 2.2, 1.1),
    shape("llama-3.2-1b", "q6_k", 8, 2.5, 1.3),
    shape("llama-3.2-1b", "q5_k", 8, 2.5, 1.3),
    shape("llama-3.2-1b", "q3_k", 8, 2.5, 1.3),
    shape("llama-3.2-1b", "q2_k", 8, 2.5, 1.3),
    shape("llama-3.2-1b", "bf16", 8, 2.5, 1.05),
    shape("qwen3-30b-a3b", "q4_0", 4, 2.0, 1.3),
    shape("qwen3.5-4b", "q4_k", 8, 2.0, 1.3),
    shape("lfm2-1.2b", "q4_k", 16, 2.0, 1.3),
    shape("gpt-oss-20b", "q8_0", 4, 1.5, 1.3),
    # llama.cpp knows it by its number of layers.
    shape("deepseek-v2-lite", "q4_0", 27, 2.0, 1.3),
]
