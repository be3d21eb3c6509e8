"""A conversion as lines to print: one for every tensor of the source."""

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
"""Logical axis of a parameter -> axis of the mesh; along all others devices hold the
whole. Experts are whole: a mesh for the plan, which has no replicas, spreads them."""
NOT_STORED = "checked against the values, not stored"


def plan_lines(conversion: Conversion) -> Iterator[TensorLine]:
    """Every tensor, weight by weight, with its rule and where it goes or why it does not."""
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
    """The parameters that one tensor of a weight fills."""
    if weight.form is None or all(path in variables for path in paths):
        return paths
    if part == weight.form.main:
        return [f"{path}.values" for path in paths]
    return [f"{path}.scale" for path in paths if part.startswith("weight_scale")]
