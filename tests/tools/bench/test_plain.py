"""Plain decoding against transformers, in the small."""

import json
from collections import Counter
from pathlib import Path

import pytest
from small_pair import TARGET

from eagle3_jax.engine.programs.program import Program, ProgramKind
from eagle3_tools.bench.common.command import write_record
from eagle3_tools.bench.common.conditions import conditions
from eagle3_tools.bench.cpu.byte_floor import ReadBandwidth
from eagle3_tools.bench.cpu.context import split_time
from eagle3_tools.bench.cpu.kimi_108m import random_target
from eagle3_tools.bench.cpu.operations import BETWEEN, Event, add_own_times, profile_steps
from eagle3_tools.bench.cpu.plain import Lengths, compare_plain, step_spread
from eagle3_tools.bench.cpu.transformers_peer import TransformersPeer, need_compiler
from eagle3_tools.bench.studies.cpu import CpuRecord


def test_a_step_is_the_difference_of_two_lengths() -> None:
    spread = step_spread(short=[2.0, 3.0, 2.5], long=[12.0, 12.0, 14.5], steps=10)
    assert spread.median == pytest.approx(1.0)
    assert spread.best == pytest.approx((12.0 - 2.0) / 10)
    assert spread.count == 3


def test_both_sides_agree_and_the_record_says_how_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = [Program(ProgramKind.PREFILL), Program(ProgramKind.ROUND, 2)]
    monkeypatch.setattr("eagle3_jax.engine.programs.executor.all_programs", lambda *_, **__: needed)
    target = random_target(TARGET)
    result = compare_plain(
        target,
        {"default": TransformersPeer(target).generate},
        ReadBandwidth(256),
        batch=2,
        repetitions=2,
        lengths=Lengths(2, 6),
    )
    peer = result.peers[result.fastest_peer]
    assert (peer.identical, peer.differences) == (2, [])
    assert 2 <= result.floor.distinct_experts <= 4
    assert result.engine.end_to_end_s.count == 2
    record = CpuRecord(repetitions=2, plain=[result])
    write_record(tmp_path / "record.json", "cpu", conditions(), record)
    read = json.loads((tmp_path / "record.json").read_text())
    assert read["benchmark"] == "cpu"
    assert {"cpu", "cores", "date", "versions", "load_average"} <= set(read["conditions"])
    entry = read["plain"][0]
    assert entry["engine"]["step_s"]["count"] == 2
    ratio = entry["peers"]["default"]["times"]["step_s"]["median"]
    ratio /= entry["engine"]["step_s"]["median"]
    assert entry["peers"]["default"]["ratio_median"] == pytest.approx(ratio)
    share = entry["floor"]["weight_bytes"] + entry["floor"]["kv_bytes"]
    share /= entry["bandwidth"]["median"] * entry["engine"]["step_s"]["median"]
    assert entry["floor_share_median"] == pytest.approx(share)


def test_a_profile_names_the_parts_of_a_step_and_leaves_out_nothing() -> None:
    parts = profile_steps(random_target(TARGET), [[1, 2, 3]], context=64, steps=8)
    names = {part.name for part in parts}
    assert {"routed and shared experts", "attention over the cache", BETWEEN} <= names
    assert all(part.microseconds > 0 and part.count > 0 for part in parts)


def test_own_times_are_durations_less_those_inside() -> None:
    events = [Event("call", 0, 100), Event("dot.1", 10, 30), Event("dot.1", 50, 20)]
    times, counts = Counter(), Counter()
    add_own_times(events, {"dot.1": "head"}, times, counts)
    assert times == {BETWEEN: 50, "head": 50}
    assert counts == {BETWEEN: 1, "head": 2}


def test_attention_is_timed_with_what_runs_inside_it_and_once() -> None:
    scopes = {"call": "other", "while": "attention over the cache", "dot": "router"}
    scopes |= {"exp": "attention over the cache"}
    events = [Event("call", 0, 100), Event("while", 10, 60), Event("dot", 20, 5)]
    events += [Event("exp", 30, 5), Event("dot", 120, 7), Event("exp", 130, 2)]
    assert split_time(events, scopes) == (62, 47)


def test_a_missing_compiler_is_said_before_torch_looks_for_it() -> None:
    with pytest.raises(OSError, match=r"install g\+\+, or leave that peer out"):
        need_compiler(lambda name: None)
