"""Checks for slow kernels: narrow loads, and a lower predicted speed than recorded."""

from collections.abc import Collection, Sequence
from importlib.metadata import version
from typing import Any

from jax.tree_util import keystr, tree_leaves_with_path

from eagle3_tools.aot.targets import target_of
from eagle3_tools.aot.triton_calls import TritonCall
from eagle3_tools.kernel_model.gpus import BY_ARCH
from eagle3_tools.kernel_model.record import CaseFacts, recorded_with
from pallas_kernels.quantized import QuantizedArray

TOLERANCE = 0.03
"""Relative decrease of a recorded fraction of the floor that is not reported."""
OF_ANOTHER_COMPILER = 0.1
"""Tolerance if another version of JAX compiled the record, which changes the code of any kernel."""


def may_be_narrow(arguments: Any) -> set[str]:
    """Return the names of arguments that may be loaded narrowly: the rows, which come first, and
    group scales, of which a step has few a row (a byte for 32 values in MXFP4, two in INT4)."""
    rows = {f"a[0]{keystr(path)}" for path, _ in tree_leaves_with_path(arguments[0])}
    leaves = tree_leaves_with_path(arguments, is_leaf=lambda x: isinstance(x, QuantizedArray))
    scales = {
        f"a{keystr(path)}.scale"
        for path, leaf in leaves
        if isinstance(leaf, QuantizedArray) and leaf.format.stored.group
    }
    return rows | scales


def width_problems(
    arch: str, launched: Sequence[tuple[Any, TritonCall]], others: Collection[str]
) -> list[str]:
    """List weights and pools that are loaded in pieces of one or two bytes. Checks the program's
    arguments of any size, except those in `others`. Arrays that the program made are rows and
    tables. A load from an unidentified array may be of a weight, and counts."""
    return [
        f"{kernel.name}: {times} loads of one or two bytes of {call.shown(place)}, which is to be "
        "loaded in pieces of 16"
        for kernel, call in launched
        for place, times in target_of(arch).narrow_loads(kernel, call).items()
        if call.source(place) not in ("", *others)
    ]


def tolerance_for(arch: str) -> float:
    """Return the tolerance for this architecture's record with the installed JAX."""
    return TOLERANCE if version("jax") == recorded_with(arch) else OF_ANOTHER_COMPILER


def share_problems(
    found: CaseFacts, known: CaseFacts, arch: str, tolerance: float = TOLERANCE
) -> list[str]:
    """List a predicted fraction of the floor below the recorded one, or fewer stages than recorded
    without a gain: stages may hide limits that the model does not include."""
    gpu = BY_ARCH[arch]
    now, before = found.share(gpu), known.share(gpu)
    again = f"python -m eagle3_tools.aot --record --only '{found.name}'"
    remedy = f"if it is meant, write the record again: {again}"
    if now > before * (1 + tolerance):
        return []
    if now >= before * (1 - tolerance):
        pairs = zip(found.kernels, known.kernels, strict=False)
        return [
            f"{new.name}: {new.stages} stages, recorded {old.stages}, for no better share; {remedy}"
            for new, old in pairs
            if new.name == old.name and new.stages < old.stages
        ]
    both = zip(found.kernels, found.predictions(gpu), known.predictions(gpu), strict=False)
    limits = ", ".join(
        f"{kernel.name} {new.seconds * 1e6:.1f} us ({new.limit}), was {old.seconds * 1e6:.1f}"
        for kernel, new, old in both
    )
    return [f"predicted share {now:.3f} of the floor, recorded {before:.3f}: {limits}; {remedy}"]
