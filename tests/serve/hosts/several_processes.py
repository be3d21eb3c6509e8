"""Several processes on this machine as one server, and one process's tokens beside theirs."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from driving import drive
from oracle_files import ORACLES
from probe import free_port, status_of, wait_for
from taken_names import folder_with_taken_names

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.sampling.params import SamplingParams
from serve.options.hosts import HostOptions
from serve.pair.loading import LoadedPair

DRAFT = ORACLES / "draft_mha_bf16"
TESTS = Path(__file__).parents[2]
SERVER = "import few_programs, sys; sys.exit(few_programs.main(sys.argv[1:]))"


@dataclass
class Group:
    """All processes, process 0's address, what they say on standard error, and how they meet."""

    processes: list[subprocess.Popen[bytes]]
    url: str
    logs: list[Path]
    hosts: HostOptions

    def said(self, process: int) -> str:
        return self.logs[process].read_text()


@dataclass(frozen=True)
class Sizes:
    """count processes of so many devices; context_parts: devices that divide a context; replicas,
    which have no pages in the host's memory."""

    count: int = 2
    devices: int = 2
    context_parts: int = 4
    replicas: int = 1

    @property
    def flags(self) -> list[str]:
        """Flags of a command with these sizes."""
        size = self.count * self.devices // self.replicas
        flags = ["-tp", f"{size}", "--decode-context-parallel-size", f"{self.context_parts}"]
        if self.replicas == 1:
            return [*flags, "--kv-offloading-size", "0.01"]
        return [*flags, "-dp", f"{self.replicas}", "--enable-expert-parallel"]


@contextmanager
def several_processes(
    directory: Path,
    target: Path,
    sizes: Sizes,
    while_meeting: Callable[[Group], object] = lambda group: None,
) -> Iterator[Group]:
    """while_meeting: called while process 0 waits for the others, which are not started."""
    http, coordinator, calls = free_port(), free_port(), free_port()
    speculation = json.dumps({"model": str(DRAFT), "num_speculative_tokens": 3})
    command = [sys.executable, "-P", "-c", SERVER, str(target)]
    command += [*sizes.flags, "--num-processes", f"{sizes.count}"]
    command += ["--max-num-seqs", "2", "--max-model-len", "256", "--port", f"{http}"]
    command += ["--speculative-config", speculation, "--block-size", "4"]
    command += ["--num-gpu-blocks-override", f"{264 // (4 * sizes.context_parts) + 1}"]
    command += ["--coordinator-address", f"127.0.0.1:{coordinator}", "--plan-port", f"{calls}"]
    command += ["--hosts-key-file", str(directory / "key")]
    key = written_key(directory / "key")
    hosts = HostOptions(("127.0.0.1", coordinator), calls, sizes.count, 0, key)
    environment = os.environ | {"PYTHONPATH": f"{TESTS.parent}:{TESTS / 'serve'}"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(target.parent / "programs")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment |= {"JAX_NUM_CPU_DEVICES": f"{sizes.devices}"}
    place = folder_with_taken_names(directory)
    logs = [directory / f"{process}.log" for process in range(sizes.count)]
    group = Group([], f"http://127.0.0.1:{http}", logs, hosts)
    try:
        for process, log in enumerate(logs):
            with log.open("wb") as error:
                argv = [*command, "--process-id", f"{process}"]
                group.processes.append(
                    subprocess.Popen(argv, env=environment, stderr=error, cwd=place)
                )
            if process == 0:
                while_meeting(group)
        wait_until_ready(group)
        yield group
    finally:
        for process in group.processes:
            process.kill()
            process.wait()


def wait_until_ready(group: Group) -> None:
    def ready() -> bool:
        ended = [group.said(i) for i, p in enumerate(group.processes) if p.poll() is not None]
        assert not ended, ended
        return status_of(f"{group.url}/health") == 200

    wait_for(ready, 400, every_s=0.2)


def ask(group: Group, body: dict[str, Any]) -> list[int]:
    answer = httpx.post(f"{group.url}/v1/completions", json=body, timeout=120).json()
    return answer["choices"][0]["token_ids"]


def plain_tokens(pair: LoadedPair, bodies: list[dict[str, Any]]) -> list[list[int]]:
    """Tokens of one process on one device without drafts."""
    names = ("temperature", "top_p", "seed", "max_tokens", "ignore_eos")
    requests = [
        Request(f"{i}", body["prompt"], SamplingParams(**{n: body[n] for n in names if n in body}))
        for i, body in enumerate(bodies)
    ]
    config = EngineConfig(0, max_model_len=256, max_num_seqs=8, batch_buckets=(8,))
    answers = drive(Engine(pair.target, None, config), requests)
    return [answers[request.request_id].token_ids for request in requests]


def written_key(path: Path) -> Path:
    """A key that only its owner can read."""
    path.touch(0o600)
    path.write_text(random.randbytes(32).hex())
    return path
