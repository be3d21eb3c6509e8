"""Agents of openai-agents with tools: whole, streamed and in conversations, over the demo."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import agents
import openai
import steps
from agents.models import get_default_model_settings
from pydantic import BaseModel

SETTINGS = replace(get_default_model_settings(), temperature=0)
"""Those that go with its default model, but for chance."""


class Size(BaseModel):
    """An answer's form."""

    n: int


TOOL = agents.function_tool(steps.get_weather)
COUNTER = agents.Agent(name="Counter", model_settings=SETTINGS)
WEATHERMAN = agents.Agent(name="Weather", tools=[TOOL], model_settings=SETTINGS)
SIZES = agents.Agent(name="Sizes", output_type=Size, model_settings=SETTINGS)


async def tool_loop() -> None:
    result = await agents.Runner.run(WEATHERMAN, steps.WEATHER)
    assert result.final_output == "In Oslo it is 7 degrees and windy."
    assert result.context_wrapper.usage.requests == 2


async def streamed_tool_loop() -> None:
    result = agents.Runner.run_streamed(WEATHERMAN, steps.WEATHER)
    async for _ in result.stream_events():
        pass
    assert result.final_output == "In Oslo it is 7 degrees and windy."


async def conversation() -> None:
    """The server's memory of it is as good as the client's."""
    first = await agents.Runner.run(COUNTER, "What is 17 + 25?")
    assert first.final_output.endswith("Answer: 42")
    question = {"role": "user", "content": "What is 95 + 61?"}
    told = await agents.Runner.run(COUNTER, [*first.to_input_list(), question])
    kept = await agents.Runner.run(COUNTER, [question], previous_response_id=first.last_response_id)
    assert kept.final_output == told.final_output


async def conversation_with_calls() -> None:
    first = await agents.Runner.run(WEATHERMAN, steps.WEATHER)
    question = {"role": "user", "content": "What is 17 + 25?"}
    assert (await agents.Runner.run(WEATHERMAN, [*first.to_input_list(), question])).final_output


async def structured_output() -> None:
    assert isinstance((await agents.Runner.run(SIZES, "How large?")).final_output, Size)


def in_turn(loop: asyncio.AbstractEventLoop, step: Any) -> Callable[[Any], None]:
    def run(_: Any) -> None:
        loop.run_until_complete(step())

    run.__name__ = step.__name__
    return run


CLIENT = openai.AsyncOpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
agents.set_default_openai_client(CLIENT)
agents.set_tracing_disabled(True)
LOOP = asyncio.new_event_loop()
STEPS = (tool_loop, streamed_tool_loop, conversation, conversation_with_calls, structured_output)
steps.run(CLIENT, *(in_turn(LOOP, step) for step in STEPS))
