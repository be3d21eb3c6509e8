"""Agents with tools, whole, streamed and in conversations; prints the counts as JSON.

Runs in the client's own environment: nothing of ours is imported.
"""

import asyncio
import json
import sys
from dataclasses import replace

import agents
import openai
from agents.models import get_default_model_settings
from pydantic import BaseModel

WEATHER = "How is the weather in Oslo?"
SETTINGS = replace(get_default_model_settings(), temperature=0)
"""Those that go with its default model, but for chance."""


class Size(BaseModel):
    """An answer's form."""

    n: int


@agents.function_tool
def get_weather(city: str) -> str:
    """Weather in a city"""
    return '{"celsius": 7, "sky": "windy"}'


COUNTER = agents.Agent(name="Counter", model_settings=SETTINGS)
WEATHERMAN = agents.Agent(name="Weather", tools=[get_weather], model_settings=SETTINGS)
SIZES = agents.Agent(name="Sizes", output_type=Size, model_settings=SETTINGS)


async def main() -> None:
    """argv: the address that ends in /v1, and the file to write."""
    client = openai.AsyncOpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
    agents.set_default_openai_client(client)
    agents.set_tracing_disabled(True)
    outcome = {}
    for step in STEPS:
        try:
            await step()
            outcome[step.__name__] = "completed"
        except Exception as error:
            outcome[step.__name__] = f"{type(error).__name__}: {error}"
    with open(sys.argv[2], "w") as file:
        json.dump(outcome, file, indent=1)


async def tool_loop() -> None:
    result = await agents.Runner.run(WEATHERMAN, WEATHER)
    assert result.final_output == "In Oslo it is 7 degrees and windy."
    assert result.context_wrapper.usage.requests == 2


async def streamed_tool_loop() -> None:
    result = agents.Runner.run_streamed(WEATHERMAN, WEATHER)
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
    first = await agents.Runner.run(WEATHERMAN, WEATHER)
    question = {"role": "user", "content": "What is 17 + 25?"}
    assert (await agents.Runner.run(WEATHERMAN, [*first.to_input_list(), question])).final_output


async def structured_output() -> None:
    assert isinstance((await agents.Runner.run(SIZES, "How large?")).final_output, Size)


STEPS = (tool_loop, streamed_tool_loop, conversation, conversation_with_calls, structured_output)
asyncio.run(main())
