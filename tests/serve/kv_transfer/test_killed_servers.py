"""Launched servers, killed with -9 while they serve, behind a router; with --long of the embedded
pair, else on the simulated device, which checks every row that it reads.

In exact mode, so that whatever was killed and wherever a prompt's pages lie an answer has the bits
of one by a server that nobody killed.
"""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from oracle_files import ORACLES
from probe import free_port, text_of, wait_for
from processes import serving

from eagle3_tools.bench.load.server_process import metric

PATH = "/v1/completions"
PREFILL = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
READY_S, ANSWER_S, SETTLED_S = 300.0, 60.0, 30.0
ENGINE = "--exact --max-num-seqs 2 --max-model-len 256 --num-gpu-blocks-override 40"
CHUNKS = "--max-num-batched-tokens 32 --kv-offloading-size 0.1"
AGENTS, TURNS = 3, 3
Choice = dict[str, Any]
Prompt = list[int]


def prompts() -> list[Prompt]:
    """Prompts of agents that grow: all agents' first turns, then all second turns, and so on."""
    rng = random.Random(7)
    stems = [[rng.randrange(20, 500) for _ in range(64 + 48 * TURNS)] for _ in range(AGENTS)]
    return [stem[: 70 + 48 * turn] for turn in range(TURNS) for stem in stems]


class Pair(NamedTuple):
    """Flags that name it, and the module that serves it."""

    flags: tuple[str, ...]
    module: str


class Launched:
    """A server that can be killed and started again."""

    def __init__(self, pair: "Pair", *flags: str) -> None:
        self._flags = (*pair.flags, *ENGINE.split(), *CHUNKS.split(), *flags)
        self._module, self._open = pair.module, ExitStack()

    def start(self) -> None:
        started = serving(self._flags, READY_S, self._module)
        self.process, self.url = self._open.enter_context(started)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._open.close()

    def __enter__(self) -> "Launched":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def metric(self, name: str, **labels: str) -> float:
        return metric(text_of(f"{self.url}/metrics"), name, **labels)

    def holds(self) -> dict[str, float]:
        """Return the resources in use, by metric."""
        names = ["kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"]
        names = [f"vllm:{name}" for name in names]
        if "--kv-transfer-config" in self._flags:
            names.append("eagle3:kv_transfers_kept")
        return {name: self.metric(name) for name in names}


def asked(url: str, salt: str = "", producer: str | None = None) -> list[Choice | None]:
    """Return the answer to each prompt, bits of log-probabilities too; None if no answer came.

    A prompt goes first to the producer if there is one, as by a router of vLLM's protocol.
    """

    def ask(prompt: Prompt) -> Choice | None:
        body = {"prompt": prompt, "max_tokens": 8, "logprobs": 1, "temperature": 0.7, "seed": 3}
        body |= {"cache_salt": salt} if salt else {}
        if producer:
            with suppress(httpx.HTTPError):
                first = httpx.post(producer + PATH, json=body | PREFILL, timeout=ANSWER_S)
                params = first.raise_for_status().json().get("kv_transfer_params")
                body |= {"kv_transfer_params": params} if params else {}
        try:
            answer = httpx.post(url + PATH, json=body, timeout=ANSWER_S)
        except httpx.HTTPError:
            return None
        return answer.json()["choices"][0] if answer.status_code == 200 else None

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(ask, prompts()))


def killed_while_it_serves(victim: Launched, after_s: float, *urls: str) -> list[Choice | None]:
    """Return the answers that came meanwhile; `urls` are arguments of `asked`."""
    with ThreadPoolExecutor(1) as thread:
        answers = thread.submit(asked, *urls)
        time.sleep(after_s)
        victim.kill()
        return answers.result()


def assert_gives_all_back(survivor: Launched) -> None:
    wait_for(lambda: not any(survivor.holds().values()), SETTLED_S, survivor.holds, 0.05)


def assert_serves_whole_pages(producer: Launched) -> None:
    """Check that pages of the directory were used and none was damaged."""
    assert producer.metric("eagle3:prompt_tokens_cached_by_tier_total", tier="disk") > 0
    counts = ("eagle3:kv_damaged_pages_total", "eagle3:kv_foreign_files")
    assert [producer.metric(name) for name in counts] == [0, 0]


def assert_right(told: list[Choice | None], expected: list[Choice | None]) -> None:
    """Check the answers that came."""
    assert all(choice in (None, right) for choice, right in zip(told, expected, strict=True))


@pytest.fixture
def pair(target_directory: Path, pytestconfig: pytest.Config) -> Pair:
    if pytestconfig.getoption("long"):
        return Pair(("--demo",), "serve.cli")
    drafts = {"model": str(ORACLES / "draft_mha_bf16"), "method": "eagle3"}
    config = json.dumps(drafts | {"num_speculative_tokens": 1})
    return Pair((str(target_directory), "--speculative-config", config), "simulated_server")


def on_disk(directory: Path) -> tuple[str, ...]:
    return ("--kv-offloading-dir", str(directory), "--kv-offloading-dir-size", "0.1")


def test_a_server_killed_while_it_serves_goes_on_from_whole_pages(
    pair: Pair, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Started again on its directory; with --long ten times."""
    rng = random.Random(5)
    with Launched(pair, *on_disk(tmp_path)) as server:
        expected = asked(server.url)
        assert None not in expected
        wait_for(lambda: any(tmp_path.rglob("*.page")), SETTLED_S)
        for _ in range(10 if pytestconfig.getoption("long") else 1):
            told = killed_while_it_serves(server, rng.uniform(0, 1), server.url)
            assert_right(told, expected)
            server.start()
            assert asked(server.url) == expected
            assert_serves_whole_pages(server)
            assert_gives_all_back(server)


@pytest.mark.long
def test_of_two_servers_behind_a_router_the_one_that_is_left_loses_no_page(
    pair: Pair, tmp_path: Path
) -> None:
    """The producer is killed and started again on its directory, then the consumer, ten times."""
    rng = random.Random(11)
    port = free_port()
    extra = {"expiry_s": 3, "producers": [f"127.0.0.1:{port}"]}
    config = {"kv_role": "kv_both", "kv_connector_extra_config": extra}
    flags = [("--kv-transfer-config", json.dumps(config | {"kv_port": p})) for p in (port, 0)]
    with (
        Launched(pair, *flags[0], *on_disk(tmp_path)) as producer,
        Launched(pair, *flags[1]) as consumer,
    ):
        expected = asked(consumer.url, salt="apart")
        assert None not in expected
        for _ in range(10):
            routed = consumer.url, "", producer.url
            assert asked(*routed) == expected
            wait_for(lambda: any(tmp_path.rglob("*.page")), SETTLED_S)
            told = killed_while_it_serves(producer, rng.uniform(0, 1), *routed)
            assert told == expected, "the consumer runs what the producer does not"
            assert_gives_all_back(consumer)
            producer.start()
            routed = consumer.url, "", producer.url
            assert asked(*routed) == expected
            assert_serves_whole_pages(producer)
            assert_right(killed_while_it_serves(consumer, rng.uniform(0, 1), *routed), expected)
            assert_gives_all_back(producer)
            assert asked(producer.url) == expected
            consumer.start()
