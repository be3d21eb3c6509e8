"""Run one instruction on waves with random registers, and evaluate AMD's text on the same."""

from collections.abc import Callable
from typing import Any

import numpy as np

from amdgpu.samples import samples
from eagle3_tools.amdgpu.emulator.local_memory import LocalMemory
from eagle3_tools.amdgpu.emulator.memory import GlobalMemory
from eagle3_tools.amdgpu.emulator.operations import translate
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves
from eagle3_tools.amdgpu.witness.pseudocode import evaluate
from eagle3_tools.aot.amd.decode import EXEC, VCC, Instruction, Kind, Operand

U32, U64 = np.uint32, np.uint64
Array = np.ndarray
_ELEMENTS = {"F32": 32, "PK2_F32": 32, "PK2_BF16": 16, "PK2_FP8": 8}
_NAN_BEGINS = {32: 0x7F800001, 16: 0x7F81, 8: 0x7F}
"""Bits of the numbers in a result, and their first positive NaN pattern."""


def make_waves(
    count: int,
    memory: GlobalMemory | None = None,
    lds: LocalMemory | None = None,
    arch: str = "gfx950",
) -> Waves:
    """Make waves of one workgroup each, with all lanes active."""
    group = np.arange(count)
    return Waves(
        group,
        np.zeros(count, np.int64),
        group,
        memory or GlobalMemory(1 << 16),
        lds or LocalMemory(count, 16, 1, 0),
        arch,
        0xDEADBEEF,
    )


def fill(w: Waves, operand: Operand, values: Array) -> None:
    """Write uint64 [waves, lanes] to an operand's registers; scalar ones get lane 0's."""
    for k, register in enumerate(operand.registers):
        word = (values >> U64(32 * k) & U64(0xFFFF_FFFF)).astype(U32)
        if operand.kind is Kind.VECTOR:
            w.vectors[register] = word
        else:
            w.scalars[register] = word[:, 0]


def fill_descriptor(w: Waves, first: int, base: int, size: int) -> None:
    """Write a buffer descriptor without a stride to scalar registers."""
    for k, word in enumerate((base & 0xFFFF_FFFF, base >> 32, size, 0x27000)):
        w.scalars[first + k] = word


def held(w: Waves, operand: Operand) -> Array:
    """Return uint64 [waves, lanes] of an operand's registers, or its constant."""
    shape = (w.count, LANES)
    if operand.kind is Kind.CONSTANT:
        return np.full(shape, operand.value, U64)
    if operand.kind is Kind.FLAG:
        return np.broadcast_to(_flags(w)[operand.value][:, None], shape).astype(U64)
    total = np.zeros(shape, U64)
    for k, register in enumerate(operand.registers):
        found = w.vectors[register] if operand.kind is Kind.VECTOR else w.scalars[register][:, None]
        total = total | found.astype(U64) << U64(32 * k)
    return total


def _flags(w: Waves) -> dict[str, Array]:
    zero = {
        name: (w.scalars[at] | w.scalars[at + 1]) == 0
        for name, at in (("vccz", VCC), ("execz", EXEC))
    }
    return {**zero, "scc": w.scc}


def random_waves(
    i: Instruction, count: int, seed: int, *, change: Callable[[int, Array], Array] | None = None
) -> Waves:
    """Make waves with samples of the instruction's inputs in registers, and random flags.

    `change` maps samples of source k to values that the opcode supports.
    """
    rng, w = np.random.default_rng(seed), make_waves(count)
    shape = (count, LANES)
    places = {f"src{k}": k for k in range(3)} | {"ssrc0": 0, "ssrc1": 1}
    fill(w, Operand(Kind.SCALAR, VCC, 64), samples("M64", 64, shape, rng))
    for name, operand in i.operands.items():
        if operand.kind in (Kind.VECTOR, Kind.SCALAR) and operand.index != EXEC:
            made = samples(operand.type, operand.bits, shape, rng)
            fill(w, operand, change(places[name], made) if change and name in places else made)
    w.scc[:] = rng.random(count) < 0.5
    return w


def copied(w: Waves) -> Waves:
    """Copy the waves with their registers."""
    twin = make_waves(w.count, w.memory, w.lds)
    twin.vectors[:], twin.scalars[:], twin.scc[:] = w.vectors, w.scalars, w.scc
    twin.set_exec(w.exec.copy())
    return twin


def run(i: Instruction, w: Waves, chosen: Any = slice(None)) -> Any:
    """Execute the instruction in the chosen waves."""
    w.chosen = chosen
    w.all_active = bool(w.exec[chosen].all())
    with np.errstate(all="ignore"):
        target = translate(i)(w)
    w.chosen = slice(None)
    return target


def scalar_state(w: Waves, wave: int) -> dict[str, int]:
    """Return flags and masks under the names of AMD's text."""

    def pair(first: int) -> int:
        return int(w.scalars[first, wave]) | int(w.scalars[first + 1, wave]) << 32

    vcc, exec_ = pair(VCC), pair(EXEC)
    flags = {"VCCZ": int(vcc == 0), "EXECZ": int(exec_ == 0), "SCC": int(w.scc[wave])}
    return {"VCC": vcc, "EXEC": exec_, **flags}


def said_of_lanes(
    i: Instruction, w: Waves, sources: list[Array], old: Array, **more: Any
) -> list[list[dict[str, Any]]]:
    """Evaluate AMD's text for every lane [waves][lanes]; `sources` are the operation's inputs.

    The mask in an opcode's third source is VCC in the text.
    """
    names = [f"S{k}" for k in range(len(sources))]

    def of_wave(wave: int) -> list[dict[str, Any]]:
        state = scalar_state(w, wave) | more
        if "src2" in i.operands and i.operands["src2"].type == "M64":
            state["VCC"] = int(held(w, i.operands["src2"])[wave, 0])
        lanes = zip(*(each[wave].tolist() for each in (*sources, old)), strict=True)
        return [
            evaluate(i.name, {**state, **dict(zip([*names, "D0"], x, strict=True)), "laneId": lane})
            for lane, x in enumerate(lanes)
        ]

    return [of_wave(wave) for wave in range(w.count)]


def canonical(patterns: Array, type_: str) -> Array:
    """Replace every NaN in uint64 patterns by the same NaN; integers are unchanged."""
    bits = _ELEMENTS.get(type_)
    if bits is None:
        return patterns
    total, mask = np.zeros_like(patterns), (1 << bits) - 1
    for first in range(0, 64, bits):
        part = patterns >> U64(first) & U64(mask)
        nan = (part & U64(mask >> 1)) >= U64(_NAN_BEGINS[bits])
        total = total | np.where(nan, U64(mask), part) << U64(first)
    return total


def distance(a: Array, b: Array) -> Array:
    """Count the float32 between two patterns: 0 for two NaN, very many for one."""

    def place(x: Array) -> Array:
        number = canonical(x, "F32").astype(np.int64)
        return np.where(number >> 31 == 1, -(number & 0x7FFF_FFFF), number)

    return np.abs(place(a) - place(b))
