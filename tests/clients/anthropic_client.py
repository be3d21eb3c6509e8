"""Anthropic's own package, through a script of its usual calls."""

from pathlib import Path

from clients.client import Client, Server
from clients.openai_client import read

SCRIPT = Path(__file__).with_name("anthropic_script.py")


def command(server: Server, results: Path) -> list[str]:
    return ["python", str(SCRIPT), server.url, "result.json"]


CLIENTS = (Client("anthropic", "protocols", "anthropic", command, read),)
