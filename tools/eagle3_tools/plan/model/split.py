"""Number of parts of an abstract model's arrays, by the rules of `eagle3_jax.mesh`."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from flax import nnx

from eagle3_jax.mesh import DATA, EXPERT, RULES, TENSOR, UNIT_NAMES, divides, parameter_axes
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_tools.plan.model.parallel import MOST_DEVICES, Parallelism

Parts = Mapping[str, int]
"""Mesh axis -> number of devices along it."""
WHOLE: Parts = {DATA: 1, TENSOR: 1, EXPERT: 1}


def target_parts(parallel: Parallelism) -> Parts:
    """Return the mesh of the target."""
    return {**WHOLE, EXPERT if parallel.expert_parallel else TENSOR: parallel.devices}


def draft_parts(parallel: Parallelism) -> Parts:
    """Return the mesh of the draft, which has no experts."""
    return {**WHOLE, TENSOR: parallel.draft_devices}


def count(parts: Parts, mesh_axes: tuple[str, ...]) -> int:
    """Return the number of parts along these mesh axes."""
    return math.prod(parts[axis] for axis in mesh_axes)


def device_shape(name: str, variable: nnx.Variable[Any], parts: Parts) -> tuple[int, ...]:
    """Return the shape of a device's part. Raises ValueError if it does not split evenly."""
    whole, parts_of = variable.get_value().shape, partial(count, parts)
    split = [parts_of(axes) for axes in parameter_axes(variable, parts_of)]
    groups = variable.get_metadata().get("groups") or [1] * len(whole)
    for size, part, group in zip(whole, split, groups, strict=True):
        if part > 1 and size % (part * group):
            raise ValueError(
                f"{name}: {size} of its {whole} cannot be split evenly over {part} devices, in "
                f"groups of {group}"
            )
    return tuple(size // part for size, part in zip(whole, split, strict=True))


def check_divides(parallel: Parallelism, target: Target, draft: Eagle3Draft | None) -> None:
    """Raise ValueError, with the numbers that work, if the devices cannot split the pair evenly."""
    wrong = indivisible(parallel, target, draft)
    if wrong:
        others = (parallel.over(devices) for devices in range(1, MOST_DEVICES + 1))
        fitting = [str(one.devices) for one in others if not indivisible(one, target, draft)]
        raise ValueError(
            f"--tensor-parallel-size {parallel.devices} does not divide {', '.join(wrong)}; "
            f"{', '.join(fitting)} would do"
        )


def indivisible(parallel: Parallelism, target: Target, draft: Eagle3Draft | None) -> list[str]:
    """Describe all units that the devices cannot split; `device_shape` checks groups of a scale."""
    found = list(_indivisible(target, target_parts(parallel), ""))
    if draft is not None:
        found += _indivisible(draft, draft_parts(parallel), " of the draft")
    return found


def _indivisible(model: Target | Eagle3Draft, parts: Parts, of: str) -> Iterator[str]:
    for axis, units in model.units.items():
        if not divides(axis, units, count(parts, RULES[axis])):
            yield f"{units} {UNIT_NAMES[axis]}{of}"
