"""Results: the formulas of benchmark_serving.py, acceptance as vLLM counts it, whole files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eagle3_tools.bench.common.accept_length import AcceptCounts
from eagle3_tools.bench.common.conditions import conditions
from eagle3_tools.bench.load.counters import between, read_counts
from eagle3_tools.bench.load.lengths import Workload
from eagle3_tools.bench.load.openai_server import Outcome
from eagle3_tools.bench.load.prompts import Prompt
from eagle3_tools.bench.load.traffic import Traffic
from eagle3_tools.bench.sweep.configurations import Configuration, SweepPlan
from eagle3_tools.bench.sweep.measure import write_result
from eagle3_tools.bench.sweep.result import Point, result_json
from eagle3_tools.bench.sweep.rows import rows_of
from serve.options.serve_flags import parse_serve_flags

PLAN = SweepPlan([Workload(96, 32)], [2, 4], [0])
PROMPTS = [Prompt("p", "p", 10, 5), Prompt("q", "q", 20, 3), Prompt("r", "r", 30, 4)]
COUNTS = AcceptCounts(10, 30, 15, (8, 5, 2))
METRICS = """
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} %s
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} %s
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} %s
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} %s
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} %s
vllm:num_requests_running{engine="0"} 3
"""


def answered(ttft: float, gaps: list[float], text: str, tokens: int | None, **more: Any) -> Outcome:
    latency = ttft + sum(gaps)
    return Outcome(ttft, gaps, latency, [text], 10, completion_tokens=tokens, **more)


def result_of(*outcomes: Outcome, seed: int = 0, counts: AcceptCounts | None = COUNTS) -> Any:
    point = Point("k3", "m", "t", Workload(96, 32), 4, seed, float("inf"), 2, "cpu", "1")
    traffic = Traffic(list(outcomes), 1e9, 2.0)
    encode = str.encode
    return result_json(point, PROMPTS, traffic, counts, encode, conditions(), [90.0, 99.9])


OUTCOMES = (
    answered(0.1, [0.2, 0.2], "abcab", 5),
    answered(0.3, [0.1], "abc", None),
    Outcome(error="lost"),
)


def test_times_and_throughputs_are_those_of_the_published_client() -> None:
    result = result_of(*OUTCOMES)
    assert (result["completed"], result["num_prompts"]) == (2, 3)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (30, 5 + 3)
    assert result["output_throughput"] == 4 and result["total_token_throughput"] == 19
    assert result["mean_ttft_ms"] == pytest.approx(200)
    # TPOT divides by tokens after the first, ITL is a gap between events.
    assert result["mean_tpot_ms"] == pytest.approx((400 / 4 + 100 / 2) / 2)
    assert result["median_itl_ms"] == pytest.approx(200)
    assert result["p90_e2el_ms"] == pytest.approx(400 + 0.9 * 100)
    assert {"p99.9_ttft_ms", "std_tpot_ms", "p99.9_itl_ms"} <= set(result)
    ours = result["eagle3"]
    assert (ours["output_tput_per_gpu"], ours["tput_per_gpu"]) == (2, 9.5)
    assert (ours["failed"], ours["first_error"]) == (1, "lost")


def test_process_result_can_divide_and_convert_every_key_it_takes_for_a_time() -> None:
    same = [answered(0.1, [0.2], "ab", 2), answered(0.1, [0.2], "ab", 2), answered(0.1, [], "a", 1)]
    for outcomes in (OUTCOMES, same):
        result = result_of(*outcomes)
        json.dumps(result, allow_nan=False)
        assert {"model_id", "max_concurrency", "total_token_throughput"} <= set(result)
        for key, value in result.items():
            if key.endswith("ms"):
                assert isinstance(value, float)
            if "tpot" in key:
                assert key.endswith("_ms") and value > 0


def test_acceptance_has_the_names_and_formulas_of_vllm() -> None:
    result = result_of(*OUTCOMES)
    assert result["spec_decode_acceptance_length"] == 2.5
    assert result["spec_decode_acceptance_rate"] == 50
    assert result["spec_decode_per_position_acceptance_rates"] == [0.8, 0.5, 0.2]
    assert not [key for key in result_of(*OUTCOMES, counts=None) if key.startswith("spec_")]


def test_synthetic_answers_are_not_presented_as_the_models() -> None:
    real = result_of(*OUTCOMES)["eagle3"]
    assert real["synthetic_acceptance_length"] is None
    # ab bc ca ab + ab bc
    assert real["distinct_bigrams"] == pytest.approx(3 / 6)
    made_up = [answered(0.1, [0.2, 0.2], "abcab", 5, synthetic=2.88)] * 3
    ours = result_of(*made_up)["eagle3"]
    assert (ours["synthetic_acceptance_length"], ours["distinct_bigrams"]) == (2.88, None)


def test_counters_are_differences_summed_over_engines_in_any_notation() -> None:
    before = read_counts(METRICS % ("1e+06", "3e+06", "10", "7", "3"))
    after = read_counts(METRICS % ("1000010", "3.00002e+06", "22", "15", "7"))
    assert between(before, after) == AcceptCounts(10, 20, 12, (8, 4))
    assert between(after, after) is None and between({}, {}) is None


def test_a_result_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_result(tmp_path, result_of(*OUTCOMES))
    assert path.name == "k3_isl96_osl32_conc4_seed0.json"
    written = path.read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_result(tmp_path, result_of(*OUTCOMES, counts=None))
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [written]


def test_seeds_of_one_place_become_one_row() -> None:
    slow = [answered(0.2, [0.4], "ab", 2)] * 3
    row, other = rows_of(
        [
            result_of(*OUTCOMES),
            result_of(*slow, seed=1),
            {**result_of(*OUTCOMES), "max_concurrency": 8},
        ]
    )
    assert (row.seeds, row.concurrency, other.concurrency) == (2, 4, 8)
    assert row.output_tput_per_gpu.median == pytest.approx((2 + 1.5) / 2)
    assert row.accept_length == 2.5 and row.per_position == (0.8, 0.5, 0.2)
    assert row.failed == 1
    assert row.intvty == pytest.approx(1000 / row.tpot_ms)


@pytest.mark.parametrize("name", ["plain", "k6", "golden3", "golden6"])
def test_configurations_are_command_lines_that_the_server_takes(name: str) -> None:
    chosen = Configuration.of(name)
    for model, draft in ((None, None), ("/target", "/draft")):
        flags = chosen.server_flags(PLAN, model, draft, ["--max-num-seqs", "9"])
        options = parse_serve_flags(flags)[0]
        engine = options.engine
        assert (bool(options.demo), options.model) == (model is None, model)
        assert engine.num_speculative_tokens == chosen.k
        assert engine.synthetic_acceptance_length == chosen.synthetic
        assert not engine.enable_prefix_caching and engine.max_num_seqs == 9
        assert options.max_model_len is not None and options.max_model_len > 96 + 32
