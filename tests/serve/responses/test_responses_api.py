"""POST /v1/responses, whole and truncated, as OpenAI's own client sees it."""

from typing import Any

import openai
import pytest
from called_tools import THINKING
from fake_engine import MAX_MODEL_LEN, FakeEngine, expected_answer
from fake_server import Served
from openai.types.responses import Response
from pydantic import BaseModel, TypeAdapter

SHOWN = {"skip_special_tokens": False}
BAD_FORM = {"type": "json_schema", "name": "x", "schema": {"type": 1}}
LOGPROBS: Any = ["message.output_text.logprobs"]


def ask(server: Served, **given: Any) -> Any:
    return server.openai.responses.create(**{"model": "fake", "input": "hello", **given})


def test_a_text_comes_with_its_status_and_usage(fake: Served) -> None:
    answer = ask(fake, max_output_tokens=7, metadata={"a": "b"}, extra_body={"seed": 3})
    TypeAdapter(Response).validate_python(answer.model_dump())
    assert answer.output_text == expected_answer("hello", 3, 7)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"
    assert answer.metadata == {"a": "b"} and answer.max_output_tokens == 7
    assert answer.usage.model_dump() == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}
        | {"cache_write_tokens_details": None},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }


def test_cached_and_reasoning_tokens_are_counted(say, serve) -> None:
    server = say("I think.</think>So it is.")
    answer = ask(server, extra_body=THINKING)
    thought = server.engine.tokenizer.encode("I think.")
    assert answer.usage.output_tokens_details.reasoning_tokens == len(thought)
    assert answer.usage.output_tokens > len(thought) + 2
    cached = ask(serve(FakeEngine(cached_tokens=4)), max_output_tokens=2)
    assert cached.usage.input_tokens_details.cached_tokens == 4


def test_a_stop_string_completes_a_response(fake: Served) -> None:
    text = expected_answer("hello", 3, 9)
    answer = ask(fake, max_output_tokens=9, extra_body={"seed": 3, "stop": text[5]})
    assert answer.output_text == text[: text.index(text[5])]
    assert answer.status == "completed" and answer.incomplete_details is None


def test_reasoning_comes_back_from_a_client_that_keeps_its_sealed_form_only(say) -> None:
    server = say("I think é hard.</think>So it is.")
    include = ["reasoning.encrypted_content"]
    first = ask(server, include=include, extra_body=THINKING, store=False)
    assert ask(server, extra_body=THINKING).output[0].encrypted_content is None
    kept = first.output[0].model_dump(exclude={"content"})
    call = {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"}
    ask(server, input=[{"role": "user", "content": "hello"}, kept, call], store=False)
    prompt = server.engine.tokenizer.decode(server.engine.asked[-1].prompt_ids)
    assert "I think é hard." in prompt
    foreign = kept | {"encrypted_content": "gAAAAA"}
    with pytest.raises(openai.BadRequestError, match="was not made here"):
        ask(server, input=[foreign])


@pytest.mark.xdist_group("served pair")
def test_structured_output_is_parsed(server: Served) -> None:
    class Size(BaseModel):
        n: int
        unit: bool

    answer: Any = server.openai.responses.parse(
        model="fake", input="How large?", text_format=Size, max_output_tokens=60, temperature=0
    )
    assert isinstance(answer.output_parsed, Size)
    assert answer.text.format.type == "json_schema"


def test_log_probabilities_are_those_of_the_text(say) -> None:
    server = say("I think.</think>So it is. é")
    answer = ask(server, include=LOGPROBS, top_logprobs=1, extra_body=THINKING)
    logprobs = answer.output[1].content[0].logprobs
    assert bytes(b for one in logprobs for b in one.bytes).decode() == answer.output_text
    assert [len(one.top_logprobs) for one in logprobs] == [1] * len(logprobs)
    shown = ask(server, include=LOGPROBS, extra_body=THINKING | SHOWN).output[1]
    plain = [one.model_copy(update={"top_logprobs": []}) for one in logprobs]
    assert shown.content[0].logprobs == plain
    assert ask(server, extra_body=THINKING).output[1].content[0].logprobs == []


@pytest.mark.xdist_group("served pair")
@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({"model": "other"}, "model", "model_not_found"),
        ({"input": "a" * 300}, "input", "context_length_exceeded"),
        ({"max_output_tokens": 255}, "max_output_tokens", "context_length_exceeded"),
        ({"input": []}, "input", "invalid_value"),
        ({"temperature": -1}, None, "invalid_value"),
        ({"metadata": {"a": "b" * 513}}, "metadata", "invalid_value"),
        ({"text": {"format": BAD_FORM}}, "text.format", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"input": [{"type": "item_reference", "id": "msg_1_0"}]}, "input", "item_not_found"),
    ],
)
def test_errors_are_openais(
    server: Served, given: dict[str, Any], param: str | None, code: str
) -> None:
    kind = openai.NotFoundError if "not_found" in code else openai.BadRequestError
    with pytest.raises(kind) as caught:
        ask(server, **given)
    assert (caught.value.param, caught.value.code) == (param, code), caught.value.message
    assert "max_tokens" not in caught.value.message


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
