"""What eagle3-generate --json prints."""

import json

from fake_engine import CharTokenizer

from eagle3_jax.engine import RequestOutput, Round
from serve.generate.offline import Generated


def output(tokens: tuple[int, ...], last: bool, *rounds: Round) -> RequestOutput:
    finish = "stop" if last else None
    return RequestOutput("0", tokens, "x" * len(tokens), finish, None, rounds, 3, 5)


def printed(*outputs: RequestOutput) -> dict[str, object]:
    generated = Generated()
    for one in outputs:
        generated.take(one)
    return json.loads(generated.as_json(CharTokenizer(), {}))


def test_json_line_adds_up_over_the_outputs() -> None:
    """The second round has no room for drafts, the last ends with its first token."""
    assert printed(
        output((1,), False),
        output((2, 3, 4), False, Round(3, 3, 3, 2, 3)),
        output((5, 6), True, Round(3, 3, 0, 0, 1), Round(3, 3, 3, 1, 1)),
    ) == {
        "token_ids": [1, 2, 3, 4, 5, 6],
        "text": "xxxxxx",
        "finish_reason": "stop",
        "rounds": 3,
        "accepted": [2, 0, 1],
        "verified": [3, 0, 3],
        "kept": [3, 1, 1],
        "accept_length": 2.5,
        "accept_length_eos_corrected": 2.0,
        "seed": 5,
    }


def test_answer_of_the_prefill_alone_has_no_accept_length() -> None:
    assert printed(output((1,), True))["accept_length"] is None


def test_plain_rounds_commit_one_token_each() -> None:
    plain = printed(output((1,), False), output((2,), True, Round(0, 0, 0, 0, 1)))
    assert plain["accept_length"] == plain["accept_length_eos_corrected"] == 1
