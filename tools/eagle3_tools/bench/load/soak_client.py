"""A client of a soak: sends random requests of one protocol, some of which it abandons."""

import asyncio
import random
import re
import time

from eagle3_tools.bench.load.http_client import Address, exchange, request
from eagle3_tools.bench.load.random_requests import PROTOCOLS, RandomRequest, RequestSource
from eagle3_tools.bench.load.soak_record import Latency, Outcomes

REQUEST_TIMEOUT_S = 600.0
RESPONSE_ID = re.compile(rb'"id":\s*"(resp_\w+)"')
CONTINUED_SHARE = 0.7
RESPONSES = "/v1/responses"


class SoakClient:
    """Sends requests to one path of one server, one at a time.

    `stored` has the ids of the responses that the server may have stored.
    """

    def __init__(self, path: str, address: Address, source: RequestSource, seed: int) -> None:
        self.path, self.stored = path, list[str]()
        self._address, self._source, self._rng = address, source, random.Random(seed)
        self._previous: str | None = None

    async def load(self, deadline: float, outcomes: Outcomes, latencies: list[Latency]) -> None:
        while time.monotonic() < deadline:
            drawn, begun = self._source.draw(self._rng), time.monotonic()
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    outcome, first = await self._send(drawn)
            except (OSError, EOFError, ValueError) as error:
                outcome, first = f"failed: {type(error).__name__} {error}"[:200], begun
            if outcome == "finished" and drawn.stream:
                now = time.monotonic()
                latencies.append(Latency(now, first - begun, now - begun))
            if outcome == "refused":
                self._previous = None  # Its conversation may have filled the context.
            outcomes[f"{self.path} {drawn.feature}"][outcome] += 1

    async def delete_stored(self) -> None:
        for name in self.stored:
            await request(self._address, "DELETE", f"{RESPONSES}/{name}")
        self.stored, self._previous = [], None

    async def _send(self, drawn: RandomRequest) -> tuple[str, float]:
        """Return the outcome and the time of the first line; disconnect if patience ends."""
        timeout = None if drawn.stream or drawn.patience is None else drawn.patience / 10
        try:
            async with asyncio.timeout(timeout):
                return await self._read(drawn)
        except TimeoutError:
            if timeout is None:
                raise
            return "hung up", 0.0

    async def _read(self, drawn: RandomRequest) -> tuple[str, float]:
        body, lines, first = PROTOCOLS[self.path](drawn, self._continued()), 0, 0.0
        async with exchange(self._address, "POST", self.path, body) as response:
            if response.status == 503:
                return "busy", 0.0  # Signals killed the process that would have read the request.
            if 400 <= response.status < 500:
                return "refused", 0.0
            if response.status != 200:
                said = (await response.read()).decode(errors="replace")
                return f"failed: {response.status} {said}"[:200], 0.0
            async for line in response.lines():
                first = first or time.monotonic()
                lines += 1
                if self.path == RESPONSES and (found := RESPONSE_ID.search(line)):
                    self._remember(found[1].decode(), body["store"])
                if drawn.stream and lines == drawn.patience:
                    return "hung up", first
        return "finished", first

    def _continued(self) -> str | None:
        """Return the response that the next request continues."""
        return self._previous if self._rng.random() < CONTINUED_SHARE else None

    def _remember(self, name: str, stored: bool) -> None:
        if stored and name not in self.stored[-1:]:
            self.stored.append(name)
            self._previous = name
