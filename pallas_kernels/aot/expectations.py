"""What must be true of a compiled program, said as a list of what is not."""

import re
from collections.abc import Collection, Iterable, Sequence
from math import prod

import jax

from pallas_kernels import gpu
from pallas_kernels.aot.code_object import GpuKernel
from pallas_kernels.aot.compile import Program
from pallas_kernels.aot.hlo import parse_module
from pallas_kernels.aot.launches import TRITON_CALL

MOST_VGPRS = 512
SMALLEST_WEIGHT = 1 << 20
"""Values of an array from which on a copy of it would be felt."""
MIB = 1 << 20
_HALF = re.compile(r"(?<!b)f16")
_FLOATS = ("f32", "bf16", "f16")
_IN_PLACE = {"parameter", "bitcast", "get-tuple-element", "tuple", "while", "conditional", "call"}


def kernel_problems(kernel: GpuKernel, arch: str) -> list[str]:
    """Registers and memory that the architecture does not have, and half precision."""
    limit = gpu.KNOWN[arch].lds_bytes
    found = {
        f"{kernel.vgpr_spills} VGPR spills": kernel.vgpr_spills > 0,
        f"{kernel.scratch_bytes} B scratch": kernel.scratch_bytes > 0,
        f"{kernel.vgprs} VGPRs of {MOST_VGPRS}": kernel.vgprs > MOST_VGPRS,
        f"{kernel.lds_bytes} B of {limit} B LDS": kernel.lds_bytes > limit,
        "f16 matrix instructions": any(_HALF.search(name) for name in kernel.matrix),
    }
    return [f"{kernel.name}: {problem}" for problem, holds in found.items() if holds]


def matrix_problems(kernels: Sequence[GpuKernel], wanted: str) -> list[str]:
    """One of the kernels must multiply with this instruction; "": there is nothing to multiply."""
    used = sorted({name for kernel in kernels for name in kernel.matrix})
    if not wanted or any(wanted in name for name in used):
        return []
    return [f"expected matrix instruction {wanted}, got {', '.join(used) or 'none'}"]


def logits_problems(program: Program, weights: Iterable[jax.ShapeDtypeStruct]) -> list[str]:
    """Results of XLA's own over the vocabulary, which is the longest side of all weights: logits
    that a kernel need not have written."""
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
    """Results of XLA's own that are as large as a weight: one that is dequantised, transposed or
    cast in memory.

    rows: what activations have for a first dimension, which may be as large as a small weight.
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
    """Temporaries that are half as large together as the largest weight, of a small batch."""
    largest = max((prod(a.shape) * a.dtype.itemsize for a in weights), default=0)
    if largest > 64 * MIB and program.temporary_bytes > largest / 2:
        return [f"{program.temporary_bytes / MIB:.0f} MiB of temporaries"]
    return []
