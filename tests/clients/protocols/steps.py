"""What every client of a protocol is asked to do; runs in the client's own environment."""

import json
import sys
from collections.abc import Callable

MODEL = "eagle3-demo"
GREETING = "Say hello."
QUESTION = "How much is 6 times 7? Multiply with the tool."
STRUCTURED = "How much is 6 times 7? Answer as JSON."
HELLO = "Hello there."
ANSWER = "It says product=42."


def multiply(a: int, b: int) -> str:
    """Multiplies two integers.

    Args:
        a: the first
        b: the second
    """
    return f"product={a * b}"


PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def run(*steps: Callable[[str], None]) -> None:
    """argv: the server's address, and the file to write: of each step `completed` or its error."""
    outcome = {}
    for step in steps:
        try:
            step(sys.argv[1])
            outcome[step.__name__] = "completed"
        except Exception as error:
            outcome[step.__name__] = f"{type(error).__name__}: {error}"
    with open(sys.argv[2], "w") as file:
        json.dump(outcome, file, indent=1)
