"""Running an engine to the end, with requests that arrive late and requests that are cancelled."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import context_parts

from eagle3_jax.engine import Engine, EngineConfig, Request, RequestOutput

STEPS_OF_A_REQUEST = 100
"""More than one request alone takes with these sizes."""
LATE_MASKS_S = 30.0
"""How long steps that only ask whether a thread's mask has come may go on."""


def sizes(num_speculative_tokens: int, **changes: Any) -> EngineConfig:
    """The sizes most tests share, so that they share programs.

    Pages for less than two full sequences of the four slots: long answers are preempted. page_size:
    of all devices that divide a page (`--context-parts`) together, if it has a token for each.
    """
    shared: dict[str, Any] = {
        "num_speculative_tokens": num_speculative_tokens,
        "max_model_len": 64,
        "max_num_seqs": 4,
        "page_size": 4,
        "num_pages": 28,
        "prefill_chunk": 8,
        "batch_buckets": (4,),
    }
    options = shared | changes
    if (parts := context_parts.PARTS) > 1:
        tokens, pages = options["page_size"], options["num_pages"]
        part = max(1, tokens // parts)
        fewer = pages and pages * tokens // (part * parts)
        options |= {"page_size": part, "num_pages": fewer, "decode_context_parallel_size": parts}
    return EngineConfig(**options)


@dataclass
class Answer:
    """All news of one request, put together."""

    outputs: list[RequestOutput] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def origins(self) -> list[int]:
        return [origin for output in self.outputs for origin in output.origins]

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def accepted(self) -> list[int]:
        return [count for output in self.outputs for count in output.accepted]

    @property
    def finish(self) -> tuple[str | None, int | str | None]:
        return self.outputs[-1].finish_reason, self.outputs[-1].stop_reason


def drive(
    engine: Engine,
    requests: Sequence[Request],
    *,
    arrival_gap: int = 0,
    cancel_at: Mapping[str, int] | None = None,
    before_step: Callable[[int], None] = lambda step: None,
) -> dict[str, Answer]:
    """Step until nothing is left; a request arrives every `arrival_gap` steps (0: all at once).

    cancel_at: the step before which a request is cancelled. before_step: called with the number of
    each step, behind the arrivals and cancels before it.
    """
    pending, cancels = list(requests), dict(cancel_at or {})
    answers = {request.request_id: Answer() for request in requests}
    step, most = 0, 2_000 + STEPS_OF_A_REQUEST * len(requests)
    deadline = time.monotonic() + LATE_MASKS_S
    while pending or engine.has_work:
        while pending and step >= arrival_gap * (len(requests) - len(pending)):
            engine.add(pending.pop(0))
        for request_id in [name for name, when in cancels.items() if when <= step]:
            engine.cancel(request_id)
            del cancels[request_id]
        before_step(step)
        for output in engine.step():
            answer = answers[output.request_id]
            assert not answer.outputs or answer.outputs[-1].finish_reason is None
            answer.outputs.append(output)
        step += 1
        assert step < most or time.monotonic() < deadline, "the engine makes no progress"
    return answers
