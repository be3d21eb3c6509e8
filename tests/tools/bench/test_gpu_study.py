"""The GPU study on a CPU: it counts launches and compares tokens."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from small_pair import PROMPTS, small_pair

from eagle3_jax.engine import EngineConfig
from eagle3_tools.bench.gpu import worker
from eagle3_tools.bench.gpu.launched import UNNAMED, Launched, launched_by, read_trace
from eagle3_tools.checks.record import read_record

CONFIG = EngineConfig(2, 128, 4, page_size=16, batch_buckets=(4,))


def test_a_round_launches_its_program_once_and_one_more_is_seen(monkeypatch: pytest.MonkeyPatch):
    once, x = jax.jit(lambda x: x + 1), jnp.zeros(3)
    alone: list[Launched] = []

    def with_one_more(work: Any) -> Launched:
        jax.block_until_ready(once(x))
        alone.append(launched_by(work))
        return launched_by(lambda: (work(), jax.block_until_ready(once(x))))

    monkeypatch.setattr(worker, "launched_by", with_one_more)
    spoiled = worker.bare_round(small_pair(), CONFIG, PROMPTS, rounds=4)
    assert not spoiled.holds and spoiled.launched.foreign == ["<lambda>"]
    assert spoiled.launched.programs == 5
    assert alone == [Launched(programs=4, called=("_round",))]
    assert replace(spoiled, launched=alone[0]).holds


def event(name: str, **stats: str) -> Any:
    return SimpleNamespace(name=name, stats=list(stats.items()), duration_ns=500.0)


def test_kernels_of_a_device_count_for_the_program_that_they_belong_to():
    """A trace as XLA writes one for a GPU: a line for each stream, kernels with their module."""
    stream = [
        event("mla_decode", hlo_module="jit__round"),
        event("fusion", hlo_module="jit__round"),
        event("MemcpyD2H"),
        event("at::native::add"),
    ]
    modules = [event("jit__round", hlo_module="jit__round")]
    calls = [event("PjitFunction(jit(_round))"), event("GpuLoadedExecutable::ExecuteHelper")]

    def plane(name: str, **lines: list[Any]) -> Any:
        found = [SimpleNamespace(name=line, events=events) for line, events in lines.items()]
        return SimpleNamespace(name=name, lines=found)

    host = plane("/host:CPU", python=calls)
    device = plane("/device:GPU:0", **{"Stream #7": stream, "XLA Modules": modules})
    found = read_trace(SimpleNamespace(planes=[host, device]))
    assert found == Launched(1, ("_round",), {"jit__round": 2, UNNAMED: 1}, 1, 2.0)
    assert found.foreign == [UNNAMED]


@pytest.mark.long
def test_a_crash_costs_its_own_part(tmp_path: Path):
    path = tmp_path / "record.jsonl"
    flags = "--dry-run", "--batch", "2", "--max-tokens", "8", "--json", str(path)
    command = sys.executable, "-m", "eagle3_tools.bench", "gpu", *flags, "--crash", "round"
    crashed = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    lines = {line["kind"]: line for line in read_record(path)}
    assert list(lines) == ["conditions", "round", "loop", "tokens", "bars"]
    assert "SIGSEGV" in lines["round"]["reason"] and "a rehearsed crash" in lines["round"]["said"]
    assert lines["loop"]["holds"] and lines["tokens"]["differences"] == []
    assert not lines["bars"]["holds"] and "its times mean nothing" in crashed.stdout
    assert crashed.returncode == 1
