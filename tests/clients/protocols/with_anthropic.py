"""Everything a user of the anthropic package does with a chat model, over the demo."""

import json
import sys
from typing import Any

import anthropic
import steps
from steps import get_weather

MODEL = steps.MODEL
SUM: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 120,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "What is 95 + 61?"}]}],
    "extra_body": {"temperature": 0},
}
WEATHER = {"name": "get_weather", "description": "Weather in a city", "input_schema": steps.CITY}
ASKED: dict[str, Any] = {
    **SUM,
    "tools": [WEATHER],
    "messages": [{"role": "user", "content": steps.WEATHER}],
}


def message(client: Any) -> None:
    answer = client.messages.create(**SUM)
    assert answer.content[0].text.endswith("Answer: 156") and answer.stop_reason == "end_turn"


def streamed_message(client: Any) -> None:
    with client.messages.stream(**SUM) as stream:
        text = "".join(stream.text_stream)
        answer = stream.get_final_message()
    assert text.endswith("Answer: 156") and answer.content[0].text == text
    assert answer.usage.output_tokens > 0


def beta_message(client: Any) -> None:
    answer = client.beta.messages.create(**SUM, betas=["interleaved-thinking-2025-05-14"])
    assert answer.content[0].text.endswith("Answer: 156")


def thinking(client: Any) -> None:
    answer = client.messages.create(**SUM, thinking={"type": "adaptive"})
    assert answer.content[0].type == "thinking" and "156" in answer.content[0].thinking


def tools(client: Any) -> None:
    """A loop: a call, its result, an answer."""
    with client.messages.stream(**ASKED) as stream:
        first = stream.get_final_message()
    (call,) = first.content
    assert first.stop_reason == "tool_use" and call.input == {"city": "Oslo"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": get_weather("Oslo")}
    turns = [{"role": "assistant", "content": first.content}]
    turns.append({"role": "user", "content": [result]})
    answer = client.messages.create(**{**ASKED, "messages": ASKED["messages"] + turns})
    assert answer.stop_reason == "end_turn" and "7 degrees" in answer.content[0].text


def its_own_loop_of_tools(client: Any) -> None:
    asked = {**ASKED, "tools": [anthropic.beta_tool(get_weather)]}
    answer = client.beta.messages.tool_runner(**asked).until_done()
    assert "7 degrees" in answer.content[0].text


def schema(client: Any) -> None:
    size = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "schema": size | {"additionalProperties": False}}
    answer = client.messages.create(**SUM, output_config={"format": form})
    assert isinstance(json.loads(answer.content[0].text)["n"], int)


steps.run(
    anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0),
    message,
    streamed_message,
    beta_message,
    thinking,
    tools,
    its_own_loop_of_tools,
    schema,
)
