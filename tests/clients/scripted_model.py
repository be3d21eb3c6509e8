"""A server with a scripted model: it calls the agent's shell, then says what came out."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from chat_tokenizers import kimi
from fake_server import served_by
from scripted_engine import ScriptedEngine

from eagle3_jax.engine import Request
from serve.openai.service import ModelInfo

CONTEXT = 2**18
MODEL = "eagle3-demo"
QUESTION = "How much is 6 times 7? Let the shell work it out."
COMMAND = "echo product=$((6 * 7)) | tee answer.txt"
RESULT = "product=42"
SHELLS = {
    "Bash": {"command": COMMAND, "description": "multiplies"},
    "exec_command": {"cmd": COMMAND},
    "shell": {"command": ["bash", "-c", COMMAND]},
}
"""The shell of each agent -> the arguments it takes."""


@dataclass
class ScriptedModel(ScriptedEngine):
    """Reads of its prompt which shell there is, and whether the command has run."""

    max_model_len: int = CONTEXT

    def answer(self, request: Request, sibling: int) -> Sequence[int]:
        """A call, the answer, or a word for what an agent asks beside the conversation."""
        prompt = self.tokenizer.decode(request.prompt_ids)
        shells = [name for name in SHELLS if f'"{name}"' in prompt]
        if RESULT in prompt:
            said = f"The shell says {RESULT}."
        elif shells and QUESTION in prompt:
            said = _call(shells[0])
        else:
            said = "Sums"
        thinks = prompt.endswith("<think>")
        return self.tokenizer.encode("I multiply.</think>" * thinks + said, add_special=True)


def _call(shell: str) -> str:
    return (
        f"I ask the shell.<|tool_calls_section_begin|><|tool_call_begin|>functions.{shell}:0"
        f"<|tool_call_argument_begin|>{json.dumps(SHELLS[shell])}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )


@contextmanager
def scripted_server() -> Iterator[str]:
    """Its address."""
    model = ModelInfo((MODEL,), "/models/scripted", CONTEXT)
    with served_by(ScriptedModel(), kimi(), model=model) as server:
        yield str(server.http.base_url)
