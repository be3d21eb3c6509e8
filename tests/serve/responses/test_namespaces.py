"""Tools that come as a namespace: the model calls NAMESPACE.NAME, the client sees both apart."""

from collections.abc import Callable
from typing import Any

from fake_server import Served
from scripted_engine import ScriptedEngine

CREW: Any = {"type": "namespace", "name": "crew", "tools": [{"type": "function", "name": "close"}]}
CALL = (
    "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.crew.close:0"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
)


def test_a_function_of_a_namespace_is_called_and_goes_back_as_in_a_chat_with_the_whole_name(
    say: Callable[..., Served],
) -> None:
    server = say(CALL)
    first = server.openai.responses.create(model="fake", input="Close it.", tools=[CREW])
    called = first.output[-1].model_dump(exclude_none=True)
    assert (called["name"], called["namespace"]) == ("close", "crew")
    result = {"type": "function_call_output", "call_id": called["call_id"], "output": "done"}
    ask = {"role": "user", "content": "Close it."}
    body = {"model": "fake", "input": [ask, called, result], "tools": [CREW]}
    again = server.http.post("/v1/responses", json=body).json()
    listed = f"/v1/responses/{again['id']}/input_items"
    item = server.http.get(listed, params={"order": "asc"}).json()["data"][1]
    assert (item["name"], item["namespace"]) == ("close", "crew")
    function = {"name": "crew.close", "arguments": "{}"}
    call = {"id": called["call_id"], "type": "function", "function": function}
    turns = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    turns += [{"role": "tool", "tool_call_id": called["call_id"], "content": "done"}]
    tools = [{"type": "function", "function": {"name": "crew.close"}}]
    chat = {"model": "fake", "messages": [ask, *turns], "tools": tools}
    assert server.http.post("/v1/chat/completions", json=chat).status_code == 200
    engine = server.engine
    assert isinstance(engine, ScriptedEngine)
    assert engine.requests[-1].prompt_ids == engine.requests[-2].prompt_ids
