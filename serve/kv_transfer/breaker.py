"""Decides when a producer that failed is asked again."""

import threading

from serve.kv_transfer.wire import Clock

MOST_PULLS = 16
"""Pulls from one producer at a time. Further requests run their prompts here; none queues."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0


class Breaker:
    """A circuit breaker for the pulls from one producer; any thread may call it.

    After a failed pull no pull begins for a pause, which doubles with each failure. After the pause
    one pull at a time may begin, until one succeeds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._under_way = self._failures = 0
        self._paused_until = -float("inf")

    def enter(self) -> bool:
        """Begins a pull, which must `leave`. False: none may begin now."""
        with self._lock:
            most = 1 if self._failures else MOST_PULLS
            if self._under_way >= most or self._clock() < self._paused_until:
                return False
            self._under_way += 1
            return True

    def leave(self, *, failed: bool) -> None:
        """Ends a pull. Pulls that fail during the pause, begun before it, count as one failure."""
        with self._lock:
            self._under_way -= 1
            now = self._clock()
            if not failed:
                self._failures, self._paused_until = 0, now
            elif now >= self._paused_until:
                pause = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
                self._failures, self._paused_until = self._failures + 1, now + pause
