#!/usr/bin/env python3
"""Runs lm-eval against a real server: `local-completions`, which needs log-probabilities of echoed
prompts, and `local-chat-completions`.

    python evaluate_lm.py target/release/ingle [--rows FILE]

The server tokenises. The tasks are defined here, because data sets cannot be fetched everywhere.
"""

import json
import math
import os
import pathlib
import sys
import tempfile

import harness
from harness import CHAT, KEY, check, expect

QUESTIONS = [
    ("The capital of France is", ["Paris", "a fish", "seven"], 0),
    ("Water freezes at zero degrees", ["Celsius", "bananas", "Tuesday"], 0),
    ("The opposite of hot is", ["window", "cold", "running"], 1),
    ("Two plus two is", ["green", "sleeping", "four"], 2),
    ("Cats and dogs are", ["animals", "numbers", "oceans"], 0),
    ("The sun rises in the", ["east", "spoon", "yesterday"], 0),
]


def folder_of_tasks(folder):
    """Two tasks with data, in lm-eval's format."""
    rows = [{"question": question, "choices": choices, "answer": answer} for question, choices, answer in QUESTIONS]
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\nmetadata:\n  version: 1\n"
    (folder / "choices.yaml").write_text(
        f"task: ingle_choices\n{common}output_type: multiple_choice\ndoc_to_text: '{{{{question}}}}'\ndoc_to_target: answer\n"
        "doc_to_choice: choices\nmetric_list:\n  - metric: acc\n"
    )
    (folder / "generate.yaml").write_text(
        f"task: ingle_generate\n{common}output_type: generate_until\ndoc_to_text: '{{{{question}}}}'\ndoc_to_target: '{{{{choices[answer]}}}}'\n"
        "generation_kwargs:\n  until: ['.']\n  max_gen_toks: 8\n  temperature: 0\nmetric_list:\n  - metric: exact_match\n"
    )
    (folder / "perplexity.yaml").write_text(
        f"task: ingle_perplexity\n{common}output_type: loglikelihood_rolling\ndoc_to_text: ''\n"
        "doc_to_target: '{{question}} {{choices[answer]}}.'\nmetric_list:\n  - metric: word_perplexity\n"
    )


def evaluate(server, model, tasks, **keys):
    import lm_eval
    from lm_eval.tasks import TaskManager

    os.environ["OPENAI_API_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        folder_of_tasks(pathlib.Path(folder))
        manager = TaskManager(include_path=folder, include_defaults=False)
        path = "/v1/chat/completions" if "chat" in model else "/v1/completions"
        arguments = {"model": CHAT, "base_url": server.url + path, "num_concurrent": 4, "max_retries": 1, **keys.pop("more", {})}
        return lm_eval.simple_evaluate(
            model=model, model_args=arguments, tasks=tasks, task_manager=manager, log_samples=True, bootstrap_iters=0, **keys
        )


@check("lm-eval", "local-completions: choices by log-likelihood (echo, logprobs), the server's tokenizer")
def _(server):
    found = evaluate(server, "local-completions", ["ingle_choices"], more={"tokenizer_backend": "remote"})
    accuracy = found["results"]["ingle_choices"]["acc,none"]
    expect(accuracy >= 5 / 6, accuracy)
    return f"{accuracy * 6:.0f} of 6 questions"


@check("lm-eval", "local-completions: perplexity and generation")
def _(server):
    found = evaluate(server, "local-completions", ["ingle_perplexity", "ingle_generate"], more={"tokenizer_backend": "remote"})
    perplexity = found["results"]["ingle_perplexity"]["word_perplexity,none"]
    expect(math.isfinite(perplexity) and 1 < perplexity < 1000, perplexity)
    samples = found["samples"]["ingle_generate"]
    expect(any("Paris" in sample["resps"][0][0] for sample in samples), samples)
    return f"{perplexity:.1f} a word"


@check("lm-eval", "local-chat-completions: generation")
def _(server):
    found = evaluate(server, "local-chat-completions", ["ingle_generate"], apply_chat_template=True)
    expect(all(sample["resps"][0][0] for sample in found["samples"]["ingle_generate"]), found["samples"])


def main():
    # lm-eval requests tokens without a key.
    server = harness.Server(OPTIONS.binary, CHAT, options=["--slots", "4", "--no-warmup", "-c", "2048"], key=None)
    try:
        return harness.run(OPTIONS, server)
    finally:
        server.stop()


if __name__ == "__main__":
    OPTIONS = harness.arguments(__doc__)
    sys.exit(main())
