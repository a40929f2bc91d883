#!/usr/bin/env python3
"""Compares masks of grammars with those of llguidance's own package.

    python masks.py target/release/ingle [--rows FILE] [--example target/release/examples/masks] [--walks 3]

The example of `ingle-text` computes masks like the engine. The Python package computes them from
the same grammar and a vocabulary read by `gguf`. Random walks compare both at every token.
`jsonschema`, which shares no code with either, checks the final text. The median and the 99th
percentile of times are printed.
"""

import json
import pathlib
import random
import statistics
import subprocess
import sys

import harness
from harness import CHAT, KEY, check, expect
from schemas import BAD, GOOD

# Number of tokens after which a walk is abandoned, because a grammar may allow endless texts.
MOST_TOKENS = 250


class Ours:
    """The example program on one model."""

    def __init__(self, example, model):
        self.process = subprocess.Popen([example, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = json.loads(self.process.stdout.readline())

    def ask(self, **line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "mask" in answer:
            answer["mask"] = bytes.fromhex(answer["mask"])
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


def byte_of_letter():
    """GPT-2's letters for bytes, in which GGUF stores tokens."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + n): byte for n, byte in enumerate(others)}}


class Vocabulary:
    """The tokens of a GGUF file, in the form of llguidance's package."""

    NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

    def __init__(self, path, n_tokens):
        import gguf

        reader = gguf.GGUFReader(path)
        read = lambda key: reader.fields[key]
        tokens = [bytes(read("tokenizer.ggml.tokens").parts[at]).decode() for at in read("tokenizer.ggml.tokens").data]
        kinds = [int(read("tokenizer.ggml.token_type").parts[at][0]) for at in read("tokenizer.ggml.token_type").data]
        by_letter = bytes(read("tokenizer.ggml.model").parts[-1]).decode() == "gpt2"
        letters = byte_of_letter()
        self.tokens, self.special_token_ids = [], []
        for id, (token, kind) in enumerate(zip(tokens, kinds)):
            if kind in (self.CONTROL, self.UNKNOWN):
                self.special_token_ids.append(id)
                self.tokens.append(token.encode())
            elif kind == self.BYTE:
                self.tokens.append(bytes([int(token[3:5], 16)]))
            elif kind == self.USER:
                self.tokens.append(token.encode())
            elif by_letter:
                self.tokens.append(bytes(letters[letter] for letter in token))
            else:
                self.tokens.append(token.replace("\u2581", " ").encode())
        expect(len(self.tokens) == n_tokens, (len(self.tokens), n_tokens))
        eos = read("tokenizer.ggml.eos_token_id").parts
        self.eos_token_id, self.bos_token_id = int(eos[-1][0]), None
        self.ids = {token: id for id, token in reversed(list(enumerate(self.tokens)))}

    def __call__(self, text):
        # Only needed for texts in a grammar, and these grammars have none.
        return [self.ids[bytes([byte])] for byte in text.encode()]


class Theirs:
    """llguidance's package with the same vocabulary."""

    def __init__(self, path, facts):
        import llguidance

        self.module, self.vocabulary, self.facts = llguidance, Vocabulary(path, facts["n_vocab"]), facts
        wrapper = llguidance.TokenizerWrapper(self.vocabulary)
        self.tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=facts["n_vocab"], eos_token=facts["ends"])
        self.closing = [id for id, token in enumerate(self.vocabulary.tokens) if token in (b'"', b"}", b"]", b",", b'"}')]
        self.n_bytes = (facts["n_vocab"] + 31) // 32 * 4

    def begin(self, line):
        compile = self.module.LLMatcher
        if "regex" in line:
            grammar = compile.grammar_from_regex(line["regex"])
        else:
            grammar = compile.grammar_from_lark(line["lark"])
        self.matcher = compile(self.tokenizer, grammar)
        return self.matcher.get_error() or None

    def mask(self):
        mask = bytearray(self.n_bytes)
        self.matcher.unsafe_compute_mask_ptr(*pointer(mask))
        return bytes(mask)

    def accept(self, token):
        expect(self.matcher.consume_token(token), self.matcher.get_error())


def pointer(buffer):
    import ctypes

    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer)), len(buffer)


def allowed(mask):
    """Ids of the tokens that a mask allows, in order."""
    import numpy

    return numpy.flatnonzero(numpy.unpackbits(numpy.frombuffer(mask, numpy.uint8), bitorder="little"))


def only_in(mask, other):
    """Ids of the tokens that `mask` allows and `other` does not, in order."""
    import numpy

    return allowed((numpy.frombuffer(mask, numpy.uint8) & ~numpy.frombuffer(other, numpy.uint8)).tobytes()).tolist()


def walk(ours, theirs, line, chance, times):
    """Runs a random walk; returns the text if it ended, and the number of compared masks."""
    first = ours.ask(**line)
    # For a schema, the example prints its grammar.
    problem = first.get("error") if "schema" in line and "error" in first else theirs.begin({**line, **first})
    expect(("error" in first) == (problem is not None), (line, first.get("error"), problem))
    if problem is not None:
        return None, 0
    ends, text, answer = set(ours.facts["ends"]), b"", first
    for n in range(MOST_TOKENS):
        their_mask = theirs.mask()
        if answer["mask"] != their_mask:
            # If only one text can follow, the package allows only the tokens of its own tokenizer,
            # and no others with the same bytes. So each of the others is checked alone.
            wrong = [id for id in only_in(answer["mask"], their_mask) if theirs.matcher.validate_tokens([id]) != 1]
            missing = only_in(their_mask, answer["mask"])
            show = lambda ids: [(id, theirs.vocabulary.tokens[id]) for id in ids[:8]]
            expect(not wrong and not missing, f"{line} after {text!r}: only ours allows {show(wrong)}, only theirs {show(missing)}")
        choices = allowed(answer["mask"])
        expect(len(choices), (line, text))
        may_end = any(answer["mask"][id // 8] >> id % 8 & 1 for id in ends)
        if may_end and (len(choices) <= len(ends) or chance.random() < 0.5):
            return text, n + 1
        # A sample of the tokens is enough. White space and long texts are rarely chosen, so that
        # walks end.
        some = [int(choices[chance.randrange(len(choices))]) for _ in range(64)]
        few = [id for id in some if id not in ends] or [id for id in choices.tolist() if id not in ends]
        weight = [0.02 if not theirs.vocabulary.tokens[id].strip() else 1 / (1 + len(theirs.vocabulary.tokens[id])) for id in few]
        closing = [id for id in theirs.closing if answer["mask"][id // 8] >> id % 8 & 1]
        token = chance.choice(closing) if closing and chance.random() < 0.3 else chance.choices(few, weight)[0]
        text += theirs.vocabulary.tokens[token]
        theirs.accept(token)
        answer = ours.ask(token=token)
        expect("error" not in answer, (line, text, answer))
        times.append(answer["ns"])
    return None, MOST_TOKENS


def compare(model):
    """Compares all schemas on one model's vocabulary; returns a summary."""
    import jsonschema

    path = harness.model_file(OPTIONS.binary, model)
    ours = Ours(OPTIONS.example, path)
    theirs = Theirs(path, ours.facts)
    n_masks = n_texts = 0
    times, compiling = [], []
    for name, schema in GOOD.items():
        # RFC 3339 allows leap seconds and small letters, which this checker rejects.
        formats = jsonschema.FormatChecker(["date", "email", "ipv4", "uuid"])
        validator = jsonschema.Draft202012Validator(schema, format_checker=formats)
        first = ours.ask(schema=schema)
        expect("error" not in first, (name, first))
        compiling.append(first["compile_ns"])
        for seed in range(OPTIONS.walks):
            text, n = walk(ours, theirs, {"schema": schema}, random.Random(f"{name} {seed}"), times)
            n_masks += n
            if text is not None:
                n_texts += 1
                try:
                    validator.validate(json.loads(text))
                except (ValueError, jsonschema.ValidationError) as error:
                    raise AssertionError(f"{name}: {text!r} is not of the schema: {error}") from error
    for regex in [r"[a-z]{3}-\d+", r"(yes|no|maybe)( (yes|no|maybe)){0,3}", r"\d{4}-[01]\d-[0-3]\d", r"[^,]*,[^,]*", "(ab)*c?"]:
        for seed in range(OPTIONS.walks):
            n_masks += walk(ours, theirs, {"regex": regex}, random.Random(f"{regex} {seed}"), times)[1]
    for lark in ['start: "a" b\nb: "b"+ "c" | /[x-z]{2}/', 'start: expr\nexpr: NUM | expr "+" expr | "(" expr ")"\nNUM: /[0-9]{1,3}/']:
        for seed in range(OPTIONS.walks):
            n_masks += walk(ours, theirs, {"lark": lark}, random.Random(f"{lark} {seed}"), times)[1]
    ours.close()
    expect(n_texts > len(GOOD), n_texts)
    times.sort()
    micro = lambda ns: ns / 1e3
    return (
        f"{n_masks} masks of {len(GOOD)} schemas agree, {n_texts} texts follow their schema; {ours.facts['n_vocab']} tokens: a mask "
        f"in {micro(statistics.median(times)):.0f} us (median), {micro(times[len(times) * 99 // 100]):.0f} us (99th percentile), a "
        f"grammar in {micro(statistics.median(compiling)) / 1e3:.1f} ms"
    )


@check("llguidance", "masks of random walks, 49,152 tokens")
def _():
    return compare(CHAT)


@check("llguidance", "masks of random walks, 262,144 tokens")
def _():
    return compare("gemma3:270m-base")


@check("llguidance", "a schema without valid texts is a 400")
def _():
    import urllib.error
    import urllib.request

    server = harness.Server(OPTIONS.binary, CHAT, options=["--no-warmup", "-c", "512"])
    try:
        for name, schema in {**BAD, **{name: GOOD[name] for name in ["person", "tree", "tuple"]}}.items():
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
            request = urllib.request.Request(
                server.url + "/v1/chat/completions", json.dumps(body).encode(),
                {"content-type": "application/json", "authorization": f"Bearer {KEY}"},
            )
            try:
                status, text = urllib.request.urlopen(request, timeout=60).status, ""
            except urllib.error.HTTPError as error:
                status, text = error.code, error.read().decode()
            expect(status == (200 if name in GOOD else 400), (name, status, text))
    finally:
        server.stop()


if __name__ == "__main__":
    OPTIONS = harness.arguments(
        __doc__,
        (["--example"], {"type": pathlib.Path, "default": pathlib.Path("target/release/examples/masks"), "help": "the example of ingle-text"}),
        (["--walks"], {"type": int, "default": 3, "help": "random walks of each grammar"}),
    )
    sys.exit(harness.run(OPTIONS))
