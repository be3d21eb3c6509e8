"""An agent's conversation of thirty turns with tools, replayed through all three protocols.

A script answers. Each client sends back what it was given in its protocol's own form, so that
the prompts are equal only if nothing is lost on the way there and back.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import anthropic
import pytest
from called_tools import saying
from chat_tokenizers import MINIMAX_TEMPLATE, kimi
from fake_server import Served, served_by
from oracle_files import golden_json
from scripted_engine import ScriptedEngine

from convert.text.chat_template import compile_template
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


def results(names: list[str], turn: int) -> list[str]:
    return [f"{name} {turn}: fine ü" for name in names]


def through_chat(server: Served) -> None:
    tools = [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in NAMES]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    calls: list[Any] = []
    for turn in range(TURNS):
        said = results([call.function.name for call in calls], turn)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(calls, said, strict=True)
        ] or [{"role": "user", "content": f"Bed {turn}?"}]
        given: dict[str, Any] = {"messages": messages, "tools": tools, "extra_body": THINKS}
        message = (
            server.openai.chat.completions.create(model="fake", max_tokens=500, **OPTIONS, **given)
            .choices[0]
            .message
        )
        calls = list(message.tool_calls or ())
        messages.append(message.model_dump(exclude_none=True))


def through_messages(server: Served) -> None:
    client = anthropic.Anthropic(base_url=str(server.http.base_url), api_key="none", max_retries=0)
    tools: Any = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    messages: list[Any] = []
    calls: list[Any] = []
    for turn in range(TURNS):
        said = results([call.name for call in calls], turn)
        content = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in zip(calls, said, strict=True)
        ] or f"Bed {turn}?"
        messages.append({"role": "user", "content": content})
        given: dict[str, Any] = {
            "messages": messages,
            "tools": tools,
            "extra_body": THINKS | OPTIONS,
        }
        message = client.messages.create(model="fake", max_tokens=500, system=SYSTEM, **given)
        calls = [block for block in message.content if block.type == "tool_use"]
        messages.append({"role": "assistant", "content": message.content})


def through_responses(server: Served) -> None:
    tools: list[Any] = [{"type": "function", "name": n, "parameters": SCHEMA} for n in NAMES]
    items: list[Any] = []
    calls: list[Any] = []
    for turn in range(TURNS):
        said = results([call.name for call in calls], turn)
        items += [
            {"type": "function_call_output", "call_id": call.call_id, "output": text}
            for call, text in zip(calls, said, strict=True)
        ] or [{"role": "user", "content": f"Bed {turn}?"}]
        given: dict[str, Any] = {"input": items, "tools": tools, "extra_body": THINKS, **OPTIONS}
        response = server.openai.responses.create(
            model="fake", max_output_tokens=500, instructions=SYSTEM, **given
        )
        calls = [item for item in response.output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True) for item in response.output]


def through_stored_responses(server: Served) -> None:
    tools: list[Any] = [{"type": "function", "name": n, "parameters": SCHEMA} for n in NAMES]
    last: dict[str, Any] = {}
    calls: list[Any] = []
    for turn in range(TURNS):
        said = results([call.name for call in calls], turn)
        items: list[Any] = [
            {"type": "function_call_output", "call_id": call.call_id, "output": text}
            for call, text in zip(calls, said, strict=True)
        ] or [{"role": "user", "content": f"Bed {turn}?"}]
        given: dict[str, Any] = {"input": items, "tools": tools, "extra_body": THINKS, **OPTIONS}
        response = server.openai.responses.create(
            model="fake", max_output_tokens=500, instructions=SYSTEM, **last, **given
        )
        calls = [item for item in response.output if item.type == "function_call"]
        last = {"previous_response_id": response.id}


@pytest.fixture
def garden() -> Iterator[Callable[[Callable[[Served], None]], list[Any]]]:
    """Runs a conversation and returns what the engine was asked."""

    def run(conversation: Callable[[Served], None]) -> list[Any]:
        engine = Garden()
        model = ModelInfo(("fake",), "/models/fake", CONTEXT)
        with served_by(engine, kimi(), model=model) as server:
            conversation(server)
        return engine.taken

    yield run


def test_thirty_turns_with_tools_are_the_same_requests_through_every_protocol(garden: Any) -> None:
    expected = garden(through_chat)
    assert len(expected) == TURNS
    first = kimi().decode(list(expected[0][0]))
    assert '"bed"' in first and first.endswith("<think>")
    for conversation in (through_messages, through_responses, through_stored_responses):
        asked = garden(conversation)
        for turn, (one, other) in enumerate(zip(asked, expected, strict=True)):
            texts = [kimi().decode(list(prompt)) for prompt, _ in (one, other)]
            assert texts[0] == texts[1], (conversation.__name__, turn)
            assert one == other, (conversation.__name__, turn)


DECLARED = "{{ tools_ts_str or tools | tojson }}"
TOOLS = {case["name"]: case["tools"] for case in golden_json("kimi_tools")}


@pytest.mark.parametrize("name", ["shell", "references", "sorting", "unicode", "one_of"])
@pytest.mark.parametrize("template", [DECLARED, MINIMAX_TEMPLATE])
def test_the_same_tools_are_the_same_prompt_through_every_protocol(
    name: str, template: str
) -> None:
    """Declared where the template reads declarations, in the client's own order elsewhere."""
    compiled = compile_template(template, "the test's")
    tokenizer = replace(kimi(), template=compiled, template_text=template)
    functions = [tool["function"] for tool in TOOLS[name]]
    tools = [{"type": "function", "function": function} for function in functions]
    renamed = [{"input_schema" if k == "parameters" else k: f[k] for k in f} for f in functions]
    asked: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}
    expected = tokenizer.encode_chat(asked["messages"], tools=tools)
    engine, model = saying("Hello."), ModelInfo(("fake",), "/models/fake", CONTEXT)
    engine.max_model_len = CONTEXT
    with served_by(engine, tokenizer, model=model) as server:

        def prompt(path: str, **body: Any) -> list[int]:
            answer = server.http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json().get("tokens") or [*engine.requests[-1].prompt_ids]

        assert prompt("/tokenize", **asked, tools=tools) == expected
        assert prompt("/v1/chat/completions", **asked, tools=tools) == expected
        assert prompt("/v1/messages", **asked, tools=renamed) == expected
        flat = [{"type": "function", **function} for function in functions]
        assert prompt("/v1/responses", input="Hi.", tools=flat) == expected
        body = {"messages": asked["messages"], "tools": renamed}
        counted = server.http.post("/v1/messages/count_tokens", json=body).json()
        assert counted == {"input_tokens": len(expected)}
    declared = declare_tools(sorted_by_key(tools)) if template == DECLARED else None
    shown = sorted_by_key(tools) if template == DECLARED else tools
    assert (declared or json.dumps(shown, ensure_ascii=False)) in tokenizer.decode(expected)
