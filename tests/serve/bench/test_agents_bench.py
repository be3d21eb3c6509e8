"""Agents with growing prompts: what host memory keeps of the hits, in counts, never in time."""

import random
from dataclasses import replace

import pytest
from simulated_device import VOCAB, simulated_engine

from serve.bench.studies.agents.study import (
    ENOUGH,
    PAGE,
    SMALL,
    TIERED,
    UNLIMITED,
    agents_record,
    trace_configs,
)
from serve.bench.studies.agents.trace import AgentTrace, TraceResult, run_trace

TRACE = AgentTrace(agents=16, turns=4)


def test_host_memory_keeps_the_hits_that_a_quarter_of_the_pages_loses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A simulated page takes a byte."""
    text = random.Random(1).choices(range(VOCAB), k=4000)
    configs = trace_configs(TRACE)
    configs[TIERED] = replace(configs[TIERED], kv_offloading_bytes=2 * TRACE.working_pages(PAGE))
    results = {
        name: run_trace(simulated_engine(monkeypatch, config), TRACE, text)
        for name, config in configs.items()
    }
    record = agents_record(TRACE, configs, results, {name: [1.0] for name in results})
    assert record.holds and record.hits_share >= ENOUGH
    caches = record.caches
    assert 4 * caches[SMALL].pages <= record.working_pages < caches[UNLIMITED].pages
    assert caches[SMALL].hits < caches[UNLIMITED].hits / 2 and caches[TIERED].loaded > 0
    assert {one.different for one in caches.values()} == {0}
    assert len({one.hits + one.prefilled for one in caches.values()}) == 1
    lost = replace(results[TIERED], hits=results[SMALL].hits)
    assert isinstance(lost, TraceResult)
    rates = {name: [1.0] for name in results}
    assert not agents_record(TRACE, configs, {**results, TIERED: lost}, rates).holds
