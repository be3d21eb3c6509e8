"""The benchmark of the chosen k: what it starts, what it reads, and when it holds."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from serve.bench.load.http_client import Address, Reply
from serve.bench.load.server_process import metric
from serve.bench.studies import choice
from serve.bench.studies.choice import (
    ADAPTIVE,
    AGAIN,
    ALONE,
    FIXED,
    PLAIN,
    MeasuredServer,
    load_result,
    server_flags,
)
from serve.options.serve_flags import parse_serve_flags

NOWHERE = Address("nowhere", 80, tls=False)
METRICS = """
eagle3:spec_decode_rounds_total{drafted="0",engine="0",model_name="m"} 30
eagle3:spec_decode_rounds_total{drafted="1",engine="0",model_name="m"} 0
eagle3:spec_decode_rounds_total{drafted="2",engine="0",model_name="m"} 15
vllm:num_requests_running{engine="0",model_name="m"} 2
"""


def servers(medians: dict[str, float]) -> dict[str, MeasuredServer]:
    found = {}
    for name, median in medians.items():
        runs = [median - 1, median, median + 1]
        found[name] = MeasuredServer(NOWHERE, runs, {"p": "yes", "q": "no"})
    return found


def measured(
    adaptive: float, fixed: float, again: float, plain: float
) -> dict[str, MeasuredServer]:
    return servers({ADAPTIVE: adaptive, FIXED: fixed, AGAIN: again, PLAIN: plain, ALONE: 125.0})


def test_every_server_has_a_command_line_that_the_server_takes() -> None:
    options = {
        name: parse_serve_flags(flags)[0] for name, flags in server_flags(3, most=16).items()
    }
    assert [name for name, option in options.items() if option.engine.adaptive] == [ADAPTIVE]
    assert options[FIXED] == options[AGAIN]
    assert options[PLAIN].engine.num_speculative_tokens_per_batch_size == ((1, 16, 0),)
    ks = {name: option.engine.num_speculative_tokens for name, option in options.items()}
    assert ks == {ADAPTIVE: 3, FIXED: 3, AGAIN: 3, PLAIN: 3, ALONE: 0}


@pytest.mark.parametrize(
    ("speeds", "share", "noise", "holds"),
    [
        ((100, 100, 100, 90), 1.0, 0.0, True),
        ((97, 100, 100, 90), 0.97, 0.0, True),
        ((96, 100, 100, 90), 0.96, 0.0, False),
        ((96, 90, 90, 100), 0.96, 0.0, False),
        ((96, 102, 100, 100), 96 / 102, 0.02, False),
        ((98, 103, 100, 100), 98 / 103, 0.03, True),
    ],
)
def test_the_chosen_k_is_held_against_the_better_server_less_the_noise(
    speeds: Sequence[float], share: float, noise: float, holds: bool
) -> None:
    result = load_result(4, measured(*speeds))
    assert (result.share, result.noise) == (pytest.approx(share), pytest.approx(noise))
    assert result.holds is holds
    assert result.plain_share == speeds[3] / 125


def test_answers_that_are_not_the_same_everywhere_are_counted() -> None:
    found = measured(1, 1, 1, 1)
    assert load_result(1, found).different == 0
    found[PLAIN].answers["q"] = "perhaps"
    assert load_result(1, found).different == 1


def test_metrics_are_found_by_name_and_label() -> None:
    assert metric(METRICS, "vllm:num_requests_running") == 2
    assert metric(METRICS, "eagle3:spec_decode_rounds_total", drafted="2") == 15
    with pytest.raises(AssertionError, match="no vllm:absent"):
        metric(METRICS, "vllm:absent")


def test_a_run_asks_each_prompt_once_with_so_many_clients_and_counts_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, at_work, most = [], 0, 0

    async def answer(_: Address, method: str, path: str, body: Any = None) -> Reply:
        nonlocal at_work, most
        if path == "/metrics":
            return Reply(path, 200, {}, METRICS.encode())
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.001)
        at_work -= 1
        asked.append(json.dumps(body))
        found = {"choices": [{"message": {"content": "yes"}}], "usage": {"completion_tokens": 7}}
        return Reply(path, 200, {}, json.dumps(found).encode())

    async def run() -> MeasuredServer:
        server = MeasuredServer(NOWHERE)
        assert await server.run([f"{i}" for i in range(10)], concurrency=3) == 10 * 7
        assert await server.drafted() == (30, 45)
        return server

    monkeypatch.setattr(choice, "request", answer)
    server = asyncio.run(run())
    assert len(set(asked)) == len(asked) == 10 and most == 3
    assert 0 < server.runs[0] <= 10 * 7 / 0.003
    assert server.answers == {f"{i}": "yes" for i in range(10)}
