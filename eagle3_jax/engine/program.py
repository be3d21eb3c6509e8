"""The names of the compiled programs, and which of them an engine has."""

from itertools import product
from typing import Literal, NamedTuple

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.speculative.head_choice import chooses_in_kernel
from eagle3_jax.speculative.widths import Widths
from pallas_kernels.dispatch import prefer


class Program(NamedTuple):
    """A compiled program's name: the batch of a round, None for a prefill; lean or full.

    half: which half of a round it is, None for whole rounds. widths: of a whole round where the
    engine chooses k. scores_prompt: a full prefill that gives logprobs of the prompt, too.
    argmax: in place of a lean one where nobody's options need written logits.
    """

    batch: int | None
    full: bool
    half: Literal["propose", "verify"] | None = None
    widths: Widths | None = None
    scores_prompt: bool = False
    argmax: bool = False

    @property
    def kind(self) -> str:
        """Which one of `programs.PROGRAMS` it is; a full prefill is one by its inputs."""
        if self.half is not None:
            return self.half
        if self.argmax:
            return "argmax prefill" if self.batch is None else "argmax round"
        if self.batch is None:
            return "scoring prefill" if self.scores_prompt else "prefill"
        return "full round" if self.full else "round"

    def __str__(self) -> str:
        name = f"full {self.kind}" if self.full and self.kind == "prefill" else self.kind
        name = name if self.batch is None else f"{name} of {self.batch}"
        if self.widths is None:
            return name
        return f"{name}, k = {self.widths.drafts}, {self.widths.first_rows} rows before"


def has_argmax(config: EngineConfig) -> bool:
    """Whether the engine has programs that choose tokens in the head's kernel."""
    with prefer(config.kernels):
        return chooses_in_kernel() and not (config.exact or config.method.needs_logits)


def all_programs(config: EngineConfig, *, has_draft: bool, has_grammars: bool) -> list[Program]:
    """Every program the engine will ever run; exact mode has one way to compute a row."""
    sizes = list(product(config.buckets, config.round_widths))
    programs = [Program(None, False), Program(None, True), Program(None, True, scores_prompt=True)]
    for full in (True,) if config.exact else (False, True):
        programs += [Program(size, full, widths=widths) for size, widths in sizes]
    if has_argmax(config):
        programs.append(Program(None, False, argmax=True))
        programs += [Program(size, False, widths=widths, argmax=True) for size, widths in sizes]
    if has_grammars:
        halves = ("propose", "verify") if has_draft else ("verify",)
        programs += [Program(size, True, half) for half in halves for size in config.split_buckets]
    return programs
