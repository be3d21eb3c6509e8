"""POST /v1/messages and its counting of tokens, with Anthropic's own client as the judge."""

from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic.types import Message
from fake_engine import MAX_MODEL_LEN, FakeEngine, expected_answer
from fake_server import Served, wait_for

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


def test_a_stream_says_what_the_whole_answer_says(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASKED, extra_body=SEED)
    with client.messages.stream(**ASKED, extra_body=SEED) as stream:
        assert "".join(stream.text_stream) == expected_answer("hello", 3, 7)
        streamed = stream.get_final_message()
    same = {"content", "stop_reason", "stop_sequence", "usage", "role", "model"}
    assert streamed.model_dump(include=same) == whole.model_dump(include=same)


@pytest.mark.parametrize("content", ["hello", [{"type": "text", "text": p} for p in ("hel", "lo")]])
def test_content_and_system_are_strings_or_blocks_joined_as_they_are(
    client: anthropic.Anthropic, content: Any
) -> None:
    cached = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    given: Any = (content, [cached])
    for system in given:
        message = client.messages.create(
            model="fake",
            system=system,
            messages=[{"role": "user", "content": content}],
            max_tokens=4,
            extra_body=SEED,
        )
        assert text_of(message) == expected_answer("hello\nhello", 3, 4)


def test_turns_of_all_three_roles_are_turns_of_the_chat(client: anthropic.Anthropic) -> None:
    turns: Any = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "text", "text": "b", "citations": None}]},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    message = client.messages.create(model="fake", messages=turns, max_tokens=4, extra_body=SEED)
    assert text_of(message) == expected_answer("a\nb\nc\nd", 3, 4)


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


def test_an_answer_ends_at_its_limit_or_where_the_context_does(
    client: anthropic.Anthropic,
) -> None:
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


def test_sampling_options_reach_the_engine(
    say: Callable[..., Served], connect: Callable[..., anthropic.Anthropic]
) -> None:
    server = say("Hm.")
    options = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 4}
    options |= {"speculative": {"num_tokens": 2}}
    connect(server).messages.create(**ASKED, stop_sequences=["x", "y"], extra_body=options)
    sampling = server.engine.requests[0].sampling  # type: ignore[attr-defined]
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.seed, sampling.num_speculative_tokens) == (4, 2)
    assert (sampling.stop, sampling.max_tokens) == (("x", "y"), 7)


def test_a_client_that_hangs_up_gives_its_answer_up(
    serve: Callable[..., Served], connect: Callable[..., anthropic.Anthropic]
) -> None:
    server = serve(FakeEngine(step_s=0.02))
    with connect(server).messages.stream(**{**ASKED, "max_tokens": 200}) as stream:
        next(iter(stream))
        assert len(server.engine.running) == 1
    wait_for(lambda: len(server.engine.cancelled) == 1)
    assert not server.engine.running
