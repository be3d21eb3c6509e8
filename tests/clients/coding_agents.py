"""Coding agents from npm, unmodified, through a loop of tools with a scripted model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clients.client import Counts
from clients.environments import make_node_environment
from clients.runs import Run, run_logged
from clients.scripted_model import ANSWER, MODEL, QUESTION, RESULT, scripted_server


@dataclass(frozen=True)
class Agent:
    """package: with its version, as npm installs it. command: (address) -> argv, whose first is
    its program; variables: (address, empty home) -> what it finds in its environment."""

    name: str
    package: str
    command: Callable[[str], list[str]]
    variables: Callable[[str, Path], dict[str, str]]


def _claude(url: str) -> list[str]:
    return ["claude", "-p", QUESTION, "--allowedTools", "Bash", "--model", MODEL]


def _claude_variables(url: str, home: Path) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CONFIG_DIR": str(home)}


def _codex(url: str) -> list[str]:
    provider = f'{{name="ours",base_url="{url}/v1",env_key="OURS",wire_api="responses"}}'
    settings = ["-c", f"model_providers.ours={provider}", "-c", "model_provider=ours"]
    free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return ["codex", "exec", *free, *settings, "-m", MODEL, QUESTION]


AGENTS = (
    Agent(
        "claude-code (/v1/messages)",
        "@anthropic-ai/claude-code@2.1.197",
        _claude,
        _claude_variables,
    ),
    Agent(
        "codex (/v1/responses)",
        "@openai/codex@0.169.0",
        _codex,
        lambda url, home: {"OURS": "none", "CODEX_HOME": str(home)},
    ),
)


def run_agent(agent: Agent, environments: Path, scratch: Path) -> Run:
    """Asks it once: it must run the command that the model calls for, and say what came out."""
    home, work = scratch / "home", scratch / "work"
    home.mkdir(parents=True)
    work.mkdir()
    programs = make_node_environment([agent.package], environments) / "node_modules" / ".bin"
    log = scratch / "log"
    with scripted_server() as server:
        argv = agent.command(server.url)
        variables = {"HOME": str(home), **agent.variables(server.url, home)}
        status, seconds = run_logged(programs, argv, work, log, variables)
    answer = work / "answer.txt"
    wrote = answer.exists() and answer.read_text().strip() == RESULT
    said = ANSWER in log.read_text(errors="replace")
    counts = Counts(wrote + said, 2 - wrote - said)
    return Run(agent.name, agent.package.rpartition("@")[2], argv, status, seconds, counts)
