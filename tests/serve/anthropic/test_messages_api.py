"""POST /v1/messages and its counting of tokens, with Anthropic's own client as the judge."""

from collections.abc import Callable
from typing import Any

import anthropic
from anthropic.types import Message
from fake_engine import MAX_MODEL_LEN, FakeEngine, expected_answer
from fake_server import Served

HELLO: Any = [{"role": "user", "content": "hello"}]
ASKED: dict[str, Any] = {"model": "fake", "messages": HELLO, "max_tokens": 7}
SEED = {"seed": 3}


def text_of(message: Message) -> str:
    """The text of an answer that is nothing else."""
    (block,) = message.content
    assert block.type == "text"
    return block.text


def test_the_answer_is_the_engines(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASKED, extra_body=SEED)
    assert (message.type, message.role, message.model) == ("message", "assistant", "fake")
    assert message.id.startswith("msg_") and message._request_id
    assert text_of(message) == expected_answer("hello", 3, 7)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 7)


def test_content_and_system_are_strings_or_blocks_joined_as_they_are(
    client: anthropic.Anthropic,
) -> None:
    cached = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    parts = [{"type": "text", "text": part} for part in ("hel", "lo")]
    given: Any = (("hello", parts), (parts, [cached]), ("hello", "hello"))
    for system, content in given:
        message = client.messages.create(
            model="fake",
            system=system,
            messages=[{"role": "user", "content": content}],
            max_tokens=4,
            extra_body=SEED,
        )
        assert text_of(message) == expected_answer("hello\nhello", 3, 4)


def test_claude_codes_billing_is_not_told_to_the_model(client: anthropic.Anthropic) -> None:
    billing: Any = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f3;"}
    for system in ([billing], [billing, {"type": "text", "text": "hi"}]):
        counted = client.messages.count_tokens(model="fake", messages=HELLO, system=system)
        assert counted.input_tokens == len("hello" if len(system) == 1 else "hi\nhello")


def test_tokens_are_counted_as_they_are_run(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "fake", "messages": HELLO, "system": "be kind"}
    counted = client.messages.count_tokens(**asked)
    assert counted.input_tokens == len("be kind\nhello")
    message = client.messages.create(**asked, max_tokens=1)
    assert message.usage.input_tokens == counted.input_tokens
    long: Any = [{"role": "user", "content": "a" * (MAX_MODEL_LEN + 9)}]
    assert client.messages.count_tokens(model="fake", messages=long).input_tokens > MAX_MODEL_LEN


def test_a_stop_sequence_is_told_and_left_out(client: anthropic.Anthropic) -> None:
    whole = expected_answer("hello", 3, 7)
    message = client.messages.create(**ASKED, stop_sequences=["#", whole[3]], extra_body=SEED)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", whole[3])
    assert text_of(message) == whole[:3]


def test_an_answer_ends_at_its_limit_or_where_the_context_does(client: anthropic.Anthropic) -> None:
    cut = client.messages.create(**ASKED)
    assert (cut.stop_reason, cut.stop_sequence, cut.usage.output_tokens) == ("max_tokens", None, 7)
    full = client.messages.create(**{**ASKED, "max_tokens": 1000})
    assert full.stop_reason == "model_context_window_exceeded"
    assert full.usage.output_tokens == MAX_MODEL_LEN - len("hello")


def test_no_tokens_are_a_prompt_for_the_cache(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**{**ASKED, "max_tokens": 0})
    assert (message.content, message.stop_reason) == ([], "max_tokens")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 0)


def test_cached_tokens_are_told_apart(
    serve: Callable[..., Served], connect: Callable[..., anthropic.Anthropic]
) -> None:
    client = connect(serve(FakeEngine(cached_tokens=4)))
    with client.messages.stream(**ASKED) as stream:
        first = next(event for event in stream if event.type == "message_start").message
        streamed = stream.get_final_message()
    for message in (first, streamed, client.messages.create(**ASKED)):
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (1, 4)
        assert usage.cache_creation_input_tokens == 0
