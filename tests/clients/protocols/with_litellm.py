"""litellm over each of the three protocols: chat completions, messages and responses."""

import json
import sys
from typing import Any

import litellm
import pydantic
import steps

TOOL = {"type": "function", "function": {"name": "multiply", "parameters": steps.PARAMETERS}}


class Product(pydantic.BaseModel):
    product: int


def ask(url: str, provider: str, messages: list[Any] | str, **more: Any) -> Any:
    given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    base = f"{url}/v1" if provider == "openai" else url
    return litellm.completion(
        f"{provider}/{steps.MODEL}", given, api_base=base, api_key="none", max_tokens=64, **more
    )


def chat(url: str) -> None:
    for provider in ("openai", "anthropic"):
        assert ask(url, provider, steps.GREETING).choices[0].message.content == steps.HELLO
    answer = litellm.responses(
        steps.GREETING, f"openai/{steps.MODEL}", api_base=f"{url}/v1", api_key="none"
    )
    assert answer.output[-1].content[0].text == steps.HELLO, answer


def stream(url: str) -> None:
    for provider in ("openai", "anthropic"):
        pieces = [
            piece.choices[0].delta.content or ""
            for piece in ask(url, provider, steps.GREETING, stream=True)
        ]
        assert "".join(pieces) == steps.HELLO and len(pieces) > 2, pieces


def tools(url: str) -> None:
    for provider in ("openai", "anthropic"):
        call = ask(url, provider, steps.QUESTION, tools=[TOOL]).choices[0].message.tool_calls[0]
        assert json.loads(call.function.arguments) == {"a": 6, "b": 7}, call


def structured(url: str) -> None:
    answer = ask(url, "openai", steps.STRUCTURED, response_format=Product)
    assert json.loads(answer.choices[0].message.content) == {"product": 42}


def agent_loop(url: str) -> None:
    for provider in ("openai", "anthropic"):
        first = ask(url, provider, steps.QUESTION, tools=[TOOL]).choices[0].message
        (call,) = first.tool_calls
        told = steps.multiply(**json.loads(call.function.arguments))
        result = {"role": "tool", "tool_call_id": call.id, "content": told}
        messages = [{"role": "user", "content": steps.QUESTION}, first.model_dump(), result]
        last = ask(url, provider, messages, tools=[TOOL]).choices[0].message
        assert last.content == steps.ANSWER, last


steps.run(sys.argv[1], chat, stream, tools, structured, agent_loop)
