"""What stands for an executor where all devices belong to other processes: it sends no programs,
those follow the calls, and its outputs are asked for when somebody means to read them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.programs.executor import Progress
from eagle3_jax.engine.programs.inputs import InputShapes
from eagle3_jax.engine.programs.processes.call import Peers, ProgramCall
from eagle3_jax.engine.programs.processes.questions import (
    About,
    about_output,
    about_pages,
    from_bytes,
)
from eagle3_jax.engine.programs.program import PAGE_COPIES, Program, ProgramKind, all_programs
from eagle3_jax.sampling.logprobs import Logprobs, TokenLogprobs
from eagle3_jax.speculative.drafts import Drafts
from eagle3_jax.speculative.tree.nodes import Tree

Ask = Callable[[bytes], Callable[[], bytes]]
"""Sends a question behind the calls before it; what it returns waits for the answer."""
MOST_OUTPUTS = 9
"""A report, and log-probabilities of sampled tokens and of a prompt's."""
WITHOUT_LOGPROBS = (
    ProgramKind.PREFILL,
    ProgramKind.ARGMAX_PREFILL,
    ProgramKind.ROUND,
    ProgramKind.ARGMAX_ROUND,
)


class Built(NamedTuple):
    """What a process without devices has to know of the engine that those with some have built.

    num_pages: of its configuration, which their memory may decide. kernels: how the head's
    operations are computed there, which decides what programs there are. page_bytes: of a page in
    the host's memory, 0 where there is none. programs: by name.
    """

    num_pages: int | None
    kernels: str
    page_bytes: int
    programs: tuple[str, ...]

    def configure(self, config: EngineConfig) -> EngineConfig:
        """That engine's configuration, from the one that it was built from."""
        return replace(config, num_pages=self.num_pages, kernels=self.kernels)


@runtime_checkable
class Devices(Peers, Protocol):
    """The processes of an engine where this one holds no part of its mesh.

    built: by them. ask: the first of them answers.
    """

    built: Built

    def ask(self, question: bytes) -> Callable[[], bytes]: ...


class RemoteExecutor:
    """As `Executor`, for a runner whose peers hold all. programs, input_shapes: theirs, too. Nobody
    asks it for weights: neither a directory of pages nor a transfer goes with several processes."""

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
        """ValueError where the others have built another engine than this one asks."""
        sizes = images.sizes if images else ()
        parts: Any = {"has_draft": has_draft, "has_grammars": has_grammars, "image_sizes": sizes}
        self.programs = all_programs(config, **parts)
        if (ours := tuple(map(str, self.programs))) != devices.built.programs:
            differing = sorted({*ours} ^ {*devices.built.programs})
            raise ValueError(
                f"the processes with devices have other programs: {', '.join(differing)}"
            )
        self.input_shapes = InputShapes(config, vocab_size, images).of
        self._makes_trees = config.method.tree is not None
        self._ask = devices.ask
        self.pages = RemotePages(devices)

    def compile(self, progress: Progress | None = None) -> None:
        """The others do."""

    def run(self, call: ProgramCall) -> tuple[Any, ...]:
        """What the call, which has been sent, will put out."""
        program = call.program
        if program.kind in (*PAGE_COPIES, ProgramKind.ENCODE):
            return ()
        outputs: list[Any] = [RemoteArray(self._ask, place) for place in range(MOST_OUTPUTS)]
        if program.kind is ProgramKind.PROPOSE:
            return (Tree(*outputs[:2]) if self._makes_trees else Drafts(outputs[0]),)
        return outputs[0], _logprobs(program, outputs[1:])


class RemotePages:
    """The host's memory for pages beside those devices."""

    def __init__(self, devices: Devices):
        self._ask, self.page_bytes = devices.ask, devices.built.page_bytes

    def are_saved(self, slots: np.ndarray) -> bool:
        """Whether these slots hold their pages."""
        return self._ask(about_pages(About.SAVED_PAGES, slots))() == b"\x01"

    def are_staged(self, slots: np.ndarray) -> bool:
        """Whether these slots have reached the devices."""
        return self._ask(about_pages(About.STAGED_PAGES, slots))() == b"\x01"


class RemoteProfiler:
    """JAX's profiler in the first of those processes. RuntimeError says why it can't."""

    def __init__(self, ask: Ask):
        self._ask = ask

    def start_trace(self, log_dir: str) -> None:
        """A directory of that process's host."""
        self._do(About.START_TRACE, log_dir)

    def stop_trace(self) -> None:
        """Writes it there."""
        self._do(About.STOP_TRACE)

    def _do(self, about: About, directory: str = "") -> None:
        if problem := self._ask(bytes((about,)) + directory.encode())():
            raise RuntimeError(problem.decode())


class RemoteArray:
    """An output of the last call: asked for before the next one, or never."""

    def __init__(self, ask: Ask, place: int):
        self._ask, self._place = ask, place
        self._answer: Callable[[], bytes] | None = None

    def copy_to_host_async(self) -> None:
        """Asks for it, as JAX's arrays begin to be copied; jax.device_get calls it once more."""
        if self._answer is None:
            self._answer = self._ask(about_output(self._place))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        assert self._answer is not None, "an output is asked for when its program is dispatched"
        return np.asarray(from_bytes(self._answer()), dtype)


def _logprobs(program: Program, leaves: list[Any]) -> Logprobs | None:
    """In the order of the program's outputs."""
    if program.kind in WITHOUT_LOGPROBS:
        return None
    scores_prompt = program.kind is ProgramKind.SCORING_PREFILL
    prompt = TokenLogprobs(*leaves[4:]) if scores_prompt else None
    return Logprobs(TokenLogprobs(*leaves[:4]), prompt)
