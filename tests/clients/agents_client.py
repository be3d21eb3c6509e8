"""openai-agents, through a script of what its users do; it speaks Responses by default, and to the
model that it takes by default."""

from pathlib import Path

from clients.client import Client, Server
from clients.openai_client import read

DEFAULT_MODEL = "gpt-5.6-luna"
"""What the version in clients.environments asks for where nobody names a model, with the settings
that it has for it; the server has this name beside its own."""
SCRIPT = Path(__file__).with_name("agents_script.py")


def command(server: Server, results: Path) -> list[str]:
    return ["python", str(SCRIPT), f"{server.url}/v1", "result.json"]


CLIENTS = (
    Client(
        "openai-agents",
        "protocols",
        "openai-agents",
        command,
        read,
    ),
)
