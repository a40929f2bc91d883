"""An instance of Ingle as a worker of NVIDIA Dynamo, by its bridge for text: the worker gets requests of OpenAI's API, unprocessed.

    pip install ai-dynamo
    ingle serve smollm2:135m --port 8081 &
    python dynamo_worker.py http://127.0.0.1:8081 smollm2:135m &
    python -m dynamo.frontend --http-port 8000

A worker for each instance, with the instance's key in INGLE_KEY if it has one; the frontend balances between those of one model. Where there is neither etcd nor NATS, set
DYN_DISCOVERY_BACKEND=file, DYN_FILE_KV to a folder, DYN_REQUEST_PLANE=tcp and DYN_EVENT_PLANE=zmq for all of them.
"""

import asyncio
import json
import os
import sys

import httpx
import uvloop
from dynamo.llm import ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker


class Bridge:
    def __init__(self, url):
        # The frontend does not pass a client's key on, so all of them are one tenant of the
        # instance.
        key = os.environ.get("INGLE_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.AsyncClient(base_url=url, timeout=None, headers=headers)

    async def generate(self, request, context):
        """Chunks of a chat as the instance streams them."""
        request = {key: value for key, value in request.items() if value is not None and key != "nvext"}
        path = "/v1/chat/completions" if "messages" in request else "/v1/completions"
        async with self.client.stream("POST", path, json={**request, "stream": True}) as answer:
            if answer.status_code != 200:
                raise RuntimeError((await answer.aread()).decode())
            async for line in answer.aiter_lines():
                if context.is_stopped() or context.is_killed():
                    # The closed stream cancels the request in the instance.
                    return
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line[6:])


@dynamo_worker()
async def worker(runtime: DistributedRuntime):
    url, model = sys.argv[1:]
    endpoint = runtime.endpoint("ingle.backend.generate")
    # The instance has the model; the frontend needs no more than its name.
    await register_model(
        ModelInput.Text, ModelType.Chat | ModelType.Completions, endpoint, model, model, worker_type=WorkerType.Aggregated,
        skip_model_assets=True,
    )
    await endpoint.serve_endpoint(Bridge(url).generate)


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
