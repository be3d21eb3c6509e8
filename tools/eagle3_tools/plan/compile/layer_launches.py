"""Launches of one MoE layer of the round."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_tools.aot.expectations import (
    copy_problems,
    kernel_problems,
    logits_problems,
    temporary_problems,
)
from eagle3_tools.aot.launches import Launch, count, launches
from eagle3_tools.plan.compile.compiled_round import RoundShape, compile_few_layers

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


@dataclass(frozen=True)
class RoundReport:
    """Report of a round. layer: launches of one MoE layer in order; per_layer: their number without
    collectives; program: launches of the whole round."""

    shape: RoundShape
    layer: tuple[Launch, ...]
    per_layer: int
    program: int
    argument_bytes: int
    temporary_bytes: int
    problems: tuple[str, ...]
    copies: tuple[str, ...]
    seconds: float

    @property
    def failures(self) -> list[str]:
        """Violations that make the check fail."""
        most = MOST_LAUNCHES[self.shape.scheme, self.shape.batch]
        return [
            *self.problems,
            *(self.copies if self.shape.arch in WITHOUT_COPIES else ()),
            *([f"{self.per_layer} launches a MoE layer, were {most}"] * (self.per_layer > most)),
        ]


def report_round(shape: RoundShape) -> RoundReport:
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
    return RoundReport(
        shape,
        tuple(layer),
        count(layer),
        count(found),
        program.argument_bytes,
        program.temporary_bytes,
        (*problems, *logits_problems(program, weights)),
        (*copy_problems(program, weights), *temporary_problems(program, weights)),
        round(time.monotonic() - begin, 1),
    )


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
