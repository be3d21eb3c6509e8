"""Answers beside the plain ones, under the tie rule of docs/architecture.md."""

from collections.abc import Callable, Mapping, Sequence

from driving import Answer, sizes
from jax import Array
from traffic import Run

from eagle3_jax.engine import Request
from eagle3_tools.bench.equality.ties import Scorer, describe

EOS, LONGEST = (5, 40), 64
ALONE = sizes(0, max_num_seqs=1, num_pages=None, batch_buckets=(1,))
"""Plain decoding of one sequence at a time."""


def differences(
    requests: Sequence[Request],
    run: Run,
    expected: Mapping[str, Answer],
    scorer: Scorer,
    features: Callable[[Request], Sequence[Array]],
) -> list[str]:
    """A line for each answer that differs by a tie; other differences fail at once. Of a cancelled
    request, as far as it came."""
    lines: list[str] = []
    for request in requests:
        name = request.request_id
        found, plain = run.answers[name], expected[name]
        ours, theirs = found.token_ids, plain.token_ids
        if name in run.cancelled:
            shared = min(len(ours), len(theirs))
            ours, theirs = ours[:shared], theirs[:shared]
        elif ours == theirs:
            assert (found.text, found.finish) == (plain.text, plain.finish), name
        shown = () if ours == theirs else features(request)
        tie = scorer.explain(name, request.prompt_ids, request.sampling, ours, theirs, shown)
        if tie:
            assert tie.cause, f"{describe(tie)}; {request}"
            lines.append(describe(tie))
    return lines
