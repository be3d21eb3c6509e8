"""Libraries of a protocol, unmodified, over the scripted model: a script of steps for each."""

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from clients.client import Counts
from clients.environments import make_environment, make_node_environment
from clients.runs import Run, version_of
from clients.scripted_model import scripted_server

SCRIPTS = Path(__file__).with_name("protocols")
TIMEOUT_S = 120.0
AI_SDK = ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "zod@4.6.7")


@dataclass(frozen=True)
class Library:
    """distribution: on PyPI, whose version is reported; script: in `protocols`."""

    name: str
    distribution: str
    script: str


LIBRARIES = (
    Library("langchain-anthropic", "langchain-anthropic", "with_langchain_anthropic.py"),
    Library("litellm: chat, messages, responses", "litellm", "with_litellm.py"),
)


def run_library(library: Library, environments: Path, scratch: Path) -> Run:
    """All steps of its script, in the environment of these libraries."""
    python = make_environment("protocols", environments) / "python"
    version = version_of(python.parent, library.distribution)
    return run_script(library.name, version, [str(python), str(SCRIPTS / library.script)], scratch)


def run_ai_sdk(environments: Path, scratch: Path) -> Run:
    """The same in Node.js."""
    home = make_node_environment(AI_SDK, environments)
    command = ["node", str(SCRIPTS / "with_ai_sdk.mjs"), str(home)]
    return run_script("@ai-sdk/openai", AI_SDK[1].rpartition("@")[2], command, scratch)


def run_script(name: str, version: str, command: list[str], scratch: Path) -> Run:
    """Counts the steps that completed; what they said is in `scratch`."""
    scratch.mkdir(parents=True)
    result = scratch / "result.json"
    begin = time.monotonic()
    with scripted_server() as url, (scratch / "log").open("wb") as log:
        done = subprocess.run(
            [*command, url, str(result)],
            env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
        )
    said = json.loads(result.read_text()) if result.exists() else {}
    completed = sum(value == "completed" for value in said.values())
    counts = Counts(completed, len(said) - completed)
    return Run(name, version, command, done.returncode, time.monotonic() - begin, counts)
