"""List a conversion's tensors as lines to print."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace

from convert.conversion.conversion import Conversion
from convert.conversion.dry_run import TensorLine
from convert.published.weights import Weight
from eagle3_jax.mesh import DATA, RULES

MESH_AXES = {
    axis: next(name for name in axes if name != DATA)
    for axis, axes in RULES.items()
    if axes and axis != "expert_mlp"
}
"""Logical axis of a parameter -> mesh axis. Other axes are not split, nor are single experts: the
plan's mesh has no replicas, so it distributes whole experts."""
NOT_STORED = "checked against the values, not stored"


def plan_lines(conversion: Conversion) -> Iterator[TensorLine]:
    """Yield a line for every tensor: its rule, and its parameter or the reason to skip it."""
    plan, variables = conversion.planned.plan, conversion.variables
    filled: defaultdict[str, list[str]] = defaultdict(list)
    for path, sources in plan.sources.items():
        for source in sources:
            filled[source.weight.name].append(path)
    for weight in conversion.planned.published.weights:
        for part, tensor in weight.parts.items():
            format = weight.form.weights if weight.form else tensor.dtype
            line = TensorLine(tensor.name, plan.rules[weight.name].name, format, tensor.nbytes)
            paths = _stored_as(weight, part, filled[weight.name], variables)
            if paths:
                first = variables[paths[0]]
                axes = tuple(map(MESH_AXES.get, first.get_metadata().get("axes", ())))
                shape = first.get_value().shape
                yield replace(line, path=" and ".join(paths), shape=shape, axes=axes)
            else:
                yield replace(line, skipped_reason=plan.dropped.get(weight.name, NOT_STORED))


def _stored_as(
    weight: Weight, part: str, paths: list[str], variables: Collection[str]
) -> list[str]:
    """Return the parameters that one tensor of a weight fills."""
    if weight.form is None or all(path in variables for path in paths):
        return paths
    if part == weight.form.main:
        return [f"{path}.values" for path in paths]
    return [f"{path}.scale" for path in paths if part.startswith("weight_scale")]
