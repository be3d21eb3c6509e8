"""One process of eagle3-serve with two programs, so that it starts soon; flags: eagle3-serve's."""

import sys
from unittest.mock import patch

from eagle3_jax.engine.programs.program import Program, ProgramKind
from serve.cli import main

BATCH = 2
PROGRAMS = [Program(ProgramKind.PREFILL), Program(ProgramKind.ROUND, BATCH)]

if __name__ == "__main__":
    with (
        patch("eagle3_jax.engine.programs.executor.all_programs", lambda *_, **__: PROGRAMS),
        patch("eagle3_jax.engine.config.EngineConfig.buckets", (BATCH,)),
    ):
        sys.exit(main())
