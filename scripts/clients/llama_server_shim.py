#!/usr/bin/env python3
"""A `llama-server` for llama.cpp's own tests: translates the flags and executes `ingle serve`.

`llama_server.py` starts it, with the paths of the binary and the models in the environment. A flag
for a missing feature ends it with status 64, and with the flag's name in the file `$SHIM_REASON`.
With `$LLAMA_SERVER` it executes the real llama-server, with the same models.
"""

import json
import os
import sys
import tempfile

# Ignored flags: about memory and batches, and about features that are always on.
IGNORED = {"--no-slots", "--slots", "--metrics", "--cont-batching", "--embedding", "--kv-unified", "--no-jinja", "--jinja", "--offline",
           "--swa-full", "--verbose", "--no-mmproj", "--no-cache-idle-slots", "--backend_sampling"}
IGNORED_WITH_VALUE = {"--batch-size", "--ubatch-size", "--n-gpu-layers", "-fa", "-ctk", "-ctv", "--hf-file",
                      "--tags", "--cache-ram"}
USED = {"--port", "--host", "--hf-repo", "--ctx-size", "--parallel", "--threads", "--api-key", "--alias", "--pooling", "--n-predict", "--temp", "--seed"}
MODELS = {"stories260K": "CHAT_MODEL", "ggml-org/models": "EMBED_MODEL"}


def give_up(reason):
    with open(os.environ["SHIM_REASON"], "w") as file:
        file.write(reason)
    sys.exit(64)


def main():
    given, values, flags = sys.argv[1:], {}, set()
    while given:
        flag = given.pop(0)
        if flag in USED | IGNORED_WITH_VALUE:
            values[flag] = given.pop(0)
        elif flag in IGNORED:
            flags.add(flag)
        else:
            give_up(f"no {flag}")
    repository = values.get("--hf-repo", "")
    variable = next((variable for name, variable in MODELS.items() if name in repository), None)
    if variable is None or "infill" in repository or "MOE" in repository or "reranker" in values.get("--hf-file", ""):
        give_up(f"the model {repository or 'of a folder'} is not here")
    model = os.environ[variable]
    if os.environ.get("LLAMA_SERVER"):
        real, kept = [os.environ["LLAMA_SERVER"], "-m", model], sys.argv[1:]
        while kept:
            flag = kept.pop(0)
            if flag in ("--hf-repo", "--hf-file"):
                kept.pop(0)
            elif flag != "--offline":
                real.append(flag)
        os.execv(real[0], real)
    slots = int(values.get("--parallel", 4))
    context = int(values.get("--ctx-size", 4096))
    # llama-server divides its context among the slots, unless they share one.
    each = context if "--kv-unified" in flags else context // slots
    if values.get("--pooling", "mean") == "none":
        give_up("no --pooling none")
    command = [os.environ["INGLE"], "serve", "--no-warmup", "--port", values["--port"], "--slots", str(slots), "-t", "2", "-c", str(each)]
    hosts = values.get("--host", "127.0.0.1").split(",")
    if len(hosts) > 1:
        give_up("one address to listen at")
    command += ["--host", hosts[0], "--any-name"]
    if int(values.get("--n-predict", -1)) > 0:
        command += ["--max-tokens", values["--n-predict"]]
    for flag in ("--temp", "--seed"):
        if flag in values:
            command += [flag, values[flag]]
    if "--api-key" in values:
        command += ["--api-key", values["--api-key"]]
    name = values.get("--alias", "model")
    if "," in name:
        give_up("one name for a model")
    with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as config:
        config.write(f"[[models]]\nname = {json.dumps(name)}\nsource = {json.dumps(model)}\n")
    os.execv(command[0], [*command, "--config", config.name])


main()
