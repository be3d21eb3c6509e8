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
"""Launches of one MoE layer, collectives not counted; a naive program has about 24."""
BATCHES = (16, 64)
"""Sequences of the rounds that are compiled: 64 and 256 rows with 3 drafts."""
MOST_LAUNCHES = {
    ("mxfp4", 16): 15,
    ("mxfp4", 64): 15,
    ("int4", 16): 15,
    ("int4", 64): 15,
    ("ptpc", 16): 16,
    ("ptpc", 64): 16,
}
"""What was reached, on both architectures: more is a step back."""
_LAYER = re.compile(r"\btarget_layer_(\d+)\b")
WITHOUT_COPIES = ("gfx950",)
"""Where no weight is copied. On gfx942 float8 weights as published are not its own float8."""


@dataclass(frozen=True)
class RoundReport:
    """layer: launches of one MoE layer, in order; per_layer: how many without collectives; program:
    how many the whole round has."""

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
        """What makes the check fail."""
        most = MOST_LAUNCHES[self.shape.scheme, self.shape.batch]
        return [
            *self.problems,
            *(self.copies if self.shape.arch in WITHOUT_COPIES else ()),
            *([f"{self.per_layer} launches a MoE layer, were {most}"] * (self.per_layer > most)),
        ]


def report_round(shape: RoundShape) -> RoundReport:
    """Compiles the round; of its MoE layers the last but one has neighbours of its own kind."""
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
    """The target's, layer by layer: from the first of a layer to the first of the next one.

    XLA's operations remember the layer's scope, but where it fuses across layers they have none: so
    what the last layer has is followed by what is behind it. Raises ValueError where layers are
    not scheduled one after the other.
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
