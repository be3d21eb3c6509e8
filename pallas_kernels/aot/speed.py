"""What makes a kernel slow, said as a list: narrow loads, and a share that fell."""

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

import jax

from pallas_kernels.aot.expectations import SMALLEST_WEIGHT
from pallas_kernels.aot.targets import target_of
from pallas_kernels.aot.triton_calls import TritonCall
from pallas_kernels.kernel_model.gpus import BY_ARCH
from pallas_kernels.kernel_model.record import CaseFacts
from pallas_kernels.quantized import QuantizedArray

TOLERANCE = 0.03
"""Of a recorded share: so much less is no step back."""


def not_weights(arguments: Any) -> set[int]:
    """Bytes of the rows, which come first, and of the scales of groups: a step has few of these a
    row, in MXFP4 a byte for 32 values, in INT4 two."""
    rows = {prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(arguments[0])}
    leaves = jax.tree.leaves(arguments, is_leaf=lambda x: isinstance(x, QuantizedArray))
    quantized = [x for x in leaves if isinstance(x, QuantizedArray)]
    scales = [x.scale for x in quantized if x.format.weights in ("mxfp4", "int4_group")]
    return rows | {prod(scale.shape) * scale.dtype.itemsize for scale in scales}


def width_problems(
    arch: str, launched: Sequence[tuple[Any, TritonCall]], others: Collection[int]
) -> list[str]:
    """Weights and pools that are loaded in pieces of one or two bytes; but for arrays of these
    sizes."""
    return [
        f"{kernel.name}: {times} loads of one or two bytes of {call.shapes[place]}, which is to be "
        "loaded in pieces of 16"
        for kernel, call in launched
        for place, times in target_of(arch).narrow_loads(kernel, call).items()
        if call.operands.get(place, 0) >= SMALLEST_WEIGHT and call.operands[place] not in others
    ]


def share_problems(found: CaseFacts, known: CaseFacts, arch: str) -> list[str]:
    """A predicted share of the floor that is lower than the recorded one."""
    gpu = BY_ARCH[arch]
    now, before = found.share(gpu), known.share(gpu)
    if now >= before * (1 - TOLERANCE):
        return []
    both = zip(found.kernels, found.predictions(gpu), known.predictions(gpu), strict=False)
    limits = ", ".join(
        f"{kernel.name} {new.seconds * 1e6:.1f} us ({new.limit}), was {old.seconds * 1e6:.1f}"
        for kernel, new, old in both
    )
    return [
        f"predicted share {now:.3f} of the floor, recorded {before:.3f}: {limits}; if it is meant, "
        f"write the record again: python -m pallas_kernels.aot --record --only '{found.name}'"
    ]
