"""Models that write exactly the answers of a script, one for each turn of a conversation.

Agents need a model that calls their tools well, and such models are large. A test of the server's
handling of answers does not need one. A model of this file has one layer of zeros, so its next
token depends on its last token alone. Each token occurs once in a script, and the head gives the
following token by far the best logit. The chat template counts the answers in a conversation, and
ends the prompt with a token of that turn, after which the script's answer follows.
"""

import json
import pathlib
import re

import gguf
import numpy

N_DIMS, N_HEADS = 256, 2
END = "<|im_end|>"
BEGIN = "<|im_start|>"
# The answer to a request without tools, by which programs request titles and summaries.
ASIDE = "Noted."

# A template of the Hermes format. Turns after the script repeat its last one.
TEMPLATE = """\
{%- set ns = namespace(n=0) %}
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call is within <tool_call></tool_call>: {"name": <function-name>, "arguments": <args-json-object>}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{% set ns.n = ns.n + 1 %}{% endif %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
<|turn_{{ [ns.n, LAST] | min if tools else 'aside' }}|>{% endif %}"""


def call(name, **arguments):
    """The text of a call."""
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def byte_letters():
    """GPT-2's letters for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}


LETTERS = byte_letters()


def spelt(text):
    """Text in the spelling of GPT-2's tokens."""
    return "".join(LETTERS[byte] for byte in text.encode())


def vocabulary():
    """Tokens of common words, built letter by letter, and the merges that build them. Prompts of
    agents have 80,000 bytes, so single letters would be too many.
    """
    text = "".join(path.read_text() for path in sorted(pathlib.Path(__file__).resolve().parents[2].glob("docs/*.md")))
    counts = {}
    for word in re.findall(r" ?[A-Za-z]+", text):
        counts[word] = counts.get(word, 0) + 1
    tokens, merges = [LETTERS[byte] for byte in range(256)], []
    known = set(tokens)
    for word in sorted((word for word, n in counts.items() if n > 2), key=lambda word: (-counts[word], word)):
        letters = spelt(word)
        for n in range(2, len(letters) + 1):
            if letters[:n] not in known:
                known.add(letters[:n])
                tokens.append(letters[:n])
                merges.append(f"{letters[: n - 1]} {letters[n - 1]}")
    return tokens, merges


def pieces(answers):
    """Each answer as pieces, all of which are different in the script."""
    seen, rows = set(), []
    for answer in answers:
        row, piece = [], ""
        for word in re.findall(r"\s?\w+|\s|[^\w\s]", answer):
            piece += word
            if piece not in seen:
                seen.add(piece)
                row.append(piece)
                piece = ""
        # The rest occurs elsewhere, so it is joined to the piece before it.
        while piece:
            before = row.pop()
            seen.discard(before)
            piece = before + piece
            if piece not in seen:
                seen.add(piece)
                row.append(piece)
                piece = ""
        rows.append(row)
    return rows


def write(path, answers, context):
    """Writes a model file with these answers and this context length."""
    tokens, merges = vocabulary()
    types = [gguf.TokenType.NORMAL] * len(tokens)
    marks = [f"<|turn_{turn}|>" for turn in [*range(len(answers)), "aside"]]
    chains = [[mark, *map(spelt, row), END] for mark, row in zip(marks, pieces([*answers, ASIDE]))]
    place = {token: index for index, token in enumerate(tokens)}
    for token in [BEGIN, END, *marks, *(token for chain in chains for token in chain)]:
        if token not in place:
            place[token] = len(tokens)
            tokens.append(token)
            types.append(gguf.TokenType.CONTROL if token in [BEGIN, END, *marks] else gguf.TokenType.NORMAL)
    while len(tokens) % 64:
        types.append(gguf.TokenType.UNUSED)
        tokens.append(f"<unused{len(tokens)}>")
    # Each token of a script has a dimension, which leads to the token that follows it.
    embedding, head = (numpy.zeros((len(tokens), N_DIMS), numpy.float32) for _ in range(2))
    steps = [step for chain in chains for step in zip(chain, chain[1:])]
    if len(steps) > N_DIMS:
        raise ValueError(f"the script has {len(steps)} tokens, expected at most {N_DIMS}")
    for dimension, (token, following) in enumerate(steps):
        embedding[place[token], dimension] = 1
        head[place[following], dimension] = 3
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("scripted")
    writer.add_context_length(context)
    writer.add_embedding_length(N_DIMS)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_DIMS)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_DIMS // N_HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(place[END])
    writer.add_eos_token_id(place[END])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE.replace("LAST", str(len(answers) - 1)))
    zeros = lambda *shape: numpy.zeros(shape, numpy.float32)
    ones = numpy.ones(N_DIMS, numpy.float32)
    n_kv = N_DIMS // N_HEADS
    for name, value in [
        ("token_embd", embedding),
        ("output", head),
        ("output_norm", ones),
        ("blk.0.attn_norm", ones),
        ("blk.0.ffn_norm", ones),
        ("blk.0.attn_q", zeros(N_DIMS, N_DIMS)),
        ("blk.0.attn_k", zeros(n_kv, N_DIMS)),
        ("blk.0.attn_v", zeros(n_kv, N_DIMS)),
        ("blk.0.attn_output", zeros(N_DIMS, N_DIMS)),
        ("blk.0.ffn_gate", zeros(N_DIMS, N_DIMS)),
        ("blk.0.ffn_up", zeros(N_DIMS, N_DIMS)),
        ("blk.0.ffn_down", zeros(N_DIMS, N_DIMS)),
    ]:
        writer.add_tensor(f"{name}.weight", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
