"""Expectations of a compiled program, each checked by a function that lists the violations."""

from collections.abc import Collection, Iterable, Sequence
from math import prod

import jax

from eagle3_tools.aot.compile import Program
from eagle3_tools.aot.hlo import parse_module
from eagle3_tools.aot.launches import TRITON_CALL
from eagle3_tools.aot.target import Kernel
from eagle3_tools.aot.targets import target_of
from pallas_kernels import gpu

SMALLEST_WEIGHT = 1 << 20
"""Elements of the smallest array whose copy takes noticeable time."""
MIB = 1 << 20
_FLOATS = ("f32", "bf16", "f16")
_IN_PLACE = {"parameter", "bitcast", "get-tuple-element", "tuple", "while", "conditional", "call"}


def kernel_problems(kernel: Kernel, arch: str) -> list[str]:
    """List features that the architecture lacks or that are too expensive there."""
    found = target_of(arch).problems(kernel, gpu.KNOWN[arch])
    return [f"{kernel.name}: {problem}" for problem in found]


def matrix_problems(kernels: Sequence[Kernel], wanted: str) -> list[str]:
    """Check that a kernel uses the matrix instruction `wanted`; "" if nothing is multiplied."""
    used = sorted({name for kernel in kernels for name in kernel.matrix})
    if not wanted or any(wanted in name for name in used):
        return []
    return [f"expected matrix instruction {wanted}, got {', '.join(used) or 'none'}"]


def logits_problems(program: Program, weights: Iterable[jax.ShapeDtypeStruct]) -> list[str]:
    """List XLA's own results over the vocabulary, the longest dimension of all weights: logits that
    a kernel would not need to write."""
    vocab = max(size for a in weights for size in a.shape)
    return [
        f"{instruction.name} writes {dtype}{list(shape)} over the vocabulary"
        for instruction, _ in parse_module(program.hlo).executed()
        if instruction.opcode not in _IN_PLACE
        for dtype, shape in instruction.arrays
        if dtype in _FLOATS and shape[-1:] == (vocab,) and len(shape) > 1
    ]


def copy_problems(
    program: Program, weights: Iterable[jax.ShapeDtypeStruct], rows: Collection[int] = ()
) -> list[str]:
    """List XLA's own results as large as a weight: one dequantised, transposed or cast in memory.

    rows: first dimensions of activations, which may be as large as a small weight.
    """
    large = [a for a in weights if prod(a.shape) >= SMALLEST_WEIGHT]
    # A byte may hold two values.
    sizes = {prod(a.shape) * k for a in large for k in ((1, 2) if a.dtype.itemsize == 1 else (1,))}
    return [
        f"{instruction.name} makes {dtype}{list(shape)}, as large as a weight"
        for instruction, _ in parse_module(program.hlo).executed()
        if instruction.opcode not in _IN_PLACE and TRITON_CALL not in instruction.text
        for dtype, shape in instruction.arrays
        if prod(shape) in sizes and shape[0] not in rows
    ]


def temporary_problems(program: Program, weights: Iterable[jax.ShapeDtypeStruct]) -> list[str]:
    """Report temporaries that, with a small batch, exceed half of the largest weight."""
    largest = max((prod(a.shape) * a.dtype.itemsize for a in weights), default=0)
    if largest > 64 * MIB and program.temporary_bytes > largest / 2:
        return [f"{program.temporary_bytes / MIB:.0f} MiB of temporaries"]
    return []
