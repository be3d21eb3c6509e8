"""What one MoE layer of the round launches: the difference of two programs that differ by it."""

import time
from dataclasses import dataclass, replace

from pallas_kernels.aot.expectations import (
    copy_problems,
    kernel_problems,
    logits_problems,
    temporary_problems,
)
from pallas_kernels.aot.launches import Launch, added, count, launches
from serve.plan.compiled_round import RoundShape, compile_few_layers

GOAL = 16
"""Launches of one MoE layer, collectives not counted; a naive program has about 24."""
BATCHES = (16, 64)
"""Sequences of the rounds that are compiled: 64 and 256 rows with 3 drafts."""
MOST_LAUNCHES = {
    ("mxfp4", 16): 14,
    ("mxfp4", 64): 15,
    ("int4", 16): 14,
    ("int4", 64): 15,
    ("ptpc", 16): 15,
    ("ptpc", 64): 16,
}
"""What was reached, on both architectures: more is a step back."""
WITHOUT_COPIES = ("gfx950",)
"""Where no weight is copied. On gfx942 float8 weights as published are not its own float8."""


@dataclass(frozen=True)
class RoundReport:
    """layer: launches of one MoE layer, in order; program: how many the whole round has.

    The bytes and the problems are those of the deeper program.
    """

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
    """Compiles the round with shape.moe_layers layers and with one more."""
    begin = time.monotonic()
    shallow = compile_few_layers(shape).program
    compiled = compile_few_layers(replace(shape, moe_layers=shape.moe_layers + 1))
    deep, weights = compiled.program, compiled.weights
    fewer, more = launches(shallow.hlo), launches(deep.hlo)
    ours = {launch.name for launch in more if launch.kind == "kernel"}
    problems = [
        problem
        for kernel in (*shallow.kernels, *deep.kernels)
        if any(map(kernel.is_called, ours))
        for problem in kernel_problems(kernel, shape.arch)
    ]
    return RoundReport(
        shape,
        tuple(added(fewer, more)),
        count(more) - count(fewer),
        count(more),
        deep.argument_bytes,
        deep.temporary_bytes,
        (*problems, *logits_problems(deep, weights)),
        (*copy_problems(deep, weights), *temporary_problems(deep, weights)),
        round(time.monotonic() - begin, 1),
    )
