"""OpenAI's own package, through a script of its usual calls."""

import json
from pathlib import Path

from clients.client import Client, Counts, Server

SCRIPT = Path(__file__).with_name("openai_script.py")


def command(server: Server, results: Path) -> list[str]:
    return ["python", str(SCRIPT), f"{server.url}/v1", "result.json"]


def read(results: Path) -> Counts:
    """A step that raised has its error in place of `completed`."""
    outcome = json.loads((results / "result.json").read_text())
    completed = sum(said == "completed" for said in outcome.values())
    return Counts(completed, len(outcome) - completed)


CLIENTS = (Client("openai", "lm_eval", "openai", command, read),)
