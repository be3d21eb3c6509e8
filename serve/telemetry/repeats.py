"""Limits the log to one of like warnings a second, so that no client can fill a disk with them."""

import logging
import time
from collections.abc import Callable

PERIOD_S = 1.0
MOST = 1000
"""Different warnings that are remembered."""
Key = tuple[object, ...]


class OncePerSecond(logging.Filter):
    """Lets one of like warnings and errors through a second; the next one says how many it stands
    for. Alike are those of one logger with one first line, raised in one place."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._written: dict[Key, tuple[float, int]] = {}
        """When, and how many like it were left out since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        if record.levelno < logging.WARNING:
            return True
        key, now = _key(record), self._clock()
        written, left_out = self._written.pop(key, (float("-inf"), 0))
        if now - written < PERIOD_S:
            self._written[key] = (written, left_out + 1)
            return False
        if len(self._written) >= MOST:
            self._written.pop(next(iter(self._written)), None)
        self._written[key] = (now, 0)
        if left_out:
            record.fields = {**getattr(record, "fields", {}), "left_out": left_out}
        return True


def _key(record: logging.LogRecord) -> Key:
    raised = record.exc_info[2] if record.exc_info else None
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    where = (raised.tb_frame.f_code, raised.tb_lineno) if raised else ()
    return (record.name, str(record.msg).partition("\n")[0], *where)
