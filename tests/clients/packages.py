"""Libraries of the protocols, each through a script of its usual calls."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from clients.client import Client, Counts, Server
from clients.environments import make_node_environment

DEFAULT_MODEL = "gpt-5.6-luna"
"""Model that openai-agents asks for by default, with its settings; the server has this name too."""
SCRIPTS = Path(__file__).with_name("protocols")
AI_SDK = ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "zod@4.6.7")


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
OF_A_SCRIPT = (
    _client("langchain-anthropic", "protocols", ""),
    replace(
        _client("litellm", "protocols", ""),
        name="litellm: chat, messages, responses",
        variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
)
"""Clients that need a model that calls their tools: the scripted one."""


def ai_sdk(environments: Path) -> Client:
    """The AI SDK in Node.js, installed in npm's environment. It needs the scripted model too."""
    home, node = make_node_environment(AI_SDK, environments), shutil.which("node") or "node"

    def command(server: Server, results: Path) -> list[str]:
        return [node, str(SCRIPTS / "with_ai_sdk.mjs"), str(home), server.url, "result.json"]

    name, _, version = AI_SDK[1].rpartition("@")
    return Client(name, "", "", command, read, version=version)
