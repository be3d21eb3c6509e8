"""eagle3-serve on the simulated device; it starts slowly and its engine hangs at its first step."""

import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import simulated_server

from eagle3_jax.engine.engine import Engine

START_S = 6.0
warm_up = Engine.warmup


def slowly(engine: Engine, *arguments: Any, **options: Any) -> Any:
    """Warm up after START_S."""
    time.sleep(START_S)
    return warm_up(engine, *arguments, **options)


def main(argv: Sequence[str]) -> int:
    """argv: eagle3-serve's flags."""
    with (
        patch.object(Engine, "warmup", slowly),
        patch.object(Engine, "step", lambda _: time.sleep(3600)),
    ):
        return simulated_server.main(argv)
