"""Runs requests through an engine to their ends."""

from collections.abc import Iterable

from eagle3_jax.engine import CollectedOutput, Request
from serve.engine.messages import EngineLike


def drive(engine: EngineLike, requests: Iterable[Request]) -> dict[str, CollectedOutput]:
    """The answer of each request id. The engine must be warm.

    Raises ValueError for synthetic acceptance: there is nothing to judge in its answers.
    """
    if engine.stats().synthetic_acceptance_length is not None:
        raise ValueError("synthetic acceptance: the answers are not the model's, nothing to judge")
    answers: dict[str, CollectedOutput] = {}
    for request in requests:
        answers[request.request_id] = CollectedOutput()
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            answers[output.request_id].take(output)
    return answers
