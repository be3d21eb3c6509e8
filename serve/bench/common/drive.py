"""Runs requests through an engine to their ends."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from eagle3_jax.engine import Request
from serve.engine.messages import EngineLike


@dataclass
class Answer:
    """What a request got."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None


def drive(engine: EngineLike, requests: Iterable[Request]) -> dict[str, Answer]:
    """The answer of each request id. The engine must be warm.

    Raises ValueError for synthetic acceptance: there is nothing to judge in its answers.
    """
    if engine.stats().synthetic_acceptance_length is not None:
        raise ValueError("synthetic acceptance: the answers are not the model's, nothing to judge")
    answers: dict[str, Answer] = {}
    for request in requests:
        answers[request.request_id] = Answer()
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            answer = answers[output.request_id]
            answer.token_ids.extend(output.token_ids)
            answer.text += output.text
            answer.finish_reason = output.finish_reason
    return answers
