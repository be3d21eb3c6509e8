"""A server under a soak: signals to it and its processes, and what it holds while idle."""

import asyncio
import os
import random
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from eagle3_tools.bench.common.conditions import memory_mib
from eagle3_tools.bench.load.http_client import Address, request
from eagle3_tools.bench.load.random_requests import FEATURES, PROTOCOLS, RequestSource
from eagle3_tools.bench.load.server_process import metric
from eagle3_tools.bench.load.soak_record import Holdings, ServerRecord

TIERS = {
    "host usage": ("eagle3:kv_tier_usage_perc", "host"),
    "disk usage": ("eagle3:kv_tier_usage_perc", "disk"),
    "tokens from host": ("eagle3:prompt_tokens_cached_by_tier_total", "host"),
    "tokens from disk": ("eagle3:prompt_tokens_cached_by_tier_total", "disk"),
}
GAUGES = {
    "tasks": "eagle3:event_loop_tasks",
    "stored_responses": "eagle3:stored_responses",
    "stored_bytes": "eagle3:stored_response_bytes",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "pages": "vllm:kv_cache_usage_perc",
}
"""Field of `Holdings` -> metric."""


class SoakServer:
    """A server's process.

    `memory_mib` has its resident memory since the last `clear`, every ten seconds.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], address: Address) -> None:
        self.name, self.address, self.memory_mib = name, address, list[float]()
        self._process, self._examined, self._metrics = process, list[Holdings](), ""

    def sample_memory(self) -> float:
        """Append the resident memory to `memory_mib`, and return it."""
        self.memory_mib.append(round(memory_mib(self._process.pid, "VmRSS"), 1))
        return self.memory_mib[-1]

    async def signal(self, rng: random.Random) -> str:
        """Stop the server for up to a second, or kill one of its processes; return which."""
        processes = descendants(self._process.pid)
        if processes and rng.random() < 0.5:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(processes), signal.SIGKILL)
            return "killed"
        self._process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(rng.random())
        finally:
            self._process.send_signal(signal.SIGCONT)
        return "stopped"

    async def use_every_feature(self, source: RequestSource) -> None:
        """Send each protocol's requests of every feature at once, so that all processes run."""
        rng = random.Random(0)
        sent = []
        for path, form in PROTOCOLS.items():
            for feature in FEATURES:
                body = form(source.draw(rng, feature), None)
                unstored = {"store": False} if "store" in body else {}
                sent.append(request(self.address, "POST", path, body | unstored))
        await asyncio.gather(*sent)

    async def examine(self) -> None:
        """Record what the idle server holds."""
        self._metrics = (await request(self.address, "GET", "/metrics")).text
        proc = Path(f"/proc/{self._process.pid}")
        self._examined.append(
            Holdings(
                memory_mib=round(memory_mib(self._process.pid, "VmRSS"), 1),
                open_files=len(list((proc / "fd").iterdir())),
                threads=len(list((proc / "task").iterdir())),
                processes=len(descendants(self._process.pid)),
                **{field: metric(self._metrics, name) for field, name in GAUGES.items()},
            )
        )

    async def end(self) -> ServerRecord:
        """Let the server drain and return its record."""
        self._process.terminate()
        status = await asyncio.to_thread(self._process.wait, 60)
        before, after = self._examined
        has_tiers = "eagle3:kv_tier_usage_perc" in self._metrics
        return ServerRecord(
            self.name,
            before,
            after,
            self.memory_mib,
            int(metric(self._metrics, "vllm:num_preemptions_total")),
            {k: metric(self._metrics, m, tier=t) for k, (m, t) in TIERS.items()}
            if has_tiers
            else {},
            status,
        )


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, _, fields = stat.read_text().rpartition(")")
            state, parent, *_ = fields.split()
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, reached = list[int](), [pid]
    while reached:
        below = children.get(reached.pop(), [])
        found += below
        reached += below
    return found
