"""The benchmark command on a CPU, where its times mean nothing, and its arithmetic."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pallas_kernels import tuning
from pallas_kernels.bench import __main__ as command
from pallas_kernels.bench.bars import bars
from pallas_kernels.bench.ceilings import Ceilings
from pallas_kernels.bench.correct import largest_error
from pallas_kernels.bench.measure import Measured, measure
from pallas_kernels.bench.timing import CACHE_BYTES, Spread, Timed, copies_for
from pallas_kernels.bench.torch_peers import torch_peers
from pallas_kernels.bench.tune import around, tune, write_tuned
from pallas_kernels.case import Case
from pallas_kernels.tuning import tuned

CEILINGS = Ceilings(read=1e12, copy=1e12, bf16=1e12, fp8=2e12)


def example(seed: int) -> tuple[Array, Array]:
    x, w = (jax.random.normal(jax.random.key(seed + i), (64, 64), jnp.bfloat16) for i in (0, 1))
    return x, w


def case_of(operation: str = "matmul", shape: str = "small@tp4", **changed: Any) -> Case:
    fields: dict[str, Any] = {
        "variant": "bf16",
        "run": lambda x, w: x @ w,
        "reference": lambda x, w: x @ w,
        "example": example,
        "kernels": ("small",),
        "matrix": {},
        "bytes_moved": 3 * 2 * 64 * 64,
        "flops": 2 * 64**3,
        "decode": True,
    }
    return Case(operation, shape, **{**fields, **changed})


def wrong(x: Array, w: Array) -> Array:
    return (x @ w).at[3].multiply(1.5)


def test_the_dry_run_goes_through_the_whole_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    cases = [case_of(), case_of("route", run=wrong)]
    monkeypatch.setattr(command, "all_cases", lambda: cases)
    path = tmp_path / "record.json"
    assert command.main(["--dry-run", "--json", str(path)]) == 1
    record, printed = json.loads(path.read_text()), capsys.readouterr().out
    right, bad = record["results"]
    assert right["right"] and right["error"] < 1e-2 and not bad["right"]
    assert set(right["peers"]) == {"XLA", "torch.matmul"} and right["timed"]["us"]["median"] > 0
    assert record["arch"] == "cpu" and record["dry_run"] and record["versions"]["jax"]
    assert "ceilings: reads" in printed and "WRONG" in printed and "no meaning" in printed
    assert command.main(["--dry-run", "--only", "matmul"]) == 0


def test_without_a_gpu_and_without_a_dry_run_nothing_is_timed(
    capsys: pytest.CaptureFixture[str],
):
    assert command.main([]) == 2
    assert "--dry-run" in capsys.readouterr().err


def test_operations_take_turns_so_that_a_budget_cuts_all_alike():
    first, prefill = case_of("a", variant="1"), case_of("a", variant="2", decode=False)
    whole, other = case_of("a", "small@tp1"), case_of("b")
    turns = command.in_turn([prefill, whole, first, other])
    assert turns == [first, other, whole, prefill]


def test_a_dry_run_takes_the_smallest_case_of_each_operation_that_has_a_small_one():
    large = lambda seed: (jnp.zeros((1 << 25,), jnp.float32),)  # noqa: E731
    smaller = case_of("a", variant="2", example=lambda seed: example(seed)[:1])
    cases = [case_of("a"), smaller, case_of("b"), case_of("c", example=large)]
    assert command.smallest(cases) == [smaller, cases[2]]


def test_errors_are_shares_of_the_largest_value_and_nan_is_no_result():
    assert largest_error(case_of(), example(0)) < 4e-3
    x, w = example(0)
    off = largest_error(case_of(run=wrong), (x, w))
    product = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    assert off == pytest.approx(0.5 * np.abs(product[3]).max() / np.abs(product).max(), rel=0.02)
    assert largest_error(case_of(run=lambda x, w: x @ w * jnp.nan), (x, w)) == float("inf")
    which = case_of(run=lambda x, w: x.argmax(1), reference=lambda x, w: w.argmax(1) * 0 + 64)
    assert largest_error(which, (x, w)) == 1.0


def test_a_case_that_fails_is_recorded_and_so_is_a_peer():
    def refuse(*_: Array) -> Array:
        raise NotImplementedError("no such GPU")

    refused = measure(case_of(run=refuse), CEILINGS, samples=2)
    assert refused.refused == "NotImplementedError: no such GPU" and refused.timed is None
    scaled = measure(case_of(reference=lambda x, w: x @ w + 0), CEILINGS, samples=2)
    assert isinstance(scaled.peers["XLA"], Spread)


def test_the_floor_is_the_bytes_or_the_arithmetic():
    assert CEILINGS.floor_us(3_000_000, 1_000_000, fp8=False) == pytest.approx(3)
    assert CEILINGS.floor_us(1_000_000, 8_000_000, fp8=False) == pytest.approx(8)
    assert CEILINGS.floor_us(1_000_000, 8_000_000, fp8=True) == pytest.approx(4)


@pytest.mark.parametrize(("nbytes", "copies"), [(1, 32), (CACHE_BYTES // 8, 8), (CACHE_BYTES, 1)])
def test_copies_of_the_arguments_are_more_than_a_cache_holds(nbytes: int, copies: int):
    assert copies_for(nbytes) == copies


def result(case: str, us: float, floor_us: float = 0.0, **peers: float) -> Measured:
    spread = Spread(us, us, us)
    others: dict[str, Spread | str] = {
        name: Spread(value, value, value) for name, value in peers.items()
    }
    operation = case.partition(" ")[0]
    return Measured(case, operation, 0.0, True, Timed(spread, spread), floor_us, others)


def test_a_bar_is_held_against_its_worst_case():
    found = bars(
        [
            result("mla_decode kimi@tp4 q1_8k_page64", 100.0, 70.0),
            result("mla_decode kimi@tp4 q4_8k_page64", 120.0, 70.0),
            result("mla_decode kimi@tp8 q4_1k_page64", 100.0, 1.0),
            result("grouped_mlp kimi@tp4 bf16 tokens4", 10.0, 1.0, **{"torch._grouped_mm": 30.0}),
            result("grouped_mlp kimi@tp4 bf16 tokens16", 10.0, 7.0, **{"torch._grouped_mm": 15.0}),
        ]
    )
    assert {(bar.text.partition(":")[0], bar.case.split()[2], bar.met) for bar in found} == {
        ("mla_decode, 128K tokens", "q4_8k_page64", False),
        ("mla_decode", "q4_8k_page64", False),
        ("grouped_mlp, 8 tokens on", "bf16", True),
        ("grouped_mlp, 64 tokens at most", "bf16", False),
    }


def test_flash_peers_exist_for_latent_attention_only_where_types_agree():
    assert set(torch_peers("mla_decode", ())) == {"torch two bmm", "torch flex_attention"}
    assert not torch_peers("route", ())


@dataclass(frozen=True)
class Tiles:
    rows: int
    warps: int = 4


def test_the_tuner_tries_each_number_halved_and_doubled_and_keeps_what_is_faster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    times = {(16, 4): 10.0, (32, 4): 8.0, (16, 2): 9.0, (8, 4): 12.0}

    def time_jax(run: Callable[..., Any], *_: Any) -> Timed:
        tiles = run(*example(0))
        us = times[tiles.rows, tiles.warps]  # A KeyError stands for tiles that do not fit.
        return Timed(Spread(us, us, us), Spread(us, us, us))

    monkeypatch.setattr(tuning, "FOLDER", tmp_path)
    monkeypatch.setattr("pallas_kernels.bench.tune.time_jax", time_jax)
    tuning.measured.cache_clear()
    (found,) = tune(case_of(run=lambda x, w: tuned("matmul", "m64", Tiles(16))))
    assert (found.tiles, found.us, found.heuristic_us) == ({"rows": 32, "warps": 4}, 8.0, 10.0)
    write_tuned("cpu", [found], {"device": "none"})
    assert tuned("matmul", "m64", Tiles(16)) == Tiles(32)
    assert json.loads((tmp_path / "cpu.json").read_text())["device"] == "none"
    tuning.measured.cache_clear()
    assert list(around({"a": 1, "b": 4})) == [{"a": 2, "b": 4}, {"a": 1, "b": 2}, {"a": 1, "b": 8}]
