#!/usr/bin/env python3
"""Runs the official clients of the three APIs, and libraries built on them, against a real server.

    python official.py target/release/ingle [--rows FILE] [--only CLIENT] [--node NODE]

Starts `ingle serve` with a chat model, an embedding model and a speech model. Every client of
official.txt makes its common requests.
"""

import json
import pathlib
import subprocess
import sys

import harness
from harness import CHAT, EMBED, HERE, KEY, SPEECH, NotRun, check, expect

SPEECH_FILE = HERE.parent.parent / "fixtures" / "audio"

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


# OpenAI's client for Python.


def openai_client(server, **more):
    import openai

    return openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0, **more)


@check("openai", "chat.completions.create")
def _(server):
    answer = openai_client(server).chat.completions.create(model=CHAT, messages=ASK, max_tokens=12, temperature=0)
    expect(answer.choices[0].message.content and answer.usage.completion_tokens <= 12, answer)


@check("openai", "chat.completions.create, streamed, with usage")
def _(server):
    create = openai_client(server).chat.completions.create
    whole = create(model=CHAT, messages=ASK, max_tokens=12, temperature=0)
    stream = create(
        model=CHAT, messages=ASK, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    events = list(stream)
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    expect(text == whole.choices[0].message.content, (text, whole))
    expect(events[-1].usage.completion_tokens == whole.usage.completion_tokens, events[-1])


@check("openai", "chat.completions.create with n, logprobs, stop, seed")
def _(server):
    create = openai_client(server).chat.completions.create
    answer = create(model=CHAT, messages=ASK, max_tokens=8, n=2, seed=3, logprobs=True, top_logprobs=3, stop=["\n"])
    expect(len(answer.choices) == 2, answer)
    expect(all(len(token.top_logprobs) == 3 for token in answer.choices[0].logprobs.content), answer)


@check("openai", "chat.completions.parse (pydantic)")
def _(server):
    import pydantic

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        age: int

    answer = openai_client(server).chat.completions.parse(
        model=CHAT, messages=[{"role": "user", "content": "Describe Ada."}], response_format=Person, max_tokens=200
    )
    expect(isinstance(answer.choices[0].message.parsed, Person), answer)


@check("openai", "tools: a forced call, whole and streamed")
def _(server):
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}}
    create = openai_client(server).chat.completions.create
    whole = create(model=CHAT, messages=ASK, tools=[tool], tool_choice="required", max_tokens=100, temperature=0)
    call = whole.choices[0].message.tool_calls[0]
    expect(set(json.loads(call.function.arguments)) == {"city", "unit"}, call)
    expect(whole.choices[0].finish_reason == "tool_calls", whole)
    with openai_client(server).chat.completions.stream(
        model=CHAT, messages=ASK, tools=[tool], tool_choice="required", max_tokens=100, temperature=0
    ) as stream:
        final = stream.get_final_completion()
    expect(final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments, final)
    answer = {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 20 degrees"}
    again = create(model=CHAT, messages=[*ASK, whole.choices[0].message, answer], tools=[tool], max_tokens=8)
    expect(again.choices[0].message, again)


@check("openai", "completions.create with echo and logprobs, and streamed")
def _(server):
    create = openai_client(server).completions.create
    answer = create(model=CHAT, prompt="The capital of France is", max_tokens=3, temperature=0, echo=True, logprobs=1)
    expect(answer.choices[0].text.startswith("The capital of France is Paris"), answer)
    expect(len(answer.choices[0].logprobs.tokens) == len(answer.choices[0].logprobs.token_logprobs), answer)
    pieces = list(create(model=CHAT, prompt="One, two,", max_tokens=4, temperature=0, stream=True))
    expect("".join(piece.choices[0].text for piece in pieces), pieces)


@check("openai", "embeddings.create, float and base64, dimensions")
def _(server):
    create = openai_client(server).embeddings.create
    found = create(model=EMBED, input=["a cat", "a kitten", "a lorry"])
    as_floats = create(model=EMBED, input="a cat", encoding_format="float")
    expect(max(abs(a - b) for a, b in zip(found.data[0].embedding, as_floats.data[0].embedding)) < 1e-5, found.usage)
    dot = lambda a, b: sum(x * y for x, y in zip(found.data[a].embedding, found.data[b].embedding))
    expect(dot(0, 1) > dot(0, 2), (dot(0, 1), dot(0, 2)))
    expect(len(create(model=EMBED, input="a", dimensions=64).data[0].embedding) == 64, "dimensions")


@check("openai", "models.list, models.retrieve")
def _(server):
    client = openai_client(server)
    expect([model.id for model in client.models.list()][:3] == [CHAT, EMBED, SPEECH], list(client.models.list()))
    expect(client.models.retrieve(CHAT).id == CHAT, "retrieve")


@check("openai", "audio.transcriptions.create in every format, and streamed")
def _(server):
    create = openai_client(server).audio.transcriptions.create
    file = next(SPEECH_FILE.glob("*.wav"), None) or next(SPEECH_FILE.glob("*.flac"))
    for response_format in ["json", "text", "srt", "vtt", "verbose_json"]:
        answer = create(model=SPEECH, file=file, response_format=response_format)
        expect(getattr(answer, "text", answer) is not None, answer)
    events = list(create(model=SPEECH, file=file, stream=True))
    expect(events[-1].type == "transcript.text.done", events)


@check("openai", "errors: key, model, context, schema")
def _(server):
    import openai

    client = openai_client(server)
    for wrong, kind in [
        (lambda: openai.OpenAI(base_url=server.url + "/v1", api_key="no", max_retries=0).models.list(), openai.AuthenticationError),
        (lambda: client.chat.completions.create(model="none", messages=ASK), openai.NotFoundError),
        (lambda: client.completions.create(model=CHAT, prompt="a " * 40000), openai.BadRequestError),
        (
            lambda: client.chat.completions.create(
                model=CHAT, messages=ASK, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
            ),
            openai.BadRequestError,
        ),
    ]:
        try:
            found = wrong()
        except kind as error:
            expect(error.body["message"], error.body)
        else:
            raise AssertionError(f"expected {kind.__name__}, found {found!r}")


@check("openai", "responses.create, streamed, with previous_response_id, parse")
def _(server):
    import pydantic

    responses = openai_client(server).responses
    first = responses.create(model=CHAT, input="Hello", max_output_tokens=16, temperature=0)
    expect(first.output_text, first)
    second = responses.create(model=CHAT, input="Again", previous_response_id=first.id, max_output_tokens=16)
    expect(second.usage.input_tokens > first.usage.input_tokens, second.usage)
    with responses.stream(model=CHAT, input="Hello", max_output_tokens=16, temperature=0) as stream:
        final = [event for event in stream] and stream.get_final_response()
    expect(final.output_text == first.output_text, final)

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        age: int

    parsed = responses.parse(model=CHAT, input="Describe Ada.", text_format=Person, max_output_tokens=200)
    expect(isinstance(parsed.output_parsed, Person), parsed)
    expect(responses.retrieve(first.id).id == first.id, "retrieve")
    responses.delete(first.id)


# Anthropic's client.


def anthropic_client(server):
    import anthropic

    return anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)


@check("anthropic", "messages.create, and streamed")
def _(server):
    messages = anthropic_client(server).messages
    keys = {"model": CHAT, "max_tokens": 12, "messages": ASK, "system": "Be brief.", "extra_body": {"temperature": 0}}
    whole = messages.create(**keys)
    with messages.stream(**keys) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    expect(text == whole.content[0].text and final.stop_reason == whole.stop_reason, (whole, final))


@check("anthropic", "messages.create with tools")
def _(server):
    tool = {"name": "weather", "description": "The weather of a city", "input_schema": WEATHER}
    messages = anthropic_client(server).messages
    answer = messages.create(model=CHAT, max_tokens=100, messages=ASK, tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True})
    call = next(block for block in answer.content if block.type == "tool_use")
    expect(set(call.input) == {"city", "unit"} and answer.stop_reason == "tool_use", answer)
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny"}]}
    again = [*ASK, {"role": "assistant", "content": answer.content}, result]
    expect(messages.create(model=CHAT, max_tokens=8, messages=again, tools=[tool]).content is not None, "again")


@check("anthropic", "messages.count_tokens, errors")
def _(server):
    import anthropic

    expect(anthropic_client(server).messages.count_tokens(model=CHAT, messages=ASK).input_tokens > 5, "count")
    try:
        anthropic.Anthropic(base_url=server.url, api_key="no", max_retries=0).messages.create(model=CHAT, max_tokens=1, messages=ASK)
    except anthropic.AuthenticationError as error:
        expect(error.body["error"]["type"] == "authentication_error", error.body)
    else:
        raise AssertionError("expected AuthenticationError")


# Ollama's client.


def ollama_client(server):
    import ollama

    return ollama.Client(host=server.url, headers={"authorization": f"Bearer {KEY}"})


@check("ollama", "chat and generate, whole and streamed")
def _(server):
    client, options = ollama_client(server), {"temperature": 0, "num_predict": 12}
    whole = client.chat(model=CHAT, messages=ASK, options=options)
    pieces = list(client.chat(model=CHAT, messages=ASK, options=options, stream=True))
    expect("".join(piece.message.content for piece in pieces) == whole.message.content, (whole, pieces))
    expect(pieces[-1].done and pieces[-1].eval_count == whole.eval_count, pieces[-1])
    expect(client.generate(model=CHAT, prompt="One, two,", options=options).response, "generate")


@check("ollama", "format: a schema")
def _(server):
    answer = ollama_client(server).chat(model=CHAT, messages=ASK, format=SCHEMA, options={"num_predict": 200})
    expect(set(json.loads(answer.message.content)) == {"name", "age"}, answer)


@check("ollama", "embed, list, ps, show")
def _(server):
    client = ollama_client(server)
    expect(len(client.embed(model=EMBED, input=["a", "b"]).embeddings) == 2, "embed")
    expect([model.model for model in client.list().models][:1] == [CHAT], client.list())
    expect(any(model.model == CHAT for model in client.ps().models), client.ps())
    expect("completion" in client.show(CHAT).capabilities, client.show(CHAT))


# Libraries that use OpenAI's client or its protocol.


@check("litellm", "completion, streamed, and embedding")
def _(server):
    import litellm

    where = {"api_base": server.url + "/v1", "api_key": KEY}
    answer = litellm.completion(model=f"openai/{CHAT}", messages=ASK, max_tokens=8, **where)
    expect(answer.choices[0].message.content, answer)
    pieces = list(litellm.completion(model=f"openai/{CHAT}", messages=ASK, max_tokens=8, stream=True, **where))
    expect(len(pieces) > 1, pieces)
    expect(litellm.embedding(model=f"openai/{EMBED}", input=["a"], encoding_format="float", **where).data, "embedding")


@check("instructor", "a pydantic model by tools and by JSON")
def _(server):
    import instructor
    import pydantic

    # Without `forbid`, a schema allows further keys, which this small model adds without end.
    class Person(pydantic.BaseModel, extra="forbid"):
        name: str = pydantic.Field(max_length=12)
        age: int = pydantic.Field(ge=0, le=120)

    for mode in [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]:
        client = instructor.from_openai(openai_client(server), mode=mode)
        person = client.chat.completions.create(
            model=CHAT, messages=[{"role": "user", "content": "Ada is 36."}], response_model=Person, max_retries=0, max_tokens=300, temperature=0
        )
        expect(isinstance(person, Person), person)


@check("openai (node)", "chat, streamed, and tools")
def _(server):
    node = ARGUMENTS.node
    if not node:
        raise NotRun("no node on this machine")
    folder = pathlib.Path(sys.executable).parent.parent / "node"
    if not (folder / "node_modules" / "openai").is_dir():
        folder.mkdir(exist_ok=True)
        subprocess.run(["npm", "install", "--silent", "--prefix", folder, "openai"], check=True)
    script = folder / "official.mjs"
    script.write_text((HERE / "official.mjs").read_text())
    done = subprocess.run([node, script, server.url + "/v1", KEY, CHAT], capture_output=True, text=True)
    expect(done.returncode == 0, done.stdout + done.stderr)


def main():
    server = harness.Server(ARGUMENTS.binary, CHAT, EMBED, SPEECH, options=["--slots", "4"])
    try:
        return harness.run(ARGUMENTS, server)
    finally:
        server.stop()


if __name__ == "__main__":
    ARGUMENTS = harness.arguments(__doc__, (["--node"], {"help": "Node.js, for OpenAI's client of it"}))
    sys.exit(main())
