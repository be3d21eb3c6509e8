"""openai, openai-agents and anthropic, each through a script of its usual calls."""

import json
from pathlib import Path

from clients.client import Client, Counts, Server

DEFAULT_MODEL = "gpt-5.6-luna"
"""Model that openai-agents asks for by default, with its settings; the server has this name too."""
SCRIPTS = Path(__file__).with_name("protocols")


def read(results: Path) -> Counts:
    """A step that raised has its error in place of `completed`."""
    outcome = json.loads((results / "result.json").read_text())
    completed = sum(said == "completed" for said in outcome.values())
    return Counts(completed, len(outcome) - completed)


def _client(name: str, environment: str, path: str) -> Client:
    script = str(SCRIPTS / f"with_{name.replace('-', '_')}.py")

    def command(server: Server, results: Path) -> list[str]:
        return ["python", script, f"{server.url}{path}", "result.json"]

    return Client(name, environment, name, command, read)


OPENAI = _client("openai", "lm_eval", "/v1")
ANTHROPIC = _client("anthropic", "protocols", "")
CLIENTS = (OPENAI, _client("openai-agents", "protocols", "/v1"), ANTHROPIC)
