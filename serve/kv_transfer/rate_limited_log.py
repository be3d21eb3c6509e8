"""Limit the rate of warnings that a peer can cause."""

import logging

from serve.kv_transfer.wire import Clock

LOG_S = 10.0


class RateLimitedLog:
    """A log of one warning per LOG_S seconds, with the number of suppressed warnings."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger, self._clock = logger, clock
        self._next, self._left_out = -float("inf"), 0

    def warn(self, text: str, *arguments: object) -> None:
        """Log the warning, or count it."""
        if (now := self._clock()) < self._next:
            self._left_out += 1
            return
        more = f" ({self._left_out} warnings before it were left out)" if self._left_out else ""
        self._next, self._left_out = now + LOG_S, 0
        self._logger.warning(text + more, *arguments)
