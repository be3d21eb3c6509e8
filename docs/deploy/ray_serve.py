"""Replicas of eagle3-serve behind Ray Serve; extra `ray`.

    python docs/deploy/ray_serve.py --replicas 2 --gpus 8 -- MODEL --tensor-parallel-size 8

Each replica is an eagle3-serve of its own on a free port, with the GPUs that Ray gives it; Ray
chooses a replica for each request and passes on what it answers, streams too. A replica whose
server has ended fails its health check, and Ray starts another.
"""

import argparse
import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from ray import serve

SERVER = (sys.executable, "-c", "import sys; from serve.cli import main; sys.exit(main())")
OWN_HEADERS = ("connection", "content-length", "host", "transfer-encoding")
"""Of one connection, not of the request or its answer."""
api = FastAPI()


@serve.deployment(max_ongoing_requests=256, health_check_period_s=5)
@serve.ingress(api)
class Replica:
    """One eagle3-serve; ready when it is."""

    async def __init__(self, flags: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._server = subprocess.Popen([*SERVER, *flags, "--port", str(port)])
        self._http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None)
        while not await self._ready():
            self.check_health()
            await asyncio.sleep(0.5)

    def check_health(self) -> None:
        """Ray calls it, and replaces the replica when it raises."""
        if (status := self._server.poll()) is not None:
            raise RuntimeError(f"eagle3-serve has ended with status {status}")

    def __del__(self) -> None:
        self._server.terminate()
        self._server.wait(60)

    @api.api_route("/{path:path}", methods=["GET", "POST"])
    async def forward(self, request: Request, path: str) -> Response:
        """Any request, to the replica's server; the answer as it comes."""
        url = httpx.URL(path=f"/{path}", query=request.url.query.encode())
        headers = [pair for pair in request.headers.items() if pair[0] not in OWN_HEADERS]
        asked = self._http.build_request(
            request.method, url, headers=headers, content=await request.body()
        )
        answer = await self._http.send(asked, stream=True)
        kept = {name: v for name, v in answer.headers.items() if name not in OWN_HEADERS}
        return StreamingResponse(self._body(answer), answer.status_code, kept)

    @staticmethod
    async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
        """Closed when the client hangs up: the server then gives the request up."""
        try:
            async for part in answer.aiter_raw():
                yield part
        finally:
            await answer.aclose()

    async def _ready(self) -> bool:
        try:
            return (await self._http.get("/health")).status_code == 200
        except httpx.TransportError:
            return False


def main() -> None:
    """Serves until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Replicas of eagle3-serve behind Ray Serve.")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=0, help="of each replica")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("flags", nargs="*", help="of eagle3-serve, behind --")
    options = parser.parse_args()
    serve.start(http_options={"port": options.port})
    deployment = Replica.options(
        num_replicas=options.replicas, ray_actor_options={"num_gpus": options.gpus}
    )
    serve.run(deployment.bind(options.flags), name="eagle3", blocking=True)


if __name__ == "__main__":
    main()
