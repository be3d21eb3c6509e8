"""openai-agents, through a script of what its users do; it speaks Responses by default."""

from pathlib import Path

from clients.client import Client, Server
from clients.openai_client import read

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
        variables={"OPENAI_DEFAULT_MODEL": "eagle3-demo"},
    ),
)
