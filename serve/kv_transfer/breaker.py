"""Decide when to retry a producer that failed."""

import threading

from serve.kv_transfer.wire import Clock

MOST_PULLS = 16
"""Concurrent pulls from one producer. Further requests prefill here; none is queued."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0


class Breaker:
    """Circuit breaker for pulls from one producer; thread-safe.

    After a failed pull none may begin during a pause, which doubles with each failure. After the
    pause one pull at a time may begin until one succeeds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._under_way = self._failures = 0
        self._paused_until = -float("inf")

    def enter(self) -> bool:
        """Begin a pull, which must call `leave`; return False if none may begin now."""
        with self._lock:
            most = 1 if self._failures else MOST_PULLS
            if self._under_way >= most or self._clock() < self._paused_until:
                return False
            self._under_way += 1
            return True

    def leave(self, *, failed: bool) -> None:
        """End a pull. Failures during the pause, of pulls begun before it, count as one."""
        with self._lock:
            self._under_way -= 1
            now = self._clock()
            if not failed:
                self._failures, self._paused_until = 0, now
            elif now >= self._paused_until:
                pause = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
                self._failures, self._paused_until = self._failures + 1, now + pause
