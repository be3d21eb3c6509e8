"""Compare the results of a vector instruction with AMD's text, lane by lane."""

from typing import Any

import numpy as np

from amdgpu.single import canonical, copied, distance, held, run, said_of_lanes
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves
from eagle3_tools.aot.amd.decode import Instruction, Kind

U64 = np.uint64
TRANSCENDENTAL = {"v_exp_f32", "v_log_f32", "v_rcp_f32", "v_rsq_f32"}
"""Operations with an error of up to 1 ulp in hardware and in the text."""


def check(
    i: Instruction,
    w: Waves,
    seed: int,
    *,
    sources: list[np.ndarray] | None = None,
    after: Any = lambda x: x,
    more: dict[str, Any] | None = None,
) -> None:
    """Run `i` with all lanes, with some, and in some of the waves; compare all results.

    `sources` are the operation's inputs, uint64 [waves, lanes], if they differ from the registers.
    `after` is the encoding's effect on result patterns, `more` is further state for the text.
    """
    if sources is None:
        sources = [held(w, operand) for operand in i.sources if operand.type != "M64"]
    target = i.operands["vdst"]
    masks = target.kind is Kind.SCALAR
    old = np.zeros((w.count, LANES), U64) if masks else held(w, target)
    said = said_of_lanes(i, w, sources, old, **_fields(i), **more or {})
    wanted = {
        name: np.array([[lane.get(name, 0) for lane in wave] for wave in said], U64)
        for name in ("D0", "D1", "VCC")
    }
    rng = np.random.default_rng(seed)
    some = rng.random((w.count, LANES)) < 0.6
    everywhere = np.ones((w.count, LANES), bool)
    part = np.arange(0, w.count, 2)
    for lanes, chosen in ((everywhere, slice(None)), (some, slice(None)), (some, part)):
        ready = copied(w)
        ready.set_exec(lanes)
        done = copied(ready)
        run(i, done, chosen)
        _compare(i, ready, done, lanes, chosen, wanted, after)


def _fields(i: Instruction) -> dict[str, int]:
    """Return the fields of the encoding that the text reads."""
    names = {"OPSEL": "opsel", "SIMM32": "literal"}
    if i.name.startswith("v_bitop3"):
        names |= {"INST.OMOD": "omod", "INST.ABS": "abs", "INST.NEG": "neg"}
    return {ours: i.fields[theirs] for ours, theirs in names.items() if theirs in i.fields}


def _compare(
    i: Instruction,
    ready: Waves,
    done: Waves,
    lanes: np.ndarray,
    chosen: Any,
    wanted: dict[str, np.ndarray],
    after: Any,
) -> None:
    runs = np.zeros(ready.count, bool)
    runs[chosen] = True
    where = lanes & runs[:, None]
    for name in ("vdst", "sdst"):
        if name not in i.operands:
            continue
        operand = i.operands[name]
        before, got = held(ready, operand), held(done, operand)
        if operand.kind is Kind.SCALAR:
            flag = _flag(i, name, wanted)
            want = np.where(
                runs[:, None], flag & where, before >> np.arange(LANES, dtype=U64) & U64(1)
            )
            got = got >> np.arange(LANES, dtype=U64) & U64(1)
            wrong = got != want
        else:
            want = np.where(where, after(wanted["D0"]), before)
            wrong = _differs(i, got, want, where)
        assert not wrong.any(), _difference(i, ready, got, want, wrong)


def _flag(i: Instruction, name: str, wanted: dict[str, np.ndarray]) -> np.ndarray:
    """Return this lane's bit, which the texts give in three ways."""
    if name == "vdst":
        return wanted["D0"] >> np.arange(LANES, dtype=U64) & U64(1) == 1
    if i.name == "v_mad_u64_u32":
        return wanted["D1"] == 1
    if i.name == "v_div_scale_f32":
        return wanted["VCC"] == 1
    return wanted["VCC"] >> np.arange(LANES, dtype=U64) & U64(1) == 1


def _differs(i: Instruction, got: np.ndarray, want: np.ndarray, where: np.ndarray) -> np.ndarray:
    operand = i.operands["vdst"]
    if i.name in TRANSCENDENTAL:
        return np.where(where, distance(got, want) > 1, got != want)
    if operand.bits == 16 and operand.type != "PK2_FP8" and not operand.high:
        half = where & (got & U64(0xFFFF) == want & U64(0xFFFF))
        return (got != want) & ~half
    return canonical(got, operand.type) != canonical(want, operand.type)


def _difference(
    i: Instruction, w: Waves, got: np.ndarray, want: np.ndarray, wrong: np.ndarray
) -> str:
    wave, lane = np.argwhere(wrong)[0]
    read = [f"{int(held(w, operand)[wave, lane]):#x}" for operand in i.sources]
    found = f"got {int(got[wave, lane]):#x}, AMD's text says {int(want[wave, lane]):#x}"
    return f"{i.name} ({i.encoding}) of {', '.join(read)}: {found}; {wrong.sum()} lanes differ"
