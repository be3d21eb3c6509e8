"""eagle3-serve with few programs, so that it is ready soon; the others are compiled when they first
run."""

from collections.abc import Sequence
from unittest.mock import patch

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.program import PAGE_COPIES, Program, ProgramKind
from serve import cli


def few_programs(config: EngineConfig, **_: object) -> list[Program]:
    """A prefill, a round of the only size, and the copies of pages where there is host memory."""
    copies = PAGE_COPIES if config.kv_offloading_bytes else ()
    full = (ProgramKind.FULL_PREFILL, ProgramKind.FULL_ROUND)
    prefill, round = full if config.exact else (ProgramKind.PREFILL, ProgramKind.ROUND)
    return [Program(prefill), Program(round, config.max_num_seqs), *map(Program, copies)]


def main(argv: Sequence[str]) -> int:
    """argv: eagle3-serve's flags."""
    with (
        patch("eagle3_jax.engine.programs.executor.all_programs", few_programs),
        patch.object(EngineConfig, "buckets", property(lambda self: (self.max_num_seqs,))),
    ):
        return cli.main(argv)
