"""The small cases cover all real operations, formats, kernels and tiles, and reveal errors."""

import math
import re
from dataclasses import replace
from itertools import cycle, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweeps import sweep

from eagle3_tools.amdgpu.cases import EmulatedCase, emulated_cases
from eagle3_tools.amdgpu.cases.errors import largest_error, route_error
from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import AMD, Case
from pallas_kernels.quantized import QuantizedArray

EVERY = emulated_cases()
SMALL = [case for case in EVERY if not case.long]
WHOLE_ROWS = ("quantize_fp8", "quantize_int8", "quantize_mxfp4", "logits_argmax_merge")
"""Kernels whose block is a row of any length; the cases of route have real rows of 7,168."""
MOST_PROGRAMS = 400
"""Most programs to emulate: a router's map has one, of one wave, for each of 384 experts."""

FAMILIES = list({case.case.operation: case for case in reversed(SMALL)}.values())
"""The first case of each operation."""


def format_of(case: Case) -> str:
    """Return the variant without sizes: formats and options."""
    return re.sub(r"(rows|tokens|page|q|b)\d+_?|[\d.]+k_?", "", case.variant).strip(" _")


def test_every_operation_in_every_format_has_a_small_case() -> None:
    wanted = {(case.operation, format_of(case)) for case in all_cases()}
    assert not wanted - {(case.like.operation, format_of(case.like)) for case in SMALL}


def test_every_set_of_kernels_has_a_small_case() -> None:
    wanted = {(case.operation, case.kernels) for case in all_cases()}
    assert not wanted - {(case.case.operation, case.case.kernels) for case in SMALL}


def test_names_are_unique_and_three_real_shapes_are_for_the_long_form() -> None:
    assert len({case.name for case in EVERY}) == len(EVERY)
    assert [case.case.operation for case in EVERY if case.long] == [
        "mla_decode",
        "grouped_mlp",
        "fp8_matmul",
    ]


@pytest.mark.parametrize(
    ("case", "arch"),
    sweep(product(SMALL, AMD), list(zip(FAMILIES, cycle(AMD), strict=False))),
    ids=lambda value: getattr(value, "name", value),
)
def test_it_launches_the_kernels_of_the_real_case_with_their_tiles(
    case: EmulatedCase, arch: str
) -> None:
    launched, real = case.launches(arch), case.launches_of_real(arch)
    assert [one.name for one in launched] == [one.name for one in real]
    tiles = {one.tiles for one in launched if one.name not in WHOLE_ROWS}
    assert tiles <= {one.tiles for one in real}
    programs = [math.prod(one.grid) for one in launched]
    assert sum(programs) <= MOST_PROGRAMS
    assert max(programs) > 1 or case.case.operation == "route"


def rolled(arguments: Any) -> Any:
    """Move every scale to its neighbour's place."""

    def roll(leaf: Any) -> Any:
        return replace(leaf, scale=jnp.roll(leaf.scale, 1, -1)) if is_quantised(leaf) else leaf

    return jax.tree.map(roll, arguments, is_leaf=is_quantised)


def is_quantised(leaf: Any) -> bool:
    return isinstance(leaf, QuantizedArray)


PRODUCTS = ("fp8_matmul", "joint_matmul", "gated_matmul", "logits_argmax", "grouped_mlp")
QUANTISED = {
    f"{case.case.operation} {format_of(case.like)}": case
    for case in SMALL
    if case.case.operation in PRODUCTS and not format_of(case.like).startswith("bf16")
}


@pytest.mark.parametrize(
    "case",
    sweep(QUANTISED.values(), list({c.case.operation: c for c in QUANTISED.values()}.values())),
    ids=QUANTISED,
)
def test_a_neighbours_scale_shows(case: EmulatedCase) -> None:
    arguments = case.arguments("gfx950")
    expected = case.expected("gfx950", arguments)
    wrong = case.expected("gfx950", rolled(arguments))
    assert case.compare(wrong, expected) > case.tolerance.reference


def test_one_other_id_and_one_nan_are_errors_of_any_size() -> None:
    ids, wide = np.arange(1000), np.linspace(-1, 1, 1000)
    assert largest_error([ids, wide], [ids, wide]) == 0
    assert largest_error([np.where(ids == 7, 8, ids)], [ids]) == math.inf
    assert largest_error([np.where(ids == 7, np.nan, wide)], [wide]) == math.inf
    assert largest_error([wide + 0.01], [wide]) == pytest.approx(0.01)


def test_of_a_map_only_what_is_in_use_counts() -> None:
    def routed(expert: int, unused: int) -> list[np.ndarray]:
        used, tiles = np.array([1]), np.array([expert, unused])
        order = np.array([0, 1, unused])
        return [
            np.zeros(3, int),
            np.ones(3),
            used,
            tiles,
            np.array([0, unused]),
            tiles * 0 + 2,
            order,
        ]

    assert route_error(routed(4, 9), routed(4, 5)) == 0
    assert route_error(routed(4, 9), routed(3, 9)) == math.inf
