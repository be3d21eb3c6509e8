"""Masks of grammars, filled in threads that the engine's own waits for only so long.

What llguidance needs for one mask is mostly far below a millisecond, but a grammar can be made that
takes seconds, and no call of it can be interrupted. So a sequence whose mask isn't there in time
sits rounds out until it is; one whose masks behind its drafts aren't there has its drafts rejected.
Neither changes a token.
"""

import os
import queue
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from eagle3_jax.engine.grammars.interface import Matcher, barred_id
from eagle3_jax.engine.grammars.nodes import fill_nodes
from eagle3_jax.sampling.token_mask import open_masks

Masks = dict[Matcher, np.ndarray]
"""The mask [words] of each matcher's next token."""
WAIT_S = 0.04
"""What all masks of one step may keep others waiting, half of it before the drafts are made."""
MOST_S = 5.0
"""A mask that takes longer ends its request."""


class Asked(NamedTuple):
    """A sequence's drafts, and the node behind which each comes: 0 is the last token known, i + 1
    the draft i."""

    matcher: Matcher
    drafts: Sequence[int] = ()
    parents: Sequence[int] = ()


class MaskJob:
    """One fill: masks of its own, the drafts that belong to them, and how it went."""

    def __init__(self, asked: Asked, masks: np.ndarray) -> None:
        self._asked, self.masks, self.drafts = asked, masks, list(asked.drafts)
        self.done = threading.Event()
        self.failure: BaseException | None = None
        self.began: float | None = None
        self.waited_for = False
        self.detached = False

    def run(self) -> None:
        """Fills; whatever goes wrong is kept for who asked."""
        try:
            self.drafts = fill_nodes(self._asked.matcher, self.masks, *self._asked[1:])
        except BaseException as error:  # A panic of llguidance is no Exception.
            self.failure = error


class MaskThreads:
    """Some daemon threads; one that is stuck is replaced, and ends when it comes free."""

    def __init__(self, count: int) -> None:
        self._to_start = count
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[MaskJob] = queue.SimpleQueue()

    def submit(self, job: MaskJob) -> None:
        """Runs it when a thread is free."""
        with self._lock:
            while self._to_start:
                self._start()
                self._to_start -= 1
        self._jobs.put(job)

    def detach(self, job: MaskJob) -> None:
        """Others no longer wait for the thread of a job that has begun."""
        with self._lock:
            if not (job.began is None or job.detached or job.done.is_set()):
                job.detached = True
                self._start()

    def _start(self) -> None:
        threading.Thread(target=self._serve, name="masks", daemon=True).start()

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            job.began = time.monotonic()
            job.run()
            with self._lock:
                job.done.set()
            if job.detached:
                return
            del job  # What waits for the next job must not hold on to this one.


_THREADS = MaskThreads(min(os.cpu_count() or 1, 8))
"""Of all engines of a process: threads of its own would outlive an engine."""


class Masking:
    """The masks of an engine's constrained answers, by their matchers."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._next: dict[Matcher, MaskJob] = {}
        self._left = 0.0

    def begin_step(self) -> None:
        """Waits of the engine's last step count no longer."""
        self._left = WAIT_S

    def next_masks(self, matchers: Sequence[Matcher]) -> Masks:
        """The masks [words] of their next tokens, as far as they are ready; each is given once.
        The others are to be asked for again, and nobody waits for them a second time."""
        jobs = {m: self._next.get(m) or self._submit(Asked(m)) for m in matchers}
        self._next |= jobs
        fresh = [job for job in jobs.values() if not job.waited_for]
        self._wait(fresh, self._left - WAIT_S / 2)
        ready = {
            m: job.masks[0] for m, job in jobs.items() if job.done.is_set() and not job.failure
        }
        for matcher in ready:
            del self._next[matcher]
        return ready

    def failures(self) -> dict[Matcher | None, str]:
        """Why some of those that were asked for will never be ready; each is said once."""
        found: dict[Matcher | None, str] = {}
        for matcher, job in list(self._next.items()):
            if (reason := _failure(job)) is not None:
                found[matcher] = reason
                del self._next[matcher]
        return found

    def behind_drafts(self, asked: Sequence[Asked], masks: Sequence[np.ndarray]) -> list[list[int]]:
        """Fills masks [nodes, words] of each, of which the first is there, with what may come
        behind the drafts, and says what these become (see Matcher.fill)."""
        jobs = [self._submit(one) for one in asked]
        self._wait(jobs, self._left)
        return [_take(*each) for each in zip(jobs, masks, asked, strict=True)]

    def wait(self) -> None:
        """Waits for masks that were late, where there is nothing else to do."""
        self._wait(self._next.values(), self._left)

    def forget(self, matcher: Matcher | None) -> None:
        """Its answer has ended, or begins again."""
        if matcher is not None:
            self._next.pop(matcher, None)

    def _submit(self, asked: Asked) -> MaskJob:
        job = MaskJob(asked, open_masks(self._vocab_size, 1 + len(asked.drafts)))
        _THREADS.submit(job)
        return job

    def _wait(self, jobs: Iterable[MaskJob], seconds: float) -> None:
        began = time.monotonic()
        for job in jobs:
            job.waited_for = True
            job.done.wait(max(began + seconds - time.monotonic(), 0))
            _THREADS.detach(job)
        self._left -= time.monotonic() - began


def _take(job: MaskJob, masks: np.ndarray, asked: Asked) -> list[int]:
    if job.done.is_set() and job.failure is None:
        masks[:] = job.masks
        return job.drafts
    masks[1:] = 0
    barred = barred_id(masks[0])
    if barred is None:
        return list(asked.drafts)
    pairs = zip(asked.drafts, asked.parents, strict=True)
    return [draft if parent else barred for draft, parent in pairs]


def _failure(job: MaskJob) -> str | None:
    if job.failure is not None:
        return str(job.failure) or type(job.failure).__name__
    if job.done.is_set():  # However late: a step that compiles takes longer than MOST_S.
        return None
    if job.began is not None and time.monotonic() - job.began > MOST_S:
        return f"the masks of its next token take more than {MOST_S:g} s"
    return None
