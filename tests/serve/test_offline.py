"""What eagle3-generate --json prints."""

import json

from eagle3_jax.engine import RequestOutput
from serve.offline import Generated


def output(tokens: tuple[int, ...], accepted: tuple[int, ...], last: bool) -> RequestOutput:
    finish = "stop" if last else None
    return RequestOutput("0", tokens, "x" * len(tokens), finish, None, accepted, 3, 5)


def test_json_line_adds_up_over_the_outputs() -> None:
    generated = Generated()
    generated.take(output((1,), (), False))
    generated.take(output((2, 3, 4), (2,), False))
    generated.take(output((5,), (1, 0), True))
    assert json.loads(generated.as_json()) == {
        "token_ids": [1, 2, 3, 4, 5],
        "text": "xxxxx",
        "finish_reason": "stop",
        "rounds": 3,
        "accepted": [2, 1, 0],
        "accept_length": 2.0,
        "seed": 5,
    }


def test_answer_of_the_prefill_alone_has_no_accept_length() -> None:
    generated = Generated()
    generated.take(output((1,), (), True))
    assert json.loads(generated.as_json())["accept_length"] is None
