"""POST /v1/responses, whole, as OpenAI's own client sees it."""

import json
from typing import Any

import openai
import pytest
from called_tools import ANSWERS, THINKING, prompt_of
from conversations import TOOLS
from fake_engine import FakeEngine, expected_answer
from fake_server import Served, wait_for
from openai.types.responses import Response
from pydantic import BaseModel, TypeAdapter

SHOWN = {"skip_special_tokens": False}


def ask(server: Served, **given: Any) -> Any:
    """The response, or its stream."""
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


def test_a_tool_loop_goes_round(say) -> None:
    """What a client got and sends back with the results is rendered as the model wrote it."""
    server = say(ANSWERS["kimi_k2"])
    history: list[Any] = [{"role": "user", "content": "How is Oslo?"}]
    first = ask(server, input=history, tools=TOOLS, extra_body=THINKING)
    assert [item.type for item in first.output] == ["reasoning", "message", *["function_call"] * 2]
    calls = [item for item in first.output if item.type == "function_call"]
    history += first.output
    for call in calls:
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "5 degrees"}
        history.append(output)
    assert ask(server, input=history, tools=TOOLS).status == "completed"
    prompt = prompt_of(server)
    assert f"assistant<|im_middle|><think>{ANSWERS['kimi_k2']}<|im_end|>" in prompt
    assert "## Return of functions.time:1\n5 degrees" in prompt


def test_reasoning_comes_back_from_a_client_that_keeps_its_sealed_form_only(say) -> None:
    server = say("I think é hard.</think>So it is.")
    include = ["reasoning.encrypted_content"]
    first = ask(server, include=include, extra_body=THINKING, store=False)
    assert ask(server, extra_body=THINKING).output[0].encrypted_content is None
    kept = first.output[0].model_dump(exclude={"content"})
    call = {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"}
    ask(server, input=[{"role": "user", "content": "hello"}, kept, call], store=False)
    prompt = server.engine.tokenizer.decode(server.engine.requests[-1].prompt_ids)
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


@pytest.mark.xdist_group("served pair")
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "time"}),
        ({"type": "function", "name": "time"}, {"time"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "weather"}],
            },
            {"weather"},
        ),
    ],
)
def test_what_must_be_called_is_called(server: Served, choice: Any, names: set[str]) -> None:
    answer = ask(
        server, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_output_tokens=80
    )
    calls = [item for item in answer.output if item.type == "function_call"]
    assert len(calls) == 1 and calls[0].name in names
    assert answer.tool_choice if isinstance(choice, str) else answer.tool_choice.type
    if answer.status == "completed":
        json.loads(calls[0].arguments)


def test_log_probabilities_are_those_of_the_text(say) -> None:
    server = say("I think.</think>So it is. é")
    answer = ask(
        server, include=["message.output_text.logprobs"], top_logprobs=1, extra_body=THINKING
    )
    logprobs = answer.output[1].content[0].logprobs
    assert bytes(b for one in logprobs for b in one.bytes).decode() == answer.output_text
    assert [len(one.top_logprobs) for one in logprobs] == [1] * len(logprobs)
    shown = ask(
        server, include=["message.output_text.logprobs"], extra_body=THINKING | SHOWN
    ).output[1]
    assert shown.content[0].logprobs == [
        one.model_copy(update={"top_logprobs": []}) for one in logprobs
    ]
    assert ask(server, extra_body=THINKING).output[1].content[0].logprobs == []


@pytest.mark.xdist_group("served pair")
@pytest.mark.parametrize(
    ("given", "kind", "param", "code"),
    [
        ({"model": "other"}, openai.NotFoundError, "model", "model_not_found"),
        ({"input": "a" * 300}, openai.BadRequestError, "input", "context_length_exceeded"),
        (
            {"max_output_tokens": 255},
            openai.BadRequestError,
            "max_output_tokens",
            "context_length_exceeded",
        ),
        ({"input": []}, openai.BadRequestError, "input", "invalid_value"),
        ({"temperature": -1}, openai.BadRequestError, None, "invalid_value"),
        ({"metadata": {"a": "b" * 513}}, openai.BadRequestError, "metadata", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 1}}}},
            openai.BadRequestError,
            "text.format",
            "invalid_value",
        ),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice", "invalid_value"),
        (
            {"previous_response_id": "resp_1"},
            openai.NotFoundError,
            "previous_response_id",
            "previous_response_not_found",
        ),
        (
            {"input": [{"type": "item_reference", "id": "msg_1_0"}]},
            openai.NotFoundError,
            "input",
            "item_not_found",
        ),
    ],
)
def test_errors_are_openais(
    server: Served, given: dict[str, Any], kind: type[openai.APIStatusError], param: Any, code: str
) -> None:
    with pytest.raises(kind) as caught:
        ask(server, **given)
    assert (caught.value.param, caught.value.code) == (param, code), caught.value.message
    assert "max_tokens" not in caught.value.message


def test_a_client_that_hangs_up_frees_the_engine_and_leaves_nothing(serve) -> None:
    server = serve(FakeEngine(step_s=0.02))
    stream = ask(server, stream=True)
    created = next(iter(stream))
    stream.close()
    wait_for(lambda: server.engine.cancelled)
    assert server.http.get(f"/v1/responses/{created.response.id}").status_code == 404
