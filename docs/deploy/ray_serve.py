"""Instances of Ingle as replicas of Ray Serve: one for each, on whichever machine Ray puts it.

    pip install "ray[serve]" httpx
    INGLE="ingle serve smollm2:135m" serve run ray_serve:app

Ray Serve starts the replicas, balances requests between them, replaces one that dies, and closes the connection to the instance
when a client hangs up. Everything that is asked for is passed on as it is.
"""

import os
import re
import shlex
import subprocess
import threading

import fastapi
import httpx
import starlette.background
import starlette.responses
from ray import serve

api = fastapi.FastAPI()

# These headers concern one connection only.
OF_THE_CONNECTION = {"connection", "content-length", "host", "transfer-encoding"}


@serve.deployment(
    num_replicas=int(os.environ.get("REPLICAS", "2")),
    max_ongoing_requests=256,
    health_check_period_s=2,
    health_check_timeout_s=5,
    ray_actor_options={"num_cpus": 0.5},
)
@serve.ingress(api)
class Instance:
    def __init__(self, command):
        self.process = subprocess.Popen([*shlex.split(command), "--port", "0"], stderr=subprocess.PIPE, text=True)
        found = next((re.match(r"listening at (\S+)", line) for line in self.process.stderr if line.startswith("listening")), None)
        if found is None:
            raise RuntimeError("Ingle did not start")
        self.client = httpx.AsyncClient(base_url=found.group(1), timeout=None)
        for line in self.process.stderr:
            if line.startswith("ready"):
                break
        # A pipe that nobody reads would stop the instance.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def check_health(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"Ingle has ended with {self.process.returncode}")

    def __del__(self):
        self.process.terminate()

    @api.api_route("/{path:path}", methods=["GET", "POST", "DELETE"])
    async def forward(self, request: fastapi.Request, path: str):
        headers = {name: value for name, value in request.headers.items() if name not in OF_THE_CONNECTION}
        url = httpx.URL(path="/" + path, query=request.url.query.encode())
        asked = self.client.build_request(request.method, url, headers=headers, content=await request.body())
        answer = await self.client.send(asked, stream=True)
        kept = {name: value for name, value in answer.headers.items() if name not in OF_THE_CONNECTION}
        return starlette.responses.StreamingResponse(
            answer.aiter_raw(), answer.status_code, kept, background=starlette.background.BackgroundTask(answer.aclose)
        )


app = Instance.bind(os.environ.get("INGLE", "ingle serve smollm2:135m"))
