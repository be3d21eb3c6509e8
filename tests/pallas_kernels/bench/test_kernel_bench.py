"""The benchmark command on a CPU, where its times mean nothing, and its arithmetic."""

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from eagle3_tools.kernel_bench.ahead import Turns
from eagle3_tools.kernel_bench.bars import bars
from eagle3_tools.kernel_bench.ceilings import Ceilings
from eagle3_tools.kernel_bench.choice.rehearsed import rehearsed
from eagle3_tools.kernel_bench.correct import compile_contract, largest_error
from eagle3_tools.kernel_bench.measure import XLA, Measured, compile_case, measure, with_floor
from eagle3_tools.kernel_bench.timing import (
    DRY,
    Spread,
    Timed,
    chained,
    nbytes_of,
)
from pallas_kernels.all_cases import all_cases
from pallas_kernels.case import Case

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
