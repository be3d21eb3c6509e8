"""openai-agents with the kind of model that it takes by default: Responses."""

import asyncio

import agents
import openai
import pydantic
import steps

agents.set_tracing_disabled(True)
multiply = agents.function_tool(steps.multiply)


class Product(pydantic.BaseModel):
    product: int


def agent(url: str, **fields: object) -> agents.Agent:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    agents.set_default_openai_client(client, use_for_tracing=False)
    return agents.Agent(name="A", instructions="Be brief.", model=steps.MODEL, **fields)


def chat(url: str) -> None:
    assert agents.Runner.run_sync(agent(url), steps.GREETING).final_output == steps.HELLO


def stream(url: str) -> None:
    async def told() -> str:
        running = agents.Runner.run_streamed(agent(url), steps.GREETING)
        events = [event async for event in running.stream_events()]
        assert len(events) > 3
        return running.final_output

    assert asyncio.run(told()) == steps.HELLO


def tools(url: str) -> None:
    found = agents.Runner.run_sync(agent(url, tools=[multiply]), steps.QUESTION)
    assert "tool_call_item" in [item.type for item in found.new_items], found.new_items


def structured(url: str) -> None:
    found = agents.Runner.run_sync(agent(url, output_type=Product), steps.STRUCTURED)
    assert found.final_output == Product(product=42)


def agent_loop(url: str) -> None:
    found = agents.Runner.run_sync(agent(url, tools=[multiply]), steps.QUESTION)
    assert found.final_output == steps.ANSWER, found.final_output


steps.run(chat, stream, tools, structured, agent_loop)
