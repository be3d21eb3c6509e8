"""The benchmark command on a CPU, where its times mean nothing, and its arithmetic."""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import Array

from eagle3_tools.kernel_bench.ahead import Turns
from eagle3_tools.kernel_bench.bars import bars
from eagle3_tools.kernel_bench.cases import in_turn, rehearsed
from eagle3_tools.kernel_bench.ceilings import Ceilings
from eagle3_tools.kernel_bench.measure import (
    XLA,
    Measured,
    compile_case,
    compile_contract,
    largest_error,
    measure,
    with_floor,
    with_given_rows,
)
from eagle3_tools.kernel_bench.peers import FLEX
from eagle3_tools.kernel_bench.peers.by_torch import torch_peers
from eagle3_tools.kernel_bench.timing import (
    DRY,
    Chain,
    Effort,
    Programs,
    Spread,
    Timed,
    chained,
    nbytes_of,
    sampled,
)
from eagle3_tools.kernel_bench.tune import around, tune, write_tuned
from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import Case
from eagle3_tools.kernel_cases.latent_attention import mla_decode_case
from eagle3_tools.kernel_cases.paged import PagedCase
from eagle3_tools.kernel_cases.shapes import LatentAttention
from pallas_kernels import tuning
from pallas_kernels.grouped_matmul import GatedKernels, grouped_mlp
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


def test_operations_take_turns_so_that_a_budget_cuts_all_alike():
    first, prefill = case_of("a", variant="1"), case_of("a", variant="2", decode=False)
    whole, other = case_of("a", "small@tp1"), case_of("b")
    turns = in_turn([prefill, whole, first, other])
    assert turns == [first, other, whole, prefill]


@pytest.mark.usefixtures("no_jaxtyping")
def test_a_dry_run_goes_through_every_operation_at_a_small_size():
    cases = rehearsed()
    assert {case.operation for case in cases} == {case.operation for case in all_cases()}
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert nbytes_of(jax.eval_shape(lambda case=case: case.example(0))) < 2 << 20, case.name


def error_of(case: Case) -> float:
    arguments = case.example(0)
    wanted = compile_contract(case, arguments)(*arguments)
    return largest_error(case.run(*arguments), wanted)


def test_errors_are_shares_of_the_largest_value_and_nan_is_no_result():
    assert error_of(case_of()) < 4e-3
    x, w = example(0)
    product = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    off = 0.5 * np.abs(product[3]).max() / np.abs(product).max()
    assert error_of(case_of(run=wrong)) == pytest.approx(off, rel=0.02)
    assert error_of(case_of(run=lambda x, w: x @ w * jnp.nan)) == float("inf")
    which = case_of(run=lambda x, w: x.argmax(1), reference=lambda x, w: w.argmax(1) * 0 + 64)
    assert error_of(which) == 1.0


def test_a_row_rounded_before_it_is_rounded_to_float8_is_right_and_two_steps_off_is_wrong():
    """The contract is widened, so its rows are not."""
    (case,) = (case for case in rehearsed() if case.operation == "cache_heads")
    arguments = case.example(0)
    wanted = compile_contract(case, arguments)(*arguments)
    q, keys, values = jax.jit(case.run)(*arguments)
    assert largest_error((q, keys, values), wanted) <= case.tolerance
    further = (1.25 * keys.astype(jnp.float32)).astype(keys.dtype)
    assert largest_error((q, further, values), wanted) > case.tolerance


def measured(case: Case, **options: Any) -> Measured:
    return measure(case, compile_case(case, DRY, nullcontext), DRY, Turns(), **options)


def test_a_case_is_measured_with_its_peers_and_one_that_refuses_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(*_: Any) -> Any:
        raise NotImplementedError("no such GPU")

    found = measured(case_of())
    assert found.right and set(found.peers) == {XLA, "torch.matmul"}
    assert (found.against("torch.matmul") or 0) > 0
    assert with_floor(found, case_of(), CEILINGS).floor_us == pytest.approx(2 * 64**3 / 1e6)
    monkeypatch.setattr("eagle3_tools.kernel_bench.peers.by_torch.time_torch", refuse)
    assert measured(case_of()).peers["torch.matmul"] == "NotImplementedError: no such GPU"
    assert not measured(case_of(run=wrong)).right
    assert set(measured(case_of(), wanted=lambda peer: peer == XLA).peers) == {XLA}
    with pytest.raises(NotImplementedError, match="no such GPU"):
        compile_case(case_of(run=refuse), DRY, nullcontext)


def test_a_float8_product_is_compared_with_quantising_inside_and_before_on_both_sides():
    case = next(case for case in all_cases() if "shared_down@tp8 ptpc" in case.name)
    arguments = case.example(0)
    kernel = with_given_rows(*arguments)
    np.testing.assert_array_equal(case.run(*kernel), case.run(*arguments))
    peers = torch_peers("fp8_matmul", arguments)
    before, inside = (peers[f"torch._scaled_mm{how}"] for how in ("", " with quantising"))
    ours = np.asarray(case.run(*arguments), np.float32)
    for prepare in (before, inside):
        theirs = prepare(arguments)().float().numpy()
        assert np.abs(ours - theirs).max() / np.abs(ours).max() < 2e-2


def test_grouped_products_of_torch_are_what_ours_are_once_rows_are_sorted_and_summed():
    keys = jax.random.split(jax.random.key(0), 5)
    gate, up = (jax.random.normal(key, (4, 32, 16), jnp.bfloat16) / 8 for key in keys[:2])
    down = jax.random.normal(keys[2], (4, 16, 32), jnp.bfloat16) / 8
    x = jax.random.normal(keys[3], (6, 32), jnp.bfloat16)
    ids = jax.lax.top_k(jax.random.uniform(keys[4], (6, 4)), 2)[1]
    arguments = x, GatedKernels(gate, up, down), ids, jnp.full(ids.shape, 0.5)
    theirs = torch_peers("grouped_mlp", arguments)["torch._grouped_mm with sorting and sum"]
    ours = np.asarray(grouped_mlp(x, gate, up, down, ids, arguments[3]), np.float32)
    found = theirs(arguments)().float().numpy()
    assert np.abs(ours - found).max() / np.abs(ours).max() < 2e-2


def test_short_runs_are_chained_until_the_dispatch_of_their_program_does_not_count():
    assert Chain.of(1 << 20, Effort()) == Chain(copies=32, runs=128)
    assert Chain.of(40 << 20, Effort()) == Chain(copies=13, runs=96)
    assert Chain.of(1 << 33, Effort()) == Chain(copies=1, runs=1)
    assert Chain.of(1, DRY) == Chain(copies=2, runs=2)


def test_quartiles_lie_between_the_samples_however_few_they_are():
    spread = sampled(lambda: None, 1, samples=2)
    assert 0 < spread.low <= spread.median <= spread.high


def test_runs_of_a_chain_go_over_all_copies_and_wait_for_each_other():
    once = jax.jit(lambda x: x + 1)
    sets = [(jnp.float32(i),) for i in range(2)]
    together = chained(once, 5)
    assert [float(x) for x in together(sets)] == [1, 2, 1, 2, 1]
    barriers = str(jax.make_jaxpr(together)(sets)).count("optimization_barrier")
    assert barriers == 5


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


def test_latent_attention_of_others_is_the_same_attention(monkeypatch: pytest.MonkeyPatch):
    """FlashMLA by a stand-in that reads its arguments as its interface says."""
    monkeypatch.setitem(sys.modules, "flash_mla", flash_mla_stand_in())
    paged = PagedCase(2, 128, batch=2)
    case = mla_decode_case(LatentAttention("tiny", 4, 32, 16), paged)
    arguments = case.example(0)
    ours = np.asarray(case.reference(*arguments), np.float32)
    peers = torch_peers("mla_decode", arguments)
    assert set(peers) == {"flash_mla", "torch two bmm", FLEX}
    flash = peers["flash_mla"](arguments)()[0].float().numpy()
    np.testing.assert_allclose(flash, ours, atol=2e-2)
    # Without a mask the first row sees one slot too many of 128.
    both = peers["torch two bmm"](arguments)().float().numpy().reshape(ours.shape)
    np.testing.assert_allclose(both[:, 1], ours[:, 1], atol=2e-2)


def flash_mla_stand_in() -> Any:
    def attend(
        q: Any, pool: Any, table: Any, lengths: Any, width: int, schedule: Any, **options: Any
    ) -> Any:
        assert options["causal"] and schedule == "schedule"
        rows = pool[table.long()].flatten(1, 2)[:, :, 0]
        scores = torch.einsum("bqhd,bsd->bhqs", q.float(), rows.float()) * options["softmax_scale"]
        last = lengths[:, None] - q.shape[1] + torch.arange(q.shape[1])
        seen = torch.arange(rows.shape[1]) <= last[..., None]
        weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        return torch.einsum("bhqs,bsd->bqhd", weights, rows[..., :width].float()), None

    return SimpleNamespace(
        get_mla_metadata=lambda: ("schedule", None), flash_mla_with_kvcache=attend
    )


@dataclass(frozen=True)
class Tiles:
    rows: int
    warps: int = 4


def test_the_tuner_goes_on_from_what_is_faster_and_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    times = {(16, 4): 10.0, (32, 4): 8.0, (16, 2): 9.0, (8, 4): 12.0, (32, 8): 7.0, (64, 4): 1.0}

    class Instant(Programs):
        def time(self, sets: Any, effort: Any) -> Timed:
            us = times[self.chained()]
            return Timed(Spread(us, us, us), Spread(us, us, us))

    def compile_chain(run: Callable[..., Any], _: Any, chain: Chain) -> Programs:
        tiles = run(*example(0))
        wrong = times[tiles.rows, tiles.warps] == 1.0  # A KeyError: tiles that do not fit.
        return Instant(
            lambda *_: jnp.full(3, 2.0 - wrong), lambda: (tiles.rows, tiles.warps), chain
        )

    monkeypatch.setattr(tuning, "FOLDER", tmp_path)
    monkeypatch.setattr("eagle3_tools.kernel_bench.tune.compile_chain", compile_chain)
    tuning.measured.cache_clear()
    (found,) = tune(case_of(run=lambda x, w: tuned("matmul", "m64", Tiles(16))))
    assert (found.tiles, found.us, found.heuristic_us) == ({"rows": 32, "warps": 8}, 7.0, 10.0)
    write_tuned("cpu", [found], {"device": "none"})
    assert tuned("matmul", "m64", Tiles(16)) == Tiles(32, warps=8)
    assert json.loads((tmp_path / "cpu.json").read_text())["device"] == "none"
    tuning.measured.cache_clear()
    assert list(around({"a": 1, "b": 4})) == [{"a": 2, "b": 4}, {"a": 1, "b": 2}, {"a": 1, "b": 8}]
