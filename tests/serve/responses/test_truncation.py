"""What `truncation: auto` leaves out, held against trying every cut."""

from typing import Any

import openai
import pytest
from fake_engine import MAX_MODEL_LEN, expected_answer
from fake_server import Served

LIMIT = 8
ROLES = ("user", "assistant", "assistant", "user", "user", "assistant") * 3


def prompt_of(messages: list[dict[str, str]]) -> str:
    """Messages one a line, one character a token."""
    return "\n".join(message["content"] for message in messages)


def longest_that_fits(messages: list[dict[str, str]], head: int) -> str:
    """The prompt without the oldest turns behind the first `head` messages."""
    cuts = [i for i, m in enumerate(messages) if i == head or (i > head and m["role"] == "user")]
    prompts = [prompt_of(messages[:head] + messages[i:]) for i in cuts]
    return next(prompt for prompt in prompts if len(prompt) + LIMIT <= MAX_MODEL_LEN)


@pytest.mark.parametrize("system", [True, False])
def test_as_few_as_possible_of_the_oldest_messages_are_left_out(fake: Served, system: bool) -> None:
    for size in (10, 16, 17, 25, 40, 70, 110):
        messages = [{"role": r, "content": chr(ord("a") + i) * size} for i, r in enumerate(ROLES)]
        if system:
            messages.insert(0, {"role": "system", "content": "s" * 20})
        body: dict[str, Any] = {"input": messages, "max_output_tokens": LIMIT, "seed": 0}
        answer = fake.ask("/v1/responses", **body, truncation="auto")
        prompt = longest_that_fits(messages, int(system))
        assert answer["usage"]["input_tokens"] == len(prompt)
        assert answer["output"][0]["content"][0]["text"] == expected_answer(prompt, 0, LIMIT)
        whole = fake.http.post("/v1/responses", json=body)
        assert (whole.status_code == 200) == (prompt == prompt_of(messages))


def test_one_message_that_is_too_long_is_refused_all_the_same(fake: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="context length"):
        fake.openai.responses.create(model="fake", input="a" * 300, truncation="auto")
