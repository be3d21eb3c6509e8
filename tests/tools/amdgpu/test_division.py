"""LLVM's division, built from the emulator's operations, divides as IEEE 754 specifies."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad")

from amdgpu.instructions import encode, s, v
from amdgpu.samples import FLOAT_EDGES
from amdgpu.single import canonical, make_waves, run
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves

U32, F32 = np.uint32, np.float32
_N, _D, _Q = 0, 1, 10
_VCC = s(106, 2)


def _divide(w: Waves) -> None:
    """Divide v0 by v1 into v10 as LLVM does (SITargetLowering::LowerFDIV32)."""

    def scale(target: int, what: int) -> None:
        sources = {"src0": v(what), "src1": v(_D), "src2": v(_N)}
        run(encode("v_div_scale_f32", vdst=v(target), sdst=_VCC, **sources), w)

    def fma(target: int, a: int, b: int, c: int, **changed: Any) -> None:
        sources = {"src0": v(a), "src1": v(b), "src2": v(c)}
        run(encode("v_fma_f32", vdst=v(target), **sources, **changed), w)

    denominator, numerator, reciprocal, error, one = 2, 3, 4, 5, 6
    run(encode("v_mov_b32", "e32", vdst=v(one), src0=1.0), w)
    scale(denominator, _D)
    scale(numerator, _N)
    run(encode("v_rcp_f32", "e32", vdst=v(reciprocal), src0=v(denominator)), w)
    fma(error, denominator, reciprocal, one, neg=1)
    fma(reciprocal, error, reciprocal, reciprocal)
    run(encode("v_mul_f32", "e32", vdst=v(_Q), src0=v(numerator), vsrc1=v(reciprocal)), w)
    fma(error, denominator, _Q, numerator, neg=1)
    fma(_Q, error, reciprocal, _Q)
    fma(error, denominator, _Q, numerator, neg=1)
    fixed = {"src0": v(error), "src1": v(reciprocal), "src2": v(_Q)}
    run(encode("v_div_fmas_f32", vdst=v(_Q), **fixed), w)
    run(encode("v_div_fixup_f32", vdst=v(_Q), src0=v(_Q), src1=v(_D), src2=v(_N)), w)


def _quotients(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    w = make_waves(len(numerators) // LANES)
    w.vectors[_N], w.vectors[_D] = numerators.reshape(-1, LANES), denominators.reshape(-1, LANES)
    _divide(w)
    return w.vectors[_Q].reshape(-1)


def _check(numerators: np.ndarray, denominators: np.ndarray) -> None:
    padding = -len(numerators) % LANES
    above, below = (np.pad(x.astype(U32), (0, padding)) for x in (numerators, denominators))
    with np.errstate(all="ignore"):
        expected = (above.view(F32) / below.view(F32)).view(U32)
    got = _quotients(above, below)
    same = canonical(got.astype(np.uint64), "F32") == canonical(expected.astype(np.uint64), "F32")
    k = int(np.argmin(same))
    assert same.all(), (
        f"{above[k]:#x} / {below[k]:#x}: got {got[k]:#x}, expected {expected[k]:#x}; "
        f"{np.count_nonzero(~same)} of {len(same)} differ"
    )


def test_numbers_at_the_edges_divide():
    signed = np.union1d(FLOAT_EDGES, FLOAT_EDGES ^ U32(0x80000000))
    _check(np.repeat(signed, len(signed)), np.tile(signed, len(signed)))


@pytest.mark.parametrize("bounds", [(0, 1 << 32), (0x3F000000, 0x41000000)], ids=["any", "near 1"])
def test_random_numbers_divide(bounds: tuple[int, int]):
    _check(*np.random.default_rng(0).integers(*bounds, (2, 1 << 16)))


@pytest.mark.parametrize("apart", [24, 95, 96, 97, 125, 126, 127, 130, 148, 149, 150, 151])
def test_quotients_near_the_ends_of_the_range_divide(apart: int):
    """Exponents far apart in both directions give denormal and infinite quotients too."""
    rng = np.random.default_rng(apart)
    low = rng.integers(0, 255 - apart, 1 << 13)
    mantissas = rng.integers(0, 1 << 23, (2, 1 << 13))
    small, large = low << 23 | mantissas[0], low + apart << 23 | mantissas[1]
    _check(small, large)
    _check(large, small)
