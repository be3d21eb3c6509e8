"""POST /v1/messages and its counting of tokens, with Anthropic's own client as the judge."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from fake_engine import MAX_MODEL_LEN, expected_answer
from fake_server import Served

HELLO: Any = [{"role": "user", "content": "hello"}]
SEED = {"seed": 3}


@pytest.fixture
def client(fake: Served) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client of the shared server."""
    url = str(fake.http.base_url)
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_the_answer_is_the_engines(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="fake", messages=HELLO, max_tokens=7, extra_body=SEED)
    assert (message.type, message.role, message.model) == ("message", "assistant", "fake")
    assert [block.to_dict() for block in message.content] == [
        {"type": "text", "text": expected_answer("hello", 3, 7)}
    ]
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 7)
