"""Steps of a protocol client, and its report.

Runs in the client's own environment: nothing of ours is imported. argv: the server's address, and
the file to write.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

MODEL = "eagle3-demo"
GREETING = "Notify hello."
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


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = "How is the weather in Oslo?"
WINDY = '{"celsius": 7, "sky": "windy"}'


def get_weather(city: str) -> str:
    """Weather in a city"""
    return WINDY


def run(client: Any, *steps: Callable[[Any], None]) -> None:
    """Write to the file argv[2] what became of each step: `completed` or its error."""
    outcome = {}
    for step in steps:
        try:
            step(client)
            outcome[step.__name__] = "completed"
        except Exception as error:
            outcome[step.__name__] = f"{type(error).__name__}: {error}"
    with open(sys.argv[2], "w") as file:
        json.dump(outcome, file, indent=1)
