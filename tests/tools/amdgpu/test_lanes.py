"""Operations across lanes against AMD's text, and DPP against the ISA's formulas."""

import numpy as np
import pytest

pytest.importorskip("tinygrad")

from amdgpu.instructions import encode, s, v
from amdgpu.single import copied, held, random_waves, run, scalar_state
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves
from eagle3_tools.amdgpu.witness.pseudocode import evaluate
from eagle3_tools.aot.amd.decode import Instruction

_WAVES = 6


def _some_lanes(w: Waves) -> None:
    """Activate all lanes of the first wave, none of the second, some of the others."""
    lanes = np.random.default_rng(0).random((w.count, LANES)) < 0.6
    lanes[0], lanes[1] = True, False
    w.set_exec(lanes)


def _registers(w: Waves, wave: int) -> dict[tuple[int, int], int]:
    return {
        (lane, register): int(w.vectors[register, wave, lane])
        for lane in range(LANES)
        for register in (8, 16, 40)
    }


def _check_text(i: Instruction, w: Waves, **places: int) -> None:
    """Compare vector registers, and a scalar result, with the text's, for every wave."""
    done = copied(w)
    run(i, done)
    for wave in range(w.count):
        state = scalar_state(w, wave) | {"VGPR": _registers(w, wave)} | places
        state |= {f"S{k}": int(held(w, o)[wave, 0]) for k, o in enumerate(i.sources)}
        said = evaluate(i.name, state)
        assert _registers(done, wave) == _registers(w, wave) | said.get("VGPR", {})
        if "D0" in said:
            assert int(done.scalars[8, wave]) == said["D0"]


@pytest.mark.parametrize("offset", [0, 4, 200])
def test_bpermute_is_amds(offset: int):
    i = encode("ds_bpermute_b32", offset0=offset)
    w = random_waves(i, _WAVES, 0)
    _some_lanes(w)
    _check_text(i, w, ADDR=40, DATA0=16, VDST=8, OFFSET=offset)


@pytest.mark.parametrize("mnemonic", ["v_permlane16_swap_b32", "v_permlane32_swap_b32"])
def test_swaps_of_rows_are_amds(mnemonic: str):
    i = encode(mnemonic, "e32")
    _check_text(i, random_waves(i, _WAVES, 0), SRC0=16, VDST=8)


def test_a_swap_of_rows_with_inactive_lanes_is_refused():
    """The text ignores EXEC; our kernels do not do this."""
    i = encode("v_permlane16_swap_b32", "e32")
    w = random_waves(i, _WAVES, 0)
    _some_lanes(w)
    with pytest.raises(Fault, match="do not execute"):
        run(i, w)


def test_reading_the_first_lane_is_amds():
    i = encode("v_readfirstlane_b32", "e32")
    w = random_waves(i, _WAVES, 0)
    _some_lanes(w)
    _check_text(i, w, SRC0=16)


@pytest.mark.parametrize("lane", [s(50), 63, 0])
def test_reading_and_writing_a_lane_are_amds(lane: object):
    read = encode("v_readlane_b32", src0=v(16), src1=lane)
    write = encode("v_writelane_b32", src0=s(51), src1=lane)
    for i in (read, write):
        w = random_waves(i, _WAVES, 0)
        w.scalars[50] = [0, 63, 64, 17, 0xFFFFFFFF, 31]
        _some_lanes(w)
        _check_text(i, w, SRC0=16, VDST=8)


def _dpp_source(control: int, lane: int) -> int | None:
    """Return the lane that DPP reads for `lane`, or None (CDNA3 ISA, "DPP_CTRL")."""
    row, inside = lane // 16 * 16, lane % 16
    if control <= 0xFF:  # DPP_QUAD_PERM
        return lane // 4 * 4 + (control >> 2 * (lane % 4) & 3)
    kind, by = control & 0x1F0, control & 15
    if kind == 0x100:  # DPP_ROW_SL
        return lane + by if inside + by <= 15 else None
    if kind == 0x110:  # DPP_ROW_SR
        return lane - by if inside - by >= 0 else None
    if kind == 0x120:  # DPP_ROW_RR
        return row + (inside - by) % 16
    if kind == 0x150:  # DPP_ROW_NEWBCAST
        return row + by
    return {
        0x140: row + 15 - inside,  # DPP_ROW_MIRROR
        0x141: lane // 8 * 8 + 7 - lane % 8,  # DPP_ROW_HALF_MIRROR
        0x142: row - 1 if row else None,  # DPP_ROW_BCAST15
        0x143: 31 if lane >= 32 else None,  # DPP_ROW_BCAST31
    }[control]


_CONTROLS = [
    *(0xB1, 0x4E, 0x1B, 0xE4, 0x00, 0x27, 0x101, 0x102, 0x104, 0x108, 0x10F, 0x111, 0x112, 0x114),
    *(0x118, 0x11F, 0x121, 0x128, 0x12F, 0x140, 0x141, 0x142, 0x143, 0x150, 0x155, 0x15F),
]


@pytest.mark.parametrize("control", _CONTROLS, ids=hex)
@pytest.mark.parametrize(
    "mnemonic, row_mask, bank_mask, bound",
    [
        ("v_mov_b32", 15, 15, 1),
        ("v_mov_b32", 15, 15, 0),
        ("v_mov_b32", 10, 15, 1),
        ("v_add_f32", 12, 5, 0),
        ("v_max_i32", 15, 3, 1),
        ("v_fmac_f32", 15, 5, 0),
        ("v_cndmask_b32", 15, 15, 1),
    ],
)
def test_dpp_reads_the_lane_of_the_isas_formula(
    mnemonic: str, control: int, row_mask: int, bank_mask: int, bound: int
):
    fields = {"row_mask": row_mask, "bank_mask": bank_mask, "bc": bound, "dpp": control}
    i = encode(mnemonic, "DPP16", **fields)
    w = random_waves(i, 3, control)
    for register in (8, 16, 24):  # NaN payloads are not compared here.
        w.vectors[register] = (
            np.random.default_rng(0).normal(0, 9, (3, LANES)).astype("<f4").view("<u4")
        )
    _some_lanes(w)
    done = copied(w)
    run(i, done)
    for wave in range(3):
        for lane in range(LANES):
            expected = _dpp_result(i, w, wave, lane)
            assert int(done.vectors[8, wave, lane]) == expected, f"wave {wave}, lane {lane}"


def _dpp_result(i: Instruction, w: Waves, wave: int, lane: int) -> int:
    fields, old = i.fields, int(w.vectors[8, wave, lane])
    enabled = fields["row_mask"] >> lane // 16 & fields["bank_mask"] >> lane % 16 // 4 & 1
    if not (w.exec[wave, lane] and enabled):
        return old
    source = _dpp_source(fields["dpp"], lane)
    valid = source is not None and bool(w.exec[wave, source])
    if not (valid or fields["bc"]):
        return old
    moved = int(w.vectors[16, wave, source]) if valid else 0
    second = int(w.vectors[24, wave, lane])
    state = {"S0": moved, "S1": second, "D0": old, "laneId": lane, **scalar_state(w, wave)}
    return evaluate(i.name, state)["D0"]


def _swizzled(pattern: int, lane: int) -> int:
    """Return the lane that it reads (CDNA3 ISA, "DS_SWIZZLE_B32", modes QDMode and BitMode)."""
    if pattern >> 15:
        return lane // 4 * 4 + (pattern >> 2 * (lane % 4) & 3)
    kept, ones, flipped = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
    return lane // 32 * 32 + ((lane % 32 & kept | ones) ^ flipped)


@pytest.mark.parametrize(
    "pattern", [0x401F, 0x041F, 0x081F, 0x7C1F, 0x0010, 0x03E0, 0x801B, 0x80B1], ids=hex
)
def test_a_swizzle_reads_the_lane_of_the_isas_formula(pattern: int):
    i = encode("ds_swizzle_b32", addr=v(16), offset0=pattern & 255, offset1=pattern >> 8)
    w = random_waves(i, 3, 0)
    _some_lanes(w)
    done = copied(w)
    run(i, done)
    for wave in range(3):
        for lane in np.flatnonzero(w.exec[wave]):
            source = _swizzled(pattern, int(lane))
            value = int(w.vectors[16, wave, source]) if w.exec[wave, source] else 0
            assert int(done.vectors[8, wave, lane]) == value
        idle = ~w.exec[wave]
        assert (done.vectors[8, wave, idle] == w.vectors[8, wave, idle]).all()


@pytest.mark.parametrize(
    "mnemonic, source, target",
    [
        ("v_accvgpr_read_b32", 256 + 16, 8),
        ("v_accvgpr_write_b32", 16, 256 + 8),
        ("v_accvgpr_mov_b32", 256 + 16, 256 + 8),
    ],
)
def test_moves_of_accumulation_registers_copy_active_lanes(mnemonic: str, source: int, target: int):
    i = encode(mnemonic)
    w = random_waves(i, 3, 0)
    w.vectors[:] = np.arange(w.vectors.size, dtype=np.uint32).reshape(w.vectors.shape)
    _some_lanes(w)
    done = copied(w)
    run(i, done)
    wanted = w.vectors.copy()
    wanted[target] = np.where(w.exec, w.vectors[source], w.vectors[target])
    assert (done.vectors == wanted).all()
