"""Every operation changes registers and flags as AMD's text specifies."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad")

from amdgpu.comparison import check
from amdgpu.instructions import encode, has_form, s
from amdgpu.single import copied, held, random_waves, run, scalar_state
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves
from eagle3_tools.amdgpu.witness.pseudocode import evaluate
from eagle3_tools.amdgpu.witness.table import BRANCHES, SCALAR, VECTOR
from eagle3_tools.aot.amd.decode import EXEC, Instruction, Kind, Operand

_VECTOR_WAVES, _SCALAR_WAVES = 4, 500
_FIELDS = {
    "v_fmaak_f32": ({"literal": 0x3FC00001},),
    "v_fmamk_f32": ({"literal": 0xBF99999A},),
    "v_cvt_scalef32_pk_fp8_f32": ({"opsel": 0}, {"opsel": 8}),
    "v_cvt_scalef32_pk_bf16_fp8": ({"opsel": 0}, {"opsel": 1}),
    **{
        f"v_bitop3_{kind}": tuple(
            {"omod": table >> 6, "abs": table >> 3 & 7, "neg": table & 7}
            for table in (0xEC, 0x35, 0x96, 0xCA)
        )
        for kind in ("b16", "b32")
    },
}
"""Encoding fields that are operands."""


def _forms(mnemonic: str) -> list[str]:
    return [form for form in ("e32", "e64") if has_form(mnemonic, form)] or [""]


@pytest.mark.parametrize("mnemonic", VECTOR)
def test_an_operation_of_the_vector_unit_is_amds(mnemonic: str):
    for form in _forms(mnemonic):
        for seed, fields in enumerate(_FIELDS.get(mnemonic, ({},))):
            i = encode(mnemonic, form, **fields)
            check(i, random_waves(i, _VECTOR_WAVES, seed), seed)


def _narrow(mnemonic: str):
    """Limit scalar bit fields to 31 bits, because the text does not define longer ones."""
    if not mnemonic.startswith("s_bfe"):
        return None
    return lambda k, made: made & np.uint64(0x1F_FFFF) if k == 1 else made


@pytest.mark.parametrize("mnemonic", SCALAR)
def test_an_operation_of_the_scalar_unit_is_amds(mnemonic: str):
    immediates = (
        (0x8001, 0x7FFF, 0xFFFF, 5) if mnemonic.startswith(("s_cmpk", "s_m", "s_addk")) else (0,)
    )
    for seed, immediate in enumerate(immediates):
        takes: dict[str, Any] = {"simm16": immediate} if immediate and "k_" in mnemonic else {}
        i = encode(mnemonic, **takes)
        w = random_waves(i, _SCALAR_WAVES, seed, change=_narrow(mnemonic))
        w.set_exec(np.random.default_rng(seed).random((w.count, LANES)) < 0.5)
        done = copied(w)
        run(i, done)
        _check_scalar(i, w, done)


def _check_scalar(i: Instruction, before: Waves, after: Waves) -> None:
    target = i.operands.get("sdst")
    exec_ = Operand(Kind.SCALAR, EXEC, 64)
    for wave in range(before.count):
        state = scalar_state(before, wave) | _scalar_sources(i, before, wave)
        said = evaluate(i.name, state)
        if target and "D0" in said:
            got = int(held(after, target)[wave, 0])
            mask = (1 << target.bits) - 1
            assert got == said["D0"] & mask, f"{i.name} of {state}: got {got:#x}"
        assert int(after.scc[wave]) == said.get("SCC", state["SCC"]), f"SCC of {i.name}, {state}"
        assert int(held(after, exec_)[wave, 0]) == said.get("EXEC", state["EXEC"])


def _scalar_sources(i: Instruction, w: Waves, wave: int) -> dict[str, int]:
    found = {f"S{k}": int(held(w, o)[wave, 0]) for k, o in enumerate(i.sources)}
    if "sdst" not in i.operands:
        return found
    old = int(held(w, i.operands["sdst"])[wave, 0])
    if i.encoding != "SOPK":
        return found | {"D0": old}
    if i.name.startswith("s_cmpk"):
        return {"S0": old, "S1": i.fields["simm16"]}
    return {"S0": i.fields["simm16"], "D0": old}


@pytest.mark.parametrize("mnemonic", BRANCHES)
@pytest.mark.parametrize("words", [5, 0xFFFB])
def test_a_branch_goes_where_amds_does(mnemonic: str, words: int):
    i = encode(mnemonic, simm16=words)
    w = random_waves(i, 64, 0)
    rng = np.random.default_rng(0)
    w.set_exec(rng.random((64, LANES)) < rng.choice([0, 0.5], (64, 1)))
    w.scalars[106:108] *= rng.integers(0, 2, 64).astype(np.uint32)
    target = np.broadcast_to(run(i, copied(w)), 64)
    for wave in range(64):
        state = scalar_state(w, wave) | {"SIMM16": words, "PC": 1 << 20}
        assert evaluate(mnemonic, state)["PC"] == (1 << 20) + int(target[wave])


def test_mode_is_changed_in_the_one_bit_that_is_modelled():
    w = random_waves(encode("s_nop"), 1, 0)
    for bit in (1, 0):
        i = encode("s_setreg_imm32_b32", simm16=1 | 23 << 6, literal=bit)
        run(i, w)
        state = {"SIMM16": i.fields["simm16"], "SIMM32": bit, "HW_REGISTERS": {1: 0}}
        assert evaluate(i.name, state)["HW_REGISTERS"] == {1: bit << 23}
        assert w.saturates == bool(bit)


def test_nothing_changes_nothing():
    w = random_waves(encode("v_add_f32"), 2, 0)
    before = copied(w)
    run(encode("s_nop", simm16=3), w)
    assert (w.vectors == before.vectors).all() and (w.scalars == before.scalars).all()
    assert evaluate("s_nop", {"SIMM16": 3}) == {}


def test_a_wave_can_take_its_mask_from_any_register():
    i = encode("v_cndmask_b32", "e64", src2=s(50, 2))
    check(i, random_waves(i, 2, 0), 0)
