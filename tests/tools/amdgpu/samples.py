"""Inputs that reveal differences in opcode semantics: edge cases, their neighbours and noise."""

import numpy as np

U32, U64 = np.uint32, np.uint64
FLOAT_EDGES = np.array(
    [
        *(0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x807FFFFF, 0x800000, 0x80800000, 0x00400000),
        *(0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001, 0xFFA00000, 0x7FFFFFFF),
        *(0x7F7FFFFF, 0xFF7FFFFF, 0x7F000000, 0x7E800000, 0x3F800000, 0xBF800000, 0x3F7FFFFF),
        *(0x3F000000, 0xBF000000, 0x3EFFFFFF, 0x3F000001, 0x3FC00000, 0x40200000, 0xC0200000),
        *(0x4B000000, 0x4B000001, 0x4AFFFFFF, 0x4F000000, 0xCF000000, 0x4EFFFFFF, 0x4F800000),
        *(0x4F7FFFFF, 0xCF000001, 0x33800000, 0x33800001, 0x3F808000, 0x3F818000, 0x43E00000),
        *(0x43E80000, 0x43E7FFFF, 0xC3E80001, 0x3B000000, 0x3A800000, 0x3C3F8000, 0x0C000000),
    ],
    U32,
)
"""Zeros, denormals, infinities, NaN of both kinds, halves, bounds of smaller types."""
_WORD_EDGES = np.array(
    [
        *(0, 1, 2, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000),
        *(0x7FFFFF, 0x800000, 0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0x80000001),
        *(0xFFFFFFFF, 0xFFFFFFFE, 0xFFFF8000, 0x55555555, 0xAAAAAAAA, 0x0C0D0804, 0x01060A0B),
    ],
    U32,
)


def samples(type_: str, bits: int, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Draw uint64 of a shape [waves, lanes]; `type_` is AMD's name, such as F32."""
    if bits == 64:
        low, high = (samples("U32", 32, shape, rng) for _ in range(2))
        if type_.endswith("F32"):
            low, high = (samples("F32", 32, shape, rng) for _ in range(2))
        elif type_ != "M64":
            high = np.where(rng.random(shape) < 0.3, rng.choice([0, 0xFFFFFFFF], shape), high)
        return low | high.astype(U64) << U64(32)
    made = _floats(shape, rng) if type_ == "F32" else _words(shape, rng)
    return made.astype(U64)


def _mixture(shape: tuple[int, int], rng: np.random.Generator, *kinds: np.ndarray) -> np.ndarray:
    return np.choose(rng.integers(0, len(kinds), shape), kinds)


def _words(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Draw edge cases, small signed numbers, bit fields in each half, and arbitrary words."""
    small = rng.integers(-300, 1100, shape).astype(np.int32).view(U32)
    fields = rng.integers(0, 40, shape).astype(U32) | rng.integers(0, 32, shape).astype(U32) << 16
    bytes_ = rng.integers(0, 16, (*shape, 4)).astype(np.uint8).view(U32)[..., 0]
    anything = rng.integers(0, 1 << 32, shape).astype(U32)
    return _mixture(shape, rng, rng.choice(_WORD_EDGES, shape), small, fields, bytes_, anything)


def _floats(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Draw edge cases, numbers near 1, multiples of 1/2, ties, and arbitrary patterns."""
    near = rng.normal(0, 2, shape).astype(np.float32).view(U32)
    halves = (rng.integers(-4000, 4000, shape) / 2).astype(np.float32).view(U32)
    ties = near & U32(0xFFFFF000) | U32(0x800)
    anything = rng.integers(0, 1 << 32, shape).astype(U32)
    return _mixture(shape, rng, rng.choice(FLOAT_EDGES, shape), near, halves, ties, anything)
