"""Measurement of one case on the GPU: correctness, time, and the times of its peers."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from eagle3_tools.kernel_bench.ahead import Turns
from eagle3_tools.kernel_bench.ceilings import Ceilings
from eagle3_tools.kernel_bench.timing import (
    Chain,
    Effort,
    Programs,
    Spread,
    Timed,
    compile_chain,
    nbytes_of,
    rotated,
)
from eagle3_tools.kernel_cases.case import Case
from eagle3_tools.self_check.errors import difference, read_arrays
from pallas_kernels import gpu
from pallas_kernels.quantized import QuantizedArray, QuantizedRows
from pallas_kernels.quantized.activations import fp8_per_token


def compile_contract(case: Case, shapes: tuple[Any, ...]) -> Callable[..., Any]:
    """Compile the reference for such arguments, bfloat16 as float32, in full precision."""
    wide = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, _wide(x.dtype)), shapes)
    with jax.default_matmul_precision("highest"):
        program = jax.jit(lambda *a: case.reference(*a)).lower(*wide).compile()
    return lambda *arguments: program(*jax.tree.map(lambda x: x.astype(_wide(x.dtype)), arguments))


def largest_error(got: Any, wanted: Any) -> float:
    """Return the largest difference from the reference, over the results that are read."""
    return max(
        difference(*pair) for pair in zip(read_arrays(got), read_arrays(wanted), strict=True)
    )


def _wide(dtype: Any) -> Any:
    return jnp.float32 if dtype == jnp.bfloat16 else dtype


def takes_given_rows(case: Case, shapes: tuple[Any, ...]) -> bool:
    """Return whether a case is a float8 product with a scale a row that quantises x itself."""
    if case.operation != "fp8_matmul" or not isinstance(shapes[1], QuantizedArray):
        return False
    return shapes[1].format.activations == "fp8_token"


def with_given_rows(x: Array, kernel: QuantizedArray) -> tuple[QuantizedRows, QuantizedArray]:
    """Return the product's arguments with x quantised to the GPU's float8."""
    values, scale = fp8_per_token(x)
    dtype = jnp.dtype(gpu.current().fp8)
    if dtype != jnp.float8_e4m3fn:  # e4m3fnuz has half the value under the same scale.
        values, scale = values / 2, scale * 2
    return QuantizedRows(values.astype(dtype), scale[..., 0], x.dtype), kernel


XLA, GIVEN_ROWS = "XLA, not autotuned", "ours, x quantised before"
Turn = Callable[[], AbstractContextManager[None]]
Ready = Callable[[], Spread]
Sets = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Measured:
    """Measurement of one case.

    error: largest difference from the reference, relative to its largest value. peers: microseconds
    of each, or why it has none. refused: why there is no measurement. floor_us: 0 if the ceilings
    are unknown.
    """

    case: str
    operation: str
    error: float | None = None
    right: bool = False
    timed: Timed | None = None
    floor_us: float = 0.0
    peers: dict[str, Spread | str] = field(default_factory=dict)
    refused: str = ""

    @classmethod
    def of_line(cls, line: dict[str, Any]) -> "Measured":
        """Read a `case` line of a record."""
        fields = {name: value for name, value in line.items() if name != "kind"}
        timed, peers = fields.pop("timed"), fields.pop("peers")
        return cls(
            **fields,
            timed=timed and Timed(*(Spread(**timed[name]) for name in ("us", "with_launch_us"))),
            peers={n: Spread(**v) if isinstance(v, dict) else v for n, v in peers.items()},
        )

    @property
    def share(self) -> float:
        """Fraction of the floor; 1 cannot be exceeded."""
        return self.floor_us / self.timed.us.median if self.timed else 0.0

    def against(self, name: str, own: str | None = None) -> float | None:
        """Return how many times faster than this peer the kernel is, or None if it did not run.
        `own` names another entry to compare instead of the kernel."""
        peer = self.peers.get(name)
        ours = self.peers.get(own) if own else self.timed and self.timed.us
        if not isinstance(peer, Spread) or not isinstance(ours, Spread):
            return None
        return peer.median / ours.median


@dataclass(frozen=True)
class Compiled:
    """Compiled programs of a case. `others` are programs of peers, by name."""

    ours: Programs
    contract: Callable[..., Any]
    others: dict[str, Programs]


def compile_case(case: Case, effort: Effort, turn: Turn, *, with_peers: bool = True) -> Compiled:
    """Compile all programs of a case except torch's, entering `turn` for each; with_peers includes
    its peers'. Raises the compiler's errors."""
    shapes = jax.eval_shape(lambda: case.example(0))
    chain = Chain.of(nbytes_of(shapes), effort)
    ours = compile_chain(case.run, shapes, chain, turn)
    with turn():
        contract = compile_contract(case, shapes)
    others = {XLA: compile_chain(case.reference, shapes, chain, turn)} if with_peers else {}
    if with_peers and takes_given_rows(case, shapes):
        given = jax.eval_shape(with_given_rows, *shapes)
        others[GIVEN_ROWS] = compile_chain(case.run, given, chain, turn)
    return Compiled(ours, contract, others)


def measure(
    case: Case,
    compiled: Compiled,
    effort: Effort,
    turns: Turns,
    wanted: Callable[[str], bool] = lambda peer: True,
) -> Measured:
    """Measure a case and the wanted peers. Raises the kernel's GPU errors; records the peers'."""
    first = case.example(0)
    error = largest_error(compiled.ours.alone(*first), compiled.contract(*first))
    sets = rotated(first, compiled.ours.chain.copies)
    with turns.timing():
        timed = compiled.ours.time(sets, effort)
    ready = _of_jax(compiled, sets, effort) | _of_torch(case, compiled, sets, effort)
    peers = {name: _attempt(time, turns) for name, time in ready.items() if wanted(name)}
    return Measured(case.name, case.operation, error, error <= case.tolerance, timed, peers=peers)


def with_floor(measured: Measured, case: Case, ceilings: Ceilings | None) -> Measured:
    """Add the floor on a GPU with these ceilings, unless they were not measured."""
    if ceilings is None:
        return measured
    fp8 = case.matrix.get("gfx942") == "fp8"
    floor_us = ceilings.floor_us(case.bytes_moved, case.flops, fp8=fp8)
    return replace(measured, floor_us=floor_us)


def _of_jax(compiled: Compiled, sets: Sets, effort: Effort) -> dict[str, Ready]:
    def time(name: str) -> Spread:
        given = jax.jit(with_given_rows)
        own = [given(*each) for each in sets] if name == GIVEN_ROWS else sets
        return compiled.others[name].time(own, effort).us

    return {name: lambda name=name: time(name) for name in compiled.others}


def _of_torch(case: Case, compiled: Compiled, sets: Sets, effort: Effort) -> dict[str, Ready]:
    if find_spec("torch") is None:
        return {}
    from eagle3_tools.kernel_bench.peers.by_torch import time_torch, torch_peers

    runs = compiled.ours.chain.runs
    return {
        name: lambda prepare=prepare: time_torch(prepare, sets, runs, effort.samples)
        for name, prepare in torch_peers(case.operation, sets[0]).items()
    }


def _attempt(time: Ready, turns: Turns) -> Spread | str:
    try:
        with turns.timing():
            return time()
    except Exception as refusal:  # Libraries fail in many ways; continue with the other peers.
        return one_line(refusal)


def one_line(error: Exception) -> str:
    """Return the error's type and first line."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:160] if said else ''}"
