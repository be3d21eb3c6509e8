"""Launches of one MoE layer of the round."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence

from eagle3_tools.aot.expectations import (
    copy_problems,
    kernel_problems,
    logits_problems,
    temporary_problems,
)
from eagle3_tools.aot.launches import Launch, count, launches
from eagle3_tools.plan.compile.compiled_round import RoundShape, compile_few_layers
from eagle3_tools.plan.compile.report import ProgramReport, report_of

GOAL = 16
"""Target for the launches of one MoE layer without collectives; a naive program has about 24."""
BATCHES = (16, 64)
"""Sequences of the compiled rounds: 64 and 256 rows with 3 drafts."""
MOST_LAUNCHES = {
    ("mxfp4", 16): 15,
    ("mxfp4", 64): 15,
    ("int4", 16): 15,
    ("int4", 64): 15,
    ("ptpc", 16): 16,
    ("ptpc", 64): 16,
}
"""Launches reached on both architectures: more is a regression."""
_LAYER = re.compile(r"\btarget_layer_(\d+)\b")
WITHOUT_COPIES = ("gfx950",)
"""Architectures without copied weights. Published float8 weights are not gfx942's own float8."""


def report_round(shape: RoundShape) -> ProgramReport:
    """Compile the round and report on the last MoE layer but one, between two MoE layers."""
    begin = time.monotonic()
    compiled = compile_few_layers(shape)
    program, weights = compiled.program, compiled.weights
    found = launches(program.hlo)
    layer = launches_of_layers(found)[shape.moe_layers - 1]
    ours = {launch.name for launch in found if launch.kind == "kernel"}
    problems = [
        problem
        for kernel in program.kernels
        if any(map(kernel.is_called, ours))
        for problem in kernel_problems(kernel, shape.arch)
    ]
    problems += logits_problems(program, weights)
    copies = [*copy_problems(program, weights), *temporary_problems(program, weights)]
    return report_of(
        shape,
        program,
        round_failures(shape, count(layer), problems, copies),
        begin=begin,
        per_layer=count(layer),
        figures={"copies": len(copies)},
        layer=tuple(layer),
    )


def round_failures(
    shape: RoundShape, per_layer: int, problems: Iterable[str], copies: Iterable[str]
) -> Iterator[str]:
    """Yield violations; per_layer: launches of a MoE layer without collectives."""
    yield from problems
    yield from copies if shape.arch in WITHOUT_COPIES else ()
    if per_layer > (most := MOST_LAUNCHES[shape.scheme, shape.batch]):
        yield f"{per_layer} launches a MoE layer, were {most}"


def launches_of_layers(found: Sequence[Launch]) -> dict[int, list[Launch]]:
    """Return the target's launches by layer: from the first of a layer to the first of the next.

    XLA's operations keep their layer's scope, except those fused across layers. So the last layer's
    launches include everything after it. Raises ValueError if layers are not scheduled in sequence.
    """
    layers: dict[int, list[Launch]] = {}
    for launch in found:
        scope = _LAYER.search(launch.scope)
        layer = int(scope[1]) if scope else max(layers, default=-1)
        if layer < max(layers, default=-1):
            raise ValueError(f"{launch.name} of layer {layer} comes after layer {max(layers)}")
        if layer >= 0:
            layers.setdefault(layer, []).append(launch)
    return layers
