"""Names of compiled programs, and the programs that an engine has."""

from collections.abc import Sequence
from enum import StrEnum
from itertools import product
from typing import NamedTuple

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.speculative.head_choice import chooses_in_kernel
from eagle3_jax.speculative.method import Widths
from pallas_kernels.dispatch import prefer


class ProgramKind(StrEnum):
    """Kinds of programs. Lean, full and argmax: see eagle3_jax.speculative.method.

    A scoring prefill is a full one with prompt logprobs. Propose and verify are the halves of a
    full round. Encoding makes image features. A token history is written for lookup. The last three
    move pages between cache and host memory: staging, which has no program, brings them to the
    devices for loading.
    """

    HISTORY = "token history"
    PREFILL = "prefill"
    FULL_PREFILL = "full prefill"
    ARGMAX_PREFILL = "argmax prefill"
    SCORING_PREFILL = "scoring prefill"
    ROUND = "round"
    FULL_ROUND = "full round"
    ARGMAX_ROUND = "argmax round"
    PROPOSE = "propose"
    VERIFY = "verify"
    ENCODE = "encoding"
    SAVE_PAGES = "page saving"
    STAGE_PAGES = "page staging"
    LOAD_PAGES = "page loading"


PAGE_COPIES = (ProgramKind.SAVE_PAGES, ProgramKind.STAGE_PAGES, ProgramKind.LOAD_PAGES)


class Program(NamedTuple):
    """Name of a compiled program.

    `batch` is the number of sequences of a round, or of patches that a device encodes; None for
    other programs. `widths` are those of a round if the engine chooses k or looks up drafts.
    """

    kind: ProgramKind
    batch: int | None = None
    widths: Widths | None = None

    @property
    def is_round(self) -> bool:
        """True if it takes slots and a page table, as rounds and their halves do."""
        return self.batch is not None and self.kind is not ProgramKind.ENCODE

    @property
    def takes_controls(self) -> bool:
        """True if it is a prefill whose chunk has logit controls and a mask."""
        return self.kind in (ProgramKind.FULL_PREFILL, ProgramKind.SCORING_PREFILL)

    def __str__(self) -> str:
        name = f"{self.kind}" if self.batch is None else f"{self.kind} of {self.batch}"
        if self.widths is None:
            return name
        name = f"{name}, k = {self.widths.drafts}, {self.widths.first_rows} rows before"
        return f"{name}, {self.widths.lookup} looked up" if self.widths.lookup else name


def has_argmax(config: EngineConfig) -> bool:
    """Return whether the engine has programs that choose tokens in the head's kernel."""
    with prefer(config.kernels, config.xla_kernels):
        return chooses_in_kernel() and not (config.exact or config.method.needs_logits)


def all_programs(
    config: EngineConfig, *, has_draft: bool, has_grammars: bool, image_sizes: Sequence[int] = ()
) -> list[Program]:
    """List every program that the engine may run; exact mode has one way to compute a row.

    `image_sizes` are the array sizes, in patches, that images are packed into.
    """
    prefills = [ProgramKind.PREFILL, ProgramKind.FULL_PREFILL, ProgramKind.SCORING_PREFILL]
    rounds = [] if config.exact else [ProgramKind.ROUND]
    rounds.append(ProgramKind.FULL_ROUND)
    if has_argmax(config):
        prefills.append(ProgramKind.ARGMAX_PREFILL)
        rounds.append(ProgramKind.ARGMAX_ROUND)
    looks_up = config.method.lookup is not None
    halves = [ProgramKind.PROPOSE] * (has_draft or looks_up) + [ProgramKind.VERIFY]
    return [
        *map(Program, prefills),
        *(Program(*of) for of in product(rounds, config.buckets, config.round_widths)),
        *(
            Program(*of, config.split_widths)
            for of in product(halves if has_grammars else (), config.split_buckets)
        ),
        *map(Program, [ProgramKind.HISTORY] * looks_up),
        *(Program(ProgramKind.ENCODE, size) for size in image_sizes),
        *map(Program, PAGE_COPIES if config.kv_offloading_bytes else ()),
    ]
