"""Print the plan of a conversion: every tensor, then the totals."""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import IO

from rich.console import Console
from rich.table import Table

from convert.conversion.conversion import Conversion
from convert.device_memory import GIB
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


@dataclass(frozen=True)
class TensorLine:
    """The fate of one tensor of the source.

    Attributes:
        rule: the line of the table that the tensor matched.
        path: the parameter that it fills, None if it is skipped; `shape` is that parameter's.
        axes: mesh axis of each dimension of the parameter; None: every device holds all of it.
    """

    name: str
    rule: str
    format: str
    nbytes: int
    path: str | None = None
    shape: tuple[int, ...] | None = None
    axes: tuple[str | None, ...] = ()
    skipped_reason: str | None = None

    def device_bytes(self, mesh: Mapping[str, int]) -> int:
        """Return the tensor's bytes on each device of a mesh, or 0 if it is skipped."""
        if self.shape is None:
            return 0
        sizes = [mesh.get(axis, 1) if axis else 1 for axis in self.axes]
        pairs = zip(self.shape, sizes, strict=False)
        return self.nbytes // math.prod(size for dim, size in pairs if dim % size == 0)


@dataclass
class Totals:
    tensors: int = 0
    nbytes: int = 0
    device_nbytes: int = 0


@dataclass
class Summary:
    """Totals of a plan, by format for stored tensors and by reason for skipped ones."""

    everything: Totals = field(default_factory=Totals)
    by_format: dict[str, Totals] = field(default_factory=dict)
    skipped: dict[str, Totals] = field(default_factory=dict)

    def add(self, line: TensorLine, device_nbytes: int) -> None:
        groups, name = self.by_format, line.format
        if line.skipped_reason is not None:
            groups, name = self.skipped, line.skipped_reason
        for totals in (self.everything, groups.setdefault(name, Totals())):
            totals.tensors += 1
            totals.nbytes += line.nbytes
            totals.device_nbytes += device_nbytes


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


def print_plan(
    lines: Iterable[TensorLine], mesh: Mapping[str, int], out: IO[str], *, as_json: bool = False
) -> Summary:
    """Write each line as it is produced, as text or one JSON object a line; return the totals."""
    summary = Summary()
    for line in lines:
        device_nbytes = line.device_bytes(mesh)
        summary.add(line, device_nbytes)
        fields = {**asdict(line), "device_nbytes": device_nbytes}
        out.write(f"{json.dumps(fields) if as_json else _text(line, device_nbytes)}\n")
    if as_json:
        out.write(json.dumps({"totals": asdict(summary)}) + "\n")
    return summary


def print_summary(console: Console, summary: Summary, mesh: Mapping[str, int]) -> None:
    """Print one table: formats, then skipped tensors, then the sum."""
    devices = ", ".join(f"{axis}={size}" for axis, size in mesh.items())
    table = Table(title="LoadPlan")
    for heading in ("", "tensors", "bytes", "GiB", f"GiB a device ({devices})"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, totals in summary.by_format.items():
        table.add_row(name, *_cells(totals))
    for reason, totals in summary.skipped.items():
        table.add_row(f"skipped: {reason}", *_cells(totals))
    table.add_section()
    table.add_row("total", *_cells(summary.everything))
    console.print(table)


def _stored_as(
    weight: Weight, part: str, paths: list[str], variables: Collection[str]
) -> list[str]:
    """Return the parameters that one tensor of a weight fills."""
    if weight.form is None or all(path in variables for path in paths):
        return paths
    if part == weight.form.main:
        return [f"{path}.values" for path in paths]
    return [f"{path}.scale" for path in paths if part.startswith("weight_scale")]


def _cells(totals: Totals) -> tuple[str, ...]:
    gib, device_gib = totals.nbytes / GIB, totals.device_nbytes / GIB
    return f"{totals.tensors:,}", f"{totals.nbytes:,}", f"{gib:.2f}", f"{device_gib:.2f}"


def _text(line: TensorLine, device_nbytes: int) -> str:
    if line.skipped_reason is not None:
        return f"{line.name}  {line.nbytes} B  skipped: {line.skipped_reason}"
    return (
        f"{line.name}  {line.nbytes} B  {line.format}  by {line.rule}  -> {line.path} "
        f"{list(line.shape or ())}  {device_nbytes} B a device"
    )
