"""A server with a scripted model: it calls a tool, then says what came out."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from chat_tokenizers import kimi
from clients.client import Server
from fake_server import served_by
from scripted_engine import AnyGrammars, ScriptedEngine

from eagle3_jax.engine import Request
from serve.demo import demo_target_dir
from serve.openai.service import ModelInfo

CONTEXT = 2**18
MODEL = "eagle3-demo"
QUESTION = "How much is 6 times 7? Let the shell work it out."
COMMAND = "echo product=$((6 * 7)) | tee answer.txt"
RESULT = "product=42"
ANSWER = f"It says {RESULT}."
ARGUMENTS = {
    "Bash": {"command": COMMAND, "description": "multiplies"},
    "exec_command": {"cmd": COMMAND},
    "multiply": {"a": 6, "b": 7},
    "Product": {"product": 42},
}
"""The tools that the script knows, shells of agents among them, and what it calls them with."""


@dataclass
class ScriptedModel(ScriptedEngine):
    """Reads of its prompt which of the tools there is, and whether it has run."""

    max_model_len: int = CONTEXT
    step_s: float = 0.005
    """As a model's: outputs that come at once are one piece of a stream."""

    def answer(self, request: Request, sibling: int) -> Sequence[int]:
        """Return the text to say, after a thought if the prompt ends in one."""
        prompt = self.tokenizer.decode(request.prompt_ids)
        thought = "I multiply.</think>" * prompt.endswith("<think>")
        return self.tokenizer.encode(thought + _said(prompt), add_special=True)


def _said(prompt: str) -> str:
    if RESULT in prompt:
        return ANSWER
    tools = [name for name in ARGUMENTS if f'"{name}"' in prompt]
    if tools and "6 times 7" in prompt:
        return _call(tools[0])
    return '{"product": 42}' if "Answer as JSON" in prompt else "Hello there."


def _call(tool: str) -> str:
    return (
        f"I ask.<|tool_calls_section_begin|><|tool_call_begin|>functions.{tool}:0"
        f"<|tool_call_argument_begin|>{json.dumps(ARGUMENTS[tool])}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )


@contextmanager
def scripted_server() -> Iterator[Server]:
    model = ModelInfo((MODEL,), "/models/scripted", CONTEXT)
    with served_by(ScriptedModel(), kimi(), grammars=AnyGrammars(), model=model) as server:
        yield Server(str(server.http.base_url).rstrip("/"), MODEL, demo_target_dir())
