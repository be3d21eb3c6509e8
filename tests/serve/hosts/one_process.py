"""One process of eagle3-serve with few programs, so that it starts soon; flags: eagle3-serve's."""

import sys
from unittest.mock import patch

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.program import PAGE_COPIES, Program, ProgramKind
from serve.cli import main

BATCH = 2
PROGRAMS = [Program(ProgramKind.PREFILL), Program(ProgramKind.ROUND, BATCH)]


def few_programs(config: EngineConfig, **_: bool) -> list[Program]:
    """Those, and the copies of pages where there is host memory."""
    return [*PROGRAMS, *map(Program, PAGE_COPIES if config.kv_offloading_bytes else ())]


if __name__ == "__main__":
    with (
        patch("eagle3_jax.engine.programs.executor.all_programs", few_programs),
        patch("eagle3_jax.engine.config.EngineConfig.buckets", (BATCH,)),
    ):
        sys.exit(main())
