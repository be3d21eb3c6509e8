"""langchain-anthropic: /v1/messages through LangChain's chat models."""

import sys

import pydantic
import steps
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage


class Product(pydantic.BaseModel):
    """The answer."""

    product: int


def model(url: str) -> ChatAnthropic:
    return ChatAnthropic(
        model=steps.MODEL, base_url=url, api_key="none", max_tokens=64, max_retries=0
    )


def chat(url: str) -> None:
    assert model(url).invoke(steps.GREETING).text == steps.HELLO


def stream(url: str) -> None:
    pieces = [piece.text for piece in model(url).stream(steps.GREETING)]
    assert "".join(pieces) == steps.HELLO and len(pieces) > 2, pieces


def tools(url: str) -> None:
    (call,) = model(url).bind_tools([steps.multiply]).invoke(steps.QUESTION).tool_calls
    assert (call["name"], call["args"]) == ("multiply", {"a": 6, "b": 7}), call


def structured(url: str) -> None:
    answer = model(url).with_structured_output(Product).invoke(steps.STRUCTURED)
    assert answer == Product(product=42), answer


def agent_loop(url: str) -> None:
    bound = model(url).bind_tools([steps.multiply])
    first = bound.invoke(steps.QUESTION)
    (call,) = first.tool_calls
    result = ToolMessage(steps.multiply(**call["args"]), tool_call_id=call["id"])
    assert bound.invoke([HumanMessage(steps.QUESTION), first, result]).text == steps.ANSWER


steps.run(sys.argv[1], chat, stream, tools, structured, agent_loop)
