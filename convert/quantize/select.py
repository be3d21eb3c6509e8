"""Select the weights to quantise, and the patterns that describe the others."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from convert.files.safetensors_files import Checkpoint, TensorInfo
from convert.published.exclude import as_regexes, check_pattern, excluded, matches, unprefixed

ExcludeStyle = Literal["regex", "exact"]
FLOATS = ("F64", "F32", "BF16", "F16")
QUANTIZED_PARTS = ("weight_packed", "weight_scale", "weight_scale_2", "weight_scale_inv")

DRAFT_EXCLUDES = ("fc", "lm_head")
_HEAD, _ATTENTION = "re:.*lm_head.*", "re:.*self_attn.*"
_NOT_ROUTED = ("re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*")
TARGET_EXCLUDES = {
    "ptpc_fp8": (_HEAD,),
    "int4": (_HEAD, _ATTENTION, *_NOT_ROUTED),
    "mxfp4": (_HEAD, _ATTENTION),
    "fp8_block": (_HEAD,),
}
"""Modules that the published recipes leave unquantised, or our choice without a recipe."""
SCHEME_NAMES = tuple(TARGET_EXCLUDES)
ROUTER = r"re:.*\.gate$"
VISION = ("re:.*vision_tower.*", "re:.*mm_projector.*")


@dataclass(frozen=True)
class Selection:
    """Modules with a linear weight: those to quantise, and those to keep with their patterns."""

    quantized: tuple[str, ...]
    kept: tuple[str, ...]
    patterns: tuple[str, ...]

    def regexes(self) -> tuple[str, ...]:
        """Return `re:` patterns that select the kept modules by their full names."""
        modules = (*self.quantized, *self.kept)
        written = [regex for pattern in self.patterns for regex in as_regexes(pattern, modules)]
        return tuple(dict.fromkeys(written))


def select(
    checkpoint: Checkpoint,
    scheme: str,
    exclude: Sequence[str] | None = None,
    *,
    vision: bool = False,
) -> Selection:
    """Select modules from headers; `exclude` replaces the scheme's own list unless it is None.

    Routers are always kept; so are vision tower and projector unless `vision`. Raises ValueError
    for a quantised checkpoint, for a pattern that matches nothing, and if no weight is left.
    """
    refuse_quantized(checkpoint.tensors.values())
    modules = tuple(sorted(linear_modules(checkpoint.tensors.values())))
    given = default_excludes(modules, scheme) if exclude is None else tuple(exclude)
    if exclude is not None:
        _refuse_idle(given, modules)
    implied = (ROUTER,) if vision else (ROUTER, *VISION)
    patterns = tuple(p for p in (*given, *implied) if any(matches(p, m) for m in modules))
    kept = tuple(module for module in modules if excluded(module, patterns))
    quantized = tuple(sorted(set(modules) - set(kept)))
    if not quantized:
        raise ValueError(f"{checkpoint.directory}: no linear weight is left to quantise")
    return Selection(quantized, kept, patterns)


def default_excludes(modules: Collection[str], scheme: str) -> tuple[str, ...]:
    """Return the published recipe's list; a checkpoint with `fc` is a draft."""
    draft = any(unprefixed(module) == "fc" for module in modules)
    return DRAFT_EXCLUDES if draft else TARGET_EXCLUDES[scheme]


def linear_modules(tensors: Iterable[TensorInfo]) -> Iterable[str]:
    """Yield modules with a two-dimensional weight that is neither an embedding nor a norm."""
    for info in tensors:
        module, _, part = info.name.rpartition(".")
        is_matrix = part == "weight" and len(info.shape) == 2
        if is_matrix and "embed" not in module and not module.endswith("norm"):
            yield module


def refuse_quantized(tensors: Iterable[TensorInfo]) -> None:
    """Raise ValueError, naming the first tensor of a quantised weight, if there is one."""
    for info in tensors:
        part = info.name.rpartition(".")[2]
        if part in QUANTIZED_PARTS or (part == "weight" and info.dtype not in FLOATS):
            raise ValueError(
                f"{info.file.parent} is quantised already, as {info.name} ({info.dtype}) shows; "
                f"weights must be {', '.join(FLOATS)}"
            )


def _refuse_idle(patterns: Iterable[str], modules: Collection[str]) -> None:
    for pattern in patterns:
        check_pattern(pattern)
        if not any(matches(pattern, module) for module in modules):
            raise ValueError(
                f"exclude pattern {pattern!r} matches no linear weight; patterns name modules, "
                "such as lm_head, *self_attn* or re:.*shared_experts.*"
            )
