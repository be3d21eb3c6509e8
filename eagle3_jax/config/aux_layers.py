"""Target layers that a draft reads: conversion of the two published conventions to one."""

from collections.abc import Iterable
from typing import Literal

from eagle3_jax.config.brief import brief

AuxIdConvention = Literal["auto", "before", "after"]


def default_aux_layer_ids(num_layers: int) -> tuple[int, ...]:
    """Return the triple that engines assume by default: the inputs of layers 2, N//2 and N-3."""
    return (2, num_layers // 2, num_layers - 3)


def canonical_aux_layer_ids(
    ids: Iterable[int] | None, num_layers: int, convention: AuxIdConvention = "auto"
) -> tuple[int, ...]:
    """Convert published aux layer ids to "before layer k" numbers.

    Explicit ids name layer outputs ("after k"), unless they equal the default triple, which is in
    vLLM's "before" form. `convention` overrides this rule. Raises ValueError for ids out of range.
    """
    if convention not in ("auto", "before", "after"):
        raise ValueError(f"aux_id_convention must be auto, before or after, got {convention!r}")
    default = default_aux_layer_ids(num_layers)
    given = default if ids is None else tuple(ids)
    before = ids is None or convention == "before" or (convention == "auto" and given == default)
    canonical = given if before else tuple(i + 1 for i in given)
    if not canonical or not all(0 <= i <= num_layers for i in canonical):
        raise ValueError(
            f"aux layer ids must name layers of the target (it has {num_layers}), got "
            f"{brief(given)} read as {'before' if before else 'after'} layer k; "
            "see aux_id_convention"
        )
    return canonical
