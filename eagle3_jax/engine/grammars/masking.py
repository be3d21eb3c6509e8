"""Grammar masks, filled in threads for which the engine's thread waits only briefly.

llguidance mostly needs far less than a millisecond per mask, but some grammars take seconds, and no
call can be interrupted. A sequence whose next mask is late sits rounds out. If the masks after its
drafts are late, the drafts are rejected. Neither changes a token.
"""

import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from eagle3_jax.engine.grammars.interface import Matcher, barred_id
from eagle3_jax.sampling.token_mask import ALL_ALLOWED, open_masks


def fill_nodes(
    matcher: Matcher, masks: np.ndarray, draft_ids: Sequence[int], parents: Sequence[int]
) -> list[int]:
    """Fill masks like `Matcher.fill` for a tree, in which draft i follows node parents[i].

    Node 0 is the last known token, node i + 1 is draft i. Paths agree on their common prefix.
    """
    drafts = list(draft_ids)
    for path in paths_of(parents):
        rows = masks[[0, *path]]
        rows[:] = ALL_ALLOWED
        ids = matcher.fill(rows, [drafts[node - 1] for node in path])
        masks[[0, *path]] = rows
        for node, token in zip(path, ids, strict=True):
            drafts[node - 1] = token
    return drafts


def paths_of(parents: Sequence[int]) -> Iterator[list[int]]:
    """Yield the nodes from below the root to each leaf; nothing for a root alone."""
    for leaf in sorted({*range(len(parents) + 1)} - {*parents}):
        path = [leaf] if leaf else []
        while path and parents[path[-1] - 1]:
            path.append(parents[path[-1] - 1])
        yield path[::-1]


Masks = dict[Matcher, np.ndarray]
"""Mask [words] of each matcher's next token."""
WAIT_S = 0.04
"""Maximum delay by all masks of one step, at most half of it before drafts are proposed."""
MOST_S = 5.0
"""A mask that takes longer fails its request."""


class MaskRequest(NamedTuple):
    """A sequence's drafts and their parent nodes: 0 is the last known token, i + 1 is draft i."""

    matcher: Matcher
    drafts: Sequence[int] = ()
    parents: Sequence[int] = ()


class MaskJob:
    """One fill with masks of its own, the resulting drafts, and the failure if any."""

    def __init__(self, asked: MaskRequest, masks: np.ndarray) -> None:
        self._asked, self.masks, self.drafts = asked, masks, list(asked.drafts)
        self.done = threading.Event()
        self.failure: BaseException | None = None
        self.began: float | None = None
        self.waited_for = False
        self.detached = False

    def run(self) -> None:
        """Fill the masks; keep any error for the thread that submitted the job."""
        try:
            self.drafts = fill_nodes(self._asked.matcher, self.masks, *self._asked[1:])
        except BaseException as error:  # A panic of llguidance is not an Exception.
            self.failure = error


class MaskThreads:
    """A pool of daemon threads. A stuck thread is replaced and ends when it becomes free."""

    def __init__(self, count: int) -> None:
        self._to_start = count
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[MaskJob] = queue.SimpleQueue()

    def submit(self, job: MaskJob) -> None:
        with self._lock:
            while self._to_start:
                self._start()
                self._to_start -= 1
        self._jobs.put(job)

    def detach(self, job: MaskJob) -> None:
        """Replace the thread of a running job, so that other jobs do not wait for it."""
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
            del job  # The loop must not keep this job alive while it waits for the next one.


_THREADS = MaskThreads(min(os.cpu_count() or 1, 8))
"""Shared by all engines of a process, because threads of an engine would outlive it."""


class Masking:
    """Masks of an engine's constrained answers, by matcher."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._next: dict[Matcher, MaskJob] = {}
        self._left = 0.0

    def begin_step(self) -> None:
        """Reset the wait time that the previous step used."""
        self._left = WAIT_S

    def next_masks(self, matchers: Sequence[Matcher]) -> Masks:
        """Return the masks [words] of the next tokens that are ready, each once.

        Ask again for the others; no call waits for them a second time.
        """
        jobs = {m: self._next.get(m) or self._submit(MaskRequest(m)) for m in matchers}
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
        """Return the reasons why masks will never be ready, each once."""
        found: dict[Matcher | None, str] = {}
        for matcher, job in list(self._next.items()):
            if (reason := _failure(job)) is not None:
                found[matcher] = reason
                del self._next[matcher]
        return found

    def fill_after_drafts(
        self, asked: Sequence[MaskRequest], masks: Sequence[np.ndarray]
    ) -> list[list[int]]:
        """Fill masks [nodes, words] after the drafts, given row 0; return drafts as `fill` does."""
        jobs = [self._submit(one) for one in asked]
        self._wait(jobs, self._left)
        return [_take(*each) for each in zip(jobs, masks, asked, strict=True)]

    def wait(self) -> None:
        """Wait for late masks when there is no other work."""
        self._wait(self._next.values(), self._left)

    def discard(self, matcher: Matcher | None) -> None:
        """Drop the mask of an answer that ended or restarts."""
        if matcher is not None:
            self._next.pop(matcher, None)

    def _submit(self, asked: MaskRequest) -> MaskJob:
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


def _take(job: MaskJob, masks: np.ndarray, asked: MaskRequest) -> list[int]:
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
