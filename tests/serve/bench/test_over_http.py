"""The benchmark of what HTTP costs: what it starts, how it counts, when it holds."""

import itertools
from collections import deque
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import pytest
from fake_engine import FakeEngine
from fake_server import Served

from eagle3_jax.engine import RequestOutput
from serve.bench.load.engine_and_server import (
    AGAIN,
    ANSWER_TOKENS,
    HTTP,
    OFFLINE,
    Cores,
    Demand,
    Runs,
    Sides,
    offline,
)
from serve.bench.load.http_client import Address
from serve.bench.load.openai_server import Server
from serve.bench.load.prompts import Prompt
from serve.bench.load.traffic import arrival_times
from serve.bench.studies.http import http_load, server_flags
from serve.options.pair import DEMO
from serve.options.serve_flags import parse_serve_flags

PROMPTS = [[97 + i] for i in range(7)]


@dataclass
class Counting(FakeEngine):
    """Notes how many requests ran in every step."""

    loads: deque[int] = field(default_factory=deque)

    def step(self) -> list[RequestOutput]:
        self.loads.append(len(self.running))
        return super().step()


def test_offline_keeps_so_many_requests_under_way_and_counts_their_tokens() -> None:
    engine = Counting(step_s=0.001)
    runs = offline(engine, PROMPTS, Demand(3))
    assert max(engine.loads) == 3 and engine.loads[0] == 3
    assert len(runs.ttfts) == 7 and all(0 < ttft < 0.1 for ttft in runs.ttfts)
    steps = len(engine.loads)
    assert 0 < runs.tokens_per_s[0] <= 7 * ANSWER_TOKENS / (0.001 * steps)


def test_both_sides_answer_the_same_prompts_with_the_same_tokens(fake: Served) -> None:
    server = Server(Address.of(f"{fake.http.base_url}"), "fake")
    sides = Sides(FakeEngine(step_s=0.001), server, Cores())
    run = [(ids, Prompt(chr(ids[0]), "", 1, ANSWER_TOKENS)) for ids in PROMPTS]
    for name, demand in itertools.product((OFFLINE, HTTP), (Demand(2), Demand(2, rate=500.0))):
        runs = sides.run(name, run, demand)
        assert len(runs.ttfts) == 7 and len(runs.tokens_per_s) == 1


def test_a_failed_request_ends_the_benchmark(fake: Served) -> None:
    server = Server(Address.of(f"{fake.http.base_url}"), "fake")
    sides = Sides(FakeEngine(), server, Cores())
    with pytest.raises(OSError, match="1 requests failed: OSError: status 400"):
        sides.run(HTTP, [([33], Prompt("!", "", 1, 4))], Demand(1))


def test_at_random_moments_both_sides_wait_for_the_same_and_count_from_them(fake: Served) -> None:
    """Offline a request that comes while a step runs has waited for the step, as over HTTP."""
    rate = 100.0
    moments = arrival_times(len(PROMPTS), rate)
    assert moments[0] == 0 and moments == sorted(moments)
    assert moments == arrival_times(len(PROMPTS), rate)
    assert np.diff(arrival_times(10_000, rate)).mean() == pytest.approx(1 / rate, rel=0.05)
    engine = Counting(step_s=0.03)
    slow = offline(engine, PROMPTS, Demand(1, rate))
    assert len(slow.ttfts) == 7 and max(engine.loads) > 1
    quick = offline(FakeEngine(step_s=0.001), PROMPTS, Demand(1, rate))
    assert median(slow.ttfts) > 0.03 > median(quick.ttfts)


def measured(http: float, again: float, ttft: float) -> dict[str, Runs]:
    return {
        OFFLINE: Runs([100, 90, 110], [0.01] * 3),
        AGAIN: Runs([again] * 3, [0.01] * 3),
        HTTP: Runs([http] * 3, [ttft] * 3),
    }


@pytest.mark.parametrize(
    ("http", "again", "holds"), [(91, 100, True), (89, 100, False), (88, 97, True)]
)
def test_http_holds_from_nine_tenths_less_the_noise(http: float, again: float, holds: bool) -> None:
    load = http_load(Demand(8), measured(http, again, ttft=9.0))
    assert (load.share, load.noise) == (http / 100, pytest.approx(100 / again - 1))
    assert load.holds is holds


@pytest.mark.parametrize("demand", [Demand(1), Demand(8, rate=20.0)], ids=str)
@pytest.mark.parametrize(("ttft", "holds"), [(0.0199, True), (0.0201, False)])
def test_alone_and_at_random_moments_it_may_add_ten_milliseconds(
    demand: Demand, ttft: float, holds: bool
) -> None:
    load = http_load(demand, measured(http=50, again=100, ttft=ttft))
    assert load.ttft_overhead_ms == pytest.approx(1e3 * (ttft - 0.01))
    assert load.holds is holds


def test_the_server_is_a_command_line_that_it_takes() -> None:
    options = parse_serve_flags(server_flags(3, 32, 200))[0]
    assert (options.demo, options.engine.max_num_seqs, options.max_model_len) == (DEMO, 32, 200)
    assert options.engine.num_speculative_tokens == 3
    assert not options.engine.enable_prefix_caching
