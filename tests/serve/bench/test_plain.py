"""Plain decoding against transformers, in the small."""

import json
from pathlib import Path

import pytest
from small_pair import TARGET

from serve.bench.bandwidth import ReadBandwidth
from serve.bench.conditions import conditions
from serve.bench.cpu import CpuRecord
from serve.bench.kimi_108m import random_target
from serve.bench.plain import Lengths, compare_plain, step_spread
from serve.bench.record import write_record
from serve.bench.transformers_peer import TransformersPeer


def test_a_step_is_the_difference_of_two_lengths() -> None:
    spread = step_spread(short=[2.0, 3.0, 2.5], long=[12.0, 12.0, 14.5], steps=10)
    assert spread.median == pytest.approx(1.0)
    assert spread.best == pytest.approx((12.0 - 2.0) / 10)
    assert spread.count == 3


def test_both_sides_agree_and_the_record_says_how_it_was_made(tmp_path: Path) -> None:
    target = random_target(TARGET)
    result = compare_plain(
        target,
        TransformersPeer(target),
        ReadBandwidth(256),
        batch=2,
        repetitions=2,
        lengths=Lengths(2, 6),
    )
    assert (result.identical, result.differences) == (2, [])
    assert 2 <= result.floor.distinct_experts <= 4
    assert result.engine.end_to_end_s.count == 2
    record = CpuRecord(repetitions=2, plain=[result])
    write_record(tmp_path / "record.json", "cpu", conditions(), record)
    read = json.loads((tmp_path / "record.json").read_text())
    assert read["benchmark"] == "cpu"
    assert {"cpu", "cores", "date", "versions", "load_average"} <= set(read["conditions"])
    entry = read["plain"][0]
    assert entry["engine"]["step_s"]["count"] == 2
    ratio = entry["transformers"]["step_s"]["median"] / entry["engine"]["step_s"]["median"]
    assert entry["ratio_median"] == pytest.approx(ratio)
    share = entry["floor"]["weight_bytes"] + entry["floor"]["kv_bytes"]
    share /= entry["bandwidth"]["median"] * entry["engine"]["step_s"]["median"]
    assert entry["floor_share_median"] == pytest.approx(share)
