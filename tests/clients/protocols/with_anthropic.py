"""The anthropic package: messages whole and streamed, tools, and its own loop of tools."""

from typing import Any

import anthropic
import steps

TOOL: Any = {"name": "multiply", "description": "Multiplies.", "input_schema": steps.PARAMETERS}


def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def asked(question: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": steps.MODEL, "max_tokens": 64, "messages": messages, **more}


def chat(url: str) -> None:
    answer = client(url).messages.create(**asked(steps.GREETING))
    assert answer.content[-1].text == steps.HELLO and answer.stop_reason == "end_turn", answer


def stream(url: str) -> None:
    with client(url).messages.stream(**asked(steps.GREETING)) as events:
        pieces = list(events.text_stream)
    assert "".join(pieces) == steps.HELLO and len(pieces) > 1, pieces


def tools(url: str) -> None:
    answer = client(url).messages.create(**asked(steps.QUESTION, tools=[TOOL]))
    assert answer.stop_reason == "tool_use", answer
    assert answer.content[-1].input == {"a": 6, "b": 7}, answer
    counted = client(url).messages.count_tokens(
        model=steps.MODEL, messages=asked(steps.QUESTION)["messages"]
    )
    assert counted.input_tokens > 0


def structured(url: str) -> None:
    tool = {
        "name": "Product",
        "input_schema": {"type": "object", "properties": {"product": {"type": "integer"}}},
    }
    choice = {"type": "tool", "name": "Product"}
    answer = client(url).messages.create(
        **asked(steps.STRUCTURED, tools=[tool], tool_choice=choice)
    )
    assert answer.content[-1].input == {"product": 42}, answer


def agent_loop(url: str) -> None:
    tool = anthropic.beta_tool(steps.multiply)
    runner = client(url).beta.messages.tool_runner(**asked(steps.QUESTION, tools=[tool]))
    assert runner.until_done().content[-1].text == steps.ANSWER


steps.run(chat, stream, tools, structured, agent_loop)
