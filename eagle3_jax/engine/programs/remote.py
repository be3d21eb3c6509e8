"""Stand-in for an executor if all devices belong to other processes; requests outputs on demand."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.programs.executor import Progress
from eagle3_jax.engine.programs.inputs import input_shapes
from eagle3_jax.engine.programs.messages import (
    Peers,
    ProgramCall,
    QueryKind,
    from_bytes,
    output_query,
    pages_query,
)
from eagle3_jax.engine.programs.program import PAGE_COPIES, Program, ProgramKind, all_programs
from eagle3_jax.sampling.logprobs import Logprobs, TokenLogprobs
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.tree import Tree

SendQuery = Callable[[bytes], Callable[[], bytes]]
"""Sends a question after earlier calls; the returned function waits for the answer."""
MOST_OUTPUTS = 9
"""A report, and log-probabilities of sampled tokens and of a prompt's tokens."""
WITHOUT_LOGPROBS = (
    ProgramKind.PREFILL,
    ProgramKind.ARGMAX_PREFILL,
    ProgramKind.ROUND,
    ProgramKind.ARGMAX_ROUND,
)


class EngineInfo(NamedTuple):
    """Facts of the engine that the processes with devices have built.

    `num_pages` may follow from their memory. `kernels` is the implementation of the head's
    operations there, which determines `programs`, listed by name. `page_bytes` is 0 without host
    memory.
    """

    num_pages: int | None
    kernels: str
    page_bytes: int
    programs: tuple[str, ...]

    def configure(self, config: EngineConfig) -> EngineConfig:
        """Return that engine's configuration, given the configuration it was built from."""
        return replace(config, num_pages=self.num_pages, kernels=self.kernels)


@runtime_checkable
class Devices(Peers, Protocol):
    """The processes that hold the whole mesh of this process's engine.

    `info` is their result; the first of them answers `ask`.
    """

    info: EngineInfo

    def ask(self, question: bytes) -> Callable[[], bytes]: ...


class RemoteExecutor:
    """`Executor` without devices or weights; disk tiers and transfers, which need them, are off."""

    def __init__(
        self,
        config: EngineConfig,
        vocab_size: int,
        devices: Devices,
        *,
        has_draft: bool,
        has_grammars: bool,
        images: ImageLayout | None,
    ):
        """Raise ValueError if the other processes have built another engine."""
        sizes = images.sizes if images else ()
        parts: Any = {"has_draft": has_draft, "has_grammars": has_grammars, "image_sizes": sizes}
        self.programs = all_programs(config, **parts)
        if (ours := tuple(map(str, self.programs))) != devices.info.programs:
            differing = sorted({*ours} ^ {*devices.info.programs})
            raise ValueError(
                f"the processes with devices compiled other programs: {', '.join(differing)}; "
                "start all processes with the same flags"
            )
        self.input_shapes = partial(input_shapes, config, vocab_size, images)
        self._makes_trees = config.method.tree is not None
        self._looks_up = config.method.lookup is not None
        self._ask = devices.ask
        self.pages = RemotePageStore(devices)

    def compile(self, progress: Progress | None = None) -> None:
        """Do nothing: the other processes compile."""

    def run(self, call: ProgramCall) -> tuple[Any, ...]:
        """Return promises for the outputs of a call that has been sent."""
        program = call.program
        if program.kind in (*PAGE_COPIES, ProgramKind.ENCODE, ProgramKind.HISTORY):
            return ()
        outputs: list[Any] = [RemoteArray(self._ask, place) for place in range(MOST_OUTPUTS)]
        if program.kind is ProgramKind.PROPOSE:
            looked_up = outputs[1] if self._looks_up else None
            chain = Drafts(outputs[0], None, looked_up)
            return (Tree(*outputs[:2]) if self._makes_trees else chain,)
        return outputs[0], _logprobs(program, outputs[1:])


class RemotePageStore:
    """Host memory for pages beside the remote devices."""

    def __init__(self, devices: Devices):
        self._ask, self.page_bytes = devices.ask, devices.info.page_bytes

    def are_saved(self, slots: np.ndarray) -> bool:
        return self._ask(pages_query(QueryKind.SAVED_PAGES, slots))() == b"\x01"

    def are_staged(self, slots: np.ndarray) -> bool:
        return self._ask(pages_query(QueryKind.STAGED_PAGES, slots))() == b"\x01"


class RemoteProfiler:
    """JAX's profiler in the first of those processes; raises RuntimeError on failure."""

    def __init__(self, ask: SendQuery):
        self._ask = ask

    def start_trace(self, log_dir: str) -> None:
        """Trace into a directory on that process's host."""
        self._do(QueryKind.START_TRACE, log_dir)

    def stop_trace(self) -> None:
        self._do(QueryKind.STOP_TRACE)

    def _do(self, about: QueryKind, directory: str = "") -> None:
        if problem := self._ask(bytes((about,)) + directory.encode())():
            raise RuntimeError(problem.decode())


class RemoteArray:
    """An output of the last call, requested before the next call or never."""

    def __init__(self, ask: SendQuery, place: int):
        self._ask, self._place = ask, place
        self._answer: Callable[[], bytes] | None = None

    def copy_to_host_async(self) -> None:
        """Request the output; jax.device_get calls this again."""
        if self._answer is None:
            self._answer = self._ask(output_query(self._place))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        assert self._answer is not None, "an output is asked for when its program is dispatched"
        return np.asarray(from_bytes(self._answer()), dtype)


def _logprobs(program: Program, leaves: list[Any]) -> Logprobs | None:
    """Group leaves in the order of the program's outputs."""
    if program.kind in WITHOUT_LOGPROBS:
        return None
    scores_prompt = program.kind is ProgramKind.SCORING_PREFILL
    prompt = TokenLogprobs(*leaves[4:]) if scores_prompt else None
    return Logprobs(TokenLogprobs(*leaves[:4]), prompt)
