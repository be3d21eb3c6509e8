"""Everything a user of the openai package does with a chat model, over the demo."""

import json
import sys
from typing import Any

import openai
import steps

QUESTION = [{"role": "user", "content": [{"type": "text", "text": "What is 95 + 61?"}]}]
MODEL = steps.MODEL
WEATHER = {"name": "get_weather", "description": "Weather in a city", "parameters": steps.CITY}
ABOUT_OSLO = [{"role": "user", "content": steps.WEATHER}]


def completion(client: Any) -> None:
    answer = client.completions.create(model=MODEL, prompt="What is", max_tokens=8, logprobs=2)
    assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.tokens) > 0


def chat(client: Any) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=120
    )
    assert answer.choices[0].message.content.endswith("Answer: 156")


def streamed_chat(client: Any) -> None:
    options = {"include_usage": True}
    with client.chat.completions.create(
        model=MODEL, messages=QUESTION, stream=True, stream_options=options, temperature=0
    ) as stream:
        pieces = list(stream)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text.endswith("Answer: 156") and pieces[-1].usage.completion_tokens > 0


def schema(client: Any) -> None:
    size = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"name": "size", "schema": size | {"additionalProperties": False}}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        response_format={"type": "json_schema", "json_schema": form},
        max_tokens=60,
    )
    assert isinstance(json.loads(answer.choices[0].message.content)["n"], int)


def response(client: Any) -> None:
    """Whole, then as the stream's own helper puts it together; both are kept."""
    asked = {"model": MODEL, "input": "What is 95 + 61?", "temperature": 0}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        streamed = stream.get_final_response()
    assert whole.output_text == streamed.output_text and whole.output_text.endswith("Answer: 156")
    assert client.responses.retrieve(streamed.id).output_text == whole.output_text


def tools_of_responses(client: Any) -> None:
    asked = {"model": MODEL, "tools": [WEATHER | {"type": "function"}], "temperature": 0}
    first = client.responses.create(input=ABOUT_OSLO, **asked)
    call = first.output[-1]
    assert json.loads(call.arguments) == {"city": "Oslo"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": steps.WINDY}
    answer = client.responses.create(input=[*ABOUT_OSLO, *first.output, result], **asked)
    assert "7 degrees and windy" in answer.output_text


def orders_of_codex(client: Any) -> None:
    """Codex tells what the model said beside a call in any order; the turn is the same."""
    asked = {"model": MODEL, "tools": [WEATHER | {"type": "function"}], "temperature": 0}
    call = {"type": "function_call", "name": "get_weather", "arguments": '{"city": "Oslo"}'}
    call |= {"call_id": "call_9f3a"}
    thought = {"type": "reasoning", "summary": [], "content": [_text("reasoning_text", "I ask.")]}
    said = {"type": "message", "role": "assistant", "content": [_text("output_text", "Wait.")]}
    result = {"type": "function_call_output", "call_id": "call_9f3a", "output": steps.WINDY}
    answers = [
        client.responses.create(input=[*ABOUT_OSLO, *turn, result], **asked)
        for turn in ((thought, said, call), (call, thought, said), (said, call, thought))
    ]
    assert len({(answer.output_text, answer.usage.input_tokens) for answer in answers}) == 1


def default_request_of_kimi_code(client: Any) -> None:
    """Continue after a call with cleaned ids, and ask to keep earlier thoughts."""
    call = {"id": "functions_get_weather_0", "type": "function"}
    call |= {"function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    turn = {"role": "assistant", "reasoning_content": "I ask.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": steps.WINDY}
    with client.chat.completions.create(
        model=MODEL,
        messages=[*ABOUT_OSLO, turn, result],
        tools=[{"type": "function", "function": WEATHER}],
        reasoning_effort="high",
        max_completion_tokens=120,
        prompt_cache_key="session",
        stream=True,
        stream_options={"include_usage": True},
        temperature=0,
        extra_body={"thinking": {"type": "enabled", "keep": "all"}},
    ) as stream:
        assert stream.response.headers["x-thinking-keep"] == "unsupported"
        deltas = [piece.choices[0].delta for piece in stream if piece.choices]
    # The demo's model was not trained to think: what it thinks is not what it would say.
    said = [delta.content or getattr(delta, "reasoning_content", "") for delta in deltas]
    assert "".join(said)


def _text(kind: str, text: str) -> dict[str, str]:
    return {"type": kind, "text": text}


steps.run(
    openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0),
    completion,
    chat,
    streamed_chat,
    schema,
    response,
    tools_of_responses,
    orders_of_codex,
    default_request_of_kimi_code,
)
