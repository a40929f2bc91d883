#!/usr/bin/env python3
"""inspect-ai against a real server.

    python evaluate_inspect.py target/release/ingle [--rows FILE]
"""

import sys
import tempfile

import harness
from harness import CHAT, KEY, check, expect


# Logs are read from this folder later.
FOLDER = tempfile.TemporaryDirectory()


def evaluate(server, task, **keys):
    import inspect_ai

    logs = inspect_ai.eval(
        task, model=f"openai-api/local/{CHAT}", model_base_url=server.url + "/v1", model_args={"api_key": KEY}, display="none",
        log_dir=FOLDER.name, **keys,
    )
    expect(logs[0].status == "success", logs[0].error)
    return logs[0]


@check("inspect-ai", "an evaluation of four concurrent samples")
def _(server):
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    samples = [Sample(input=f"Say the word {word}.", target=word) for word in ["yes", "no", "apple", "house"]]
    log = evaluate(server, inspect_ai.Task(dataset=samples, solver=generate(), scorer=includes()), max_tokens=16, temperature=0.0)
    expect(len(log.samples) == 4 and all(sample.output.usage.output_tokens > 0 for sample in log.samples), log.samples)


@check("inspect-ai", "answers by a schema, and log-probabilities")
def _(server):
    import inspect_ai
    import pydantic
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, ResponseSchema
    from inspect_ai.solver import generate
    from inspect_ai.util import json_schema

    class Colour(pydantic.BaseModel):
        red: int
        green: int

    # The schemas have no bounds, so at a high temperature the model may write endless digits.
    config = GenerateConfig(
        response_schema=ResponseSchema(name="colour", json_schema=json_schema(Colour)), logprobs=True, top_logprobs=2, max_tokens=100,
        temperature=0.0,
    )
    task = inspect_ai.Task(dataset=[Sample(input="What is yellow?")], solver=generate(), config=config)
    output = evaluate(server, task).samples[0].output
    Colour.model_validate_json(output.completion)
    expect(output.choices[0].logprobs.content, output)


@check("inspect-ai", "an agent with a tool")
def _(server):
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import ToolFunction, tool

    asked = []

    @tool
    def add():
        async def execute(x: int, y: int):
            """Add two numbers.

            Args:
                x: First number.
                y: Second number.
            """
            asked.append((x, y))
            return str(x + y)

        return execute

    solver = [use_tools(add(), tool_choice=ToolFunction("add")), generate(tool_calls="single")]
    log = evaluate(server, inspect_ai.Task(dataset=[Sample(input="What is 2 plus 3?")], solver=solver), max_tokens=60)
    expect(asked and all(isinstance(part, int) for part in asked[0]), log.samples[0].messages)


def main():
    server = harness.Server(OPTIONS.binary, CHAT, options=["--slots", "4", "--no-warmup", "-c", "2048"])
    try:
        return harness.run(OPTIONS, server)
    finally:
        server.stop()


if __name__ == "__main__":
    OPTIONS = harness.arguments(__doc__)
    sys.exit(main())
