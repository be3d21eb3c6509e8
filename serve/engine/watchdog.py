"""Declares an engine dead when a step hangs, so that a supervisor restarts the process."""

import asyncio
import logging

from serve.engine.thread import EngineThread

logger = logging.getLogger(__name__)

LONGEST_LOOK_S = 1.0


async def watch(engine: EngineThread, timeout_s: float) -> None:
    """Looks several times per `timeout_s`, until a step takes longer or the engine is dead."""
    while engine.state != "dead":
        await asyncio.sleep(min(timeout_s / 4, LONGEST_LOOK_S))
        if engine.step_seconds > timeout_s:
            reason = f"a step took longer than {timeout_s:g} seconds (--watchdog-timeout)"
            logger.error("%s; the engine is at\n%s", reason, engine.stack())
            engine.fail(reason)
