"""Run requests through an engine until they finish."""

from collections.abc import Iterable

from eagle3_jax.engine import CollectedOutput, Request
from serve.engine.messages import EngineLike


def drive(engine: EngineLike, requests: Iterable[Request]) -> dict[str, CollectedOutput]:
    """Return the output of each request by id. The engine must be warm.

    Raises ValueError for an engine with synthetic acceptance, whose answers cannot be judged.
    """
    if engine.stats().synthetic_acceptance_length is not None:
        raise ValueError("synthetic acceptance: the answers are not the model's, nothing to judge")
    answers: dict[str, CollectedOutput] = {}
    for request in requests:
        answers[request.request_id] = CollectedOutput()
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            answers[output.request_id].add(output)
    return answers
