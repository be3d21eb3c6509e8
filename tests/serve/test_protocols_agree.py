"""An agent's conversation of thirty turns with tools, replayed through all three protocols.

A script answers. Each client sends back what it was given in its protocol's own form, so that
the prompts are equal only if nothing is lost on the way there and back.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anthropic
import pytest
from called_tools import saying
from chat_tokenizers import MINIMAX_TEMPLATE, kimi, with_template
from fake_server import Served, served_by
from oracle_files import golden_json
from scripted_engine import ScriptedEngine

from convert.text.typescript_tools import declare_tools, sorted_by_key
from eagle3_jax.engine import Request
from serve.openai.service import ModelInfo

TURNS, CONTEXT = 30, 2**16
SYSTEM = "You keep a garden."
SCHEMA = {"type": "object", "properties": {"bed": {"type": "integer"}, "note": {"type": "string"}}}
NAMES = ("water", "look")
OPTIONS = {"temperature": 0.8, "top_p": 0.9}
THINKS: dict[str, Any] = {"seed": 11, "thinking": {"type": "adaptive"}}
"""Beyond what each client has a name for."""


def answer(turn: int) -> str:
    """Two of three answers call tools, every fourth two at once; all begin with a thought."""
    calls = "".join(
        f"<|tool_call_begin|>functions.{NAMES[i]}:{2 * turn + i}<|tool_call_argument_begin|>"
        f'{{"bed": {turn}, "note": "é \\"{i}\\" <b>"}}<|tool_call_end|>'
        for i in range(turn % 3 and 1 + (turn % 4 == 0))
    )
    section = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>" if calls else ""
    return f"Turn {turn}, I think.</think>{f'Step {turn}.' * (turn % 5 > 0)}{section}"


@dataclass
class Garden(ScriptedEngine):
    """Says the next answer of the script, whoever asks."""

    max_model_len: int = CONTEXT
    taken: list[tuple[tuple[int, ...], Any]] = field(default_factory=list)

    def answer(self, request: Request, sibling: int) -> list[int]:
        """The turn is how often it was asked."""
        said = answer(len(self.taken))
        self.taken.append((tuple(request.prompt_ids), request.sampling))
        return self.tokenizer.encode(said, add_special=True)


def told(names: list[str], turn: int) -> list[str]:
    return [f"{name} {turn}: fine ü" for name in names]


def through_chat(server: Served) -> None:
    tools = [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in NAMES]
    given: dict[str, Any] = {"tools": tools, "max_tokens": 500, "extra_body": THINKS, **OPTIONS}
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    calls: list[Any] = []
    for turn in range(TURNS):
        results = told([call.function.name for call in calls], turn)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(calls, results, strict=True)
        ] or [{"role": "user", "content": f"Bed {turn}?"}]
        answer = server.openai.chat.completions.create(model="fake", messages=messages, **given)
        calls = list(answer.choices[0].message.tool_calls or ())
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))


def through_messages(server: Served) -> None:
    client = anthropic.Anthropic(base_url=str(server.http.base_url), api_key="none", max_retries=0)
    given: dict[str, Any] = {"model": "fake", "system": SYSTEM, "max_tokens": 500}
    given["tools"] = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    messages: list[Any] = []
    calls: list[Any] = []
    for turn in range(TURNS):
        results = told([call.name for call in calls], turn)
        content = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in zip(calls, results, strict=True)
        ] or f"Bed {turn}?"
        messages.append({"role": "user", "content": content})
        message = client.messages.create(messages=messages, extra_body=THINKS | OPTIONS, **given)
        calls = [block for block in message.content if block.type == "tool_use"]
        messages.append({"role": "assistant", "content": message.content})


def through_responses(server: Served, stored: bool = False) -> None:
    """The client keeps the history, or the server."""
    tools: list[Any] = [{"type": "function", "name": n, "parameters": SCHEMA} for n in NAMES]
    given: dict[str, Any] = {"model": "fake", "instructions": SYSTEM, "max_output_tokens": 500}
    given |= {"tools": tools, "extra_body": THINKS, **OPTIONS}
    items: list[Any] = []
    calls: list[Any] = []
    for turn in range(TURNS):
        results = told([call.name for call in calls], turn)
        items += [
            {"type": "function_call_output", "call_id": call.call_id, "output": text}
            for call, text in zip(calls, results, strict=True)
        ] or [{"role": "user", "content": f"Bed {turn}?"}]
        response = server.openai.responses.create(input=items, **given)
        calls = [item for item in response.output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True) for item in response.output]
        if stored:
            items, given["previous_response_id"] = [], response.id


def asked_by(conversation: Callable[[Served], None]) -> list[Any]:
    engine, model = Garden(), ModelInfo(("fake",), "/models/fake", CONTEXT)
    with served_by(engine, kimi(), model=model) as server:
        conversation(server)
    return engine.taken


def test_thirty_turns_with_tools_are_the_same_requests_through_every_protocol() -> None:
    expected = asked_by(through_chat)
    assert len(expected) == TURNS
    first = kimi().decode(list(expected[0][0]))
    assert '"bed"' in first and first.endswith("<think>")
    stored = partial(through_responses, stored=True)
    for conversation in (through_messages, through_responses, stored):
        for turn, (one, other) in enumerate(zip(asked_by(conversation), expected, strict=True)):
            texts = [kimi().decode(list(prompt)) for prompt, _ in (one, other)]
            assert texts[0] == texts[1], (conversation, turn)
            assert one == other, (conversation, turn)


DECLARED = "{{ tools_ts_str or tools | tojson }}"
TOOLS = {case["name"]: case["tools"] for case in golden_json("kimi_tools")}


@pytest.mark.parametrize("name", ["shell", "references", "sorting", "unicode", "one_of"])
@pytest.mark.parametrize("template", [DECLARED, MINIMAX_TEMPLATE])
def test_the_same_tools_are_the_same_prompt_through_every_protocol(
    name: str, template: str
) -> None:
    """Declared where the template reads declarations, in the client's own order elsewhere."""
    tokenizer = with_template(kimi(), template)
    functions = [tool["function"] for tool in TOOLS[name]]
    tools = [{"type": "function", "function": function} for function in functions]
    flat = [{"type": "function", **function} for function in functions]
    renamed = [{"input_schema" if k == "parameters" else k: f[k] for k in f} for f in functions]
    hi: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi."}]}
    expected = tokenizer.encode_chat(hi["messages"], tools=tools)
    engine, model = saying("Hello."), ModelInfo(("fake",), "/models/fake", CONTEXT)
    engine.max_model_len = CONTEXT
    with served_by(engine, tokenizer, model=model) as server:
        assert server.ask("/tokenize", **hi, tools=tools)["tokens"] == expected
        server.ask("/v1/chat/completions", **hi, max_tokens=9, tools=tools)
        server.ask("/v1/messages", **hi, max_tokens=9, tools=renamed)
        server.ask("/v1/responses", input="Hi.", tools=flat)
        assert [[*request.prompt_ids] for request in engine.asked] == [expected] * 3
        counted = server.ask("/v1/messages/count_tokens", **hi, tools=renamed)
        assert counted == {"input_tokens": len(expected)}
    declares = template == DECLARED
    declared = declare_tools(sorted_by_key(tools)) if declares else None
    shown = sorted_by_key(tools) if declares else tools
    assert (declared or json.dumps(shown, ensure_ascii=False)) in tokenizer.decode(expected)
