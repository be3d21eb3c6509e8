"""The openai package's Responses: whole and streamed, tools, parsed answers, and a chain."""

import json
from typing import Any

import openai
import pydantic
import steps

TOOL: Any = {
    "type": "function",
    "name": "multiply",
    "description": "Multiplies.",
    "parameters": steps.PARAMETERS,
    "strict": True,
}


class Product(pydantic.BaseModel):
    product: int


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def chat(url: str) -> None:
    answer = client(url).responses.create(model=steps.MODEL, input=steps.GREETING)
    assert answer.output_text == steps.HELLO and answer.status == "completed", answer
    assert client(url).responses.retrieve(answer.id).output_text == steps.HELLO


def stream(url: str) -> None:
    with client(url).responses.stream(model=steps.MODEL, input=steps.GREETING) as events:
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == steps.HELLO and len(pieces) > 1, pieces


def tools(url: str) -> None:
    answer = client(url).responses.create(model=steps.MODEL, input=steps.QUESTION, tools=[TOOL])
    assert json.loads(answer.output[-1].arguments) == {"a": 6, "b": 7}, answer


def structured(url: str) -> None:
    answer = client(url).responses.parse(
        model=steps.MODEL, input=steps.STRUCTURED, text_format=Product
    )
    assert answer.output_parsed == Product(product=42), answer


def agent_loop(url: str) -> None:
    ask = client(url).responses.create
    first = ask(model=steps.MODEL, input=steps.QUESTION, tools=[TOOL])
    call = first.output[-1]
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": steps.multiply(**json.loads(call.arguments)),
    }
    last = ask(model=steps.MODEL, input=[result], tools=[TOOL], previous_response_id=first.id)
    assert last.output_text == steps.ANSWER, last


steps.run(chat, stream, tools, structured, agent_loop)
