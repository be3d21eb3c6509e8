"""Agents with tools, whole, streamed and in conversations; prints the counts as JSON.

Runs in the client's own environment: nothing of ours is imported.
"""

import asyncio
import json
import sys
from typing import Any

import agents
import openai
from pydantic import BaseModel


def main() -> None:
    """argv: the address that ends in /v1, and the file to write."""
    client = openai.AsyncOpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
    agents.set_default_openai_client(client)
    agents.set_tracing_disabled(True)
    outcome = {}
    for step in STEPS:
        try:
            step()
            outcome[step.__name__] = "completed"
        except Exception as error:
            outcome[step.__name__] = f"{type(error).__name__}: {error}"
    with open(sys.argv[2], "w") as file:
        json.dump(outcome, file, indent=1)


def tool_loop() -> None:
    result = agents.Runner.run_sync(weather_agent(), "How is the weather in Oslo?")
    assert "7 degrees and windy" in result.final_output
    assert result.context_wrapper.usage.requests == 2


def streamed_tool_loop() -> None:
    async def run() -> str:
        result = agents.Runner.run_streamed(weather_agent(), "How is the weather in Oslo?")
        async for _ in result.stream_events():
            pass
        return result.final_output

    assert "7 degrees and windy" in asyncio.run(run())


def conversation_kept_by_the_server() -> None:
    agent = agents.Agent(name="Counter", model_settings=agents.ModelSettings(temperature=0))
    first = agents.Runner.run_sync(agent, "What is 17 + 25?")
    second = agents.Runner.run_sync(
        agent, "What is 95 + 61?", previous_response_id=first.last_response_id
    )
    assert second.final_output.endswith("Answer: 156")


def conversation_kept_by_the_client() -> None:
    agent = weather_agent()
    first = agents.Runner.run_sync(agent, "How is the weather in Oslo?")
    question = {"role": "user", "content": "How is the weather in Lima?"}
    second = agents.Runner.run_sync(agent, [*first.to_input_list(), question])
    assert "Lima" in second.final_output


class Size(BaseModel):
    """An answer's form."""

    n: int


def structured_output() -> None:
    agent = agents.Agent(name="Sizes", output_type=Size)
    assert isinstance(agents.Runner.run_sync(agent, "How large?").final_output, Size)


def weather_agent() -> Any:
    def get_weather(city: str) -> str:
        """Weather in a city"""
        return '{"celsius": 7, "sky": "windy"}'

    settings = agents.ModelSettings(temperature=0)
    tools = [agents.function_tool(get_weather)]
    return agents.Agent(name="Weather", tools=tools, model_settings=settings)


STEPS = (
    tool_loop,
    streamed_tool_loop,
    conversation_kept_by_the_server,
    conversation_kept_by_the_client,
    structured_output,
)
main()
