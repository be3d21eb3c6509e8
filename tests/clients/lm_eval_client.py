"""lm_eval: generation, choice by log-likelihood, rolling log-likelihood, and chat."""

import json
from pathlib import Path
from typing import Any

from clients.arithmetic_tasks import write_tasks
from clients.client import Client, Counts, Server

MODES = {
    "generation": ("local-completions", "worked_arithmetic", "/v1/completions"),
    "choice": ("local-completions", "arithmetic_choice", "/v1/completions"),
    "rolling": ("local-completions", "arithmetic_rolling", "/v1/completions"),
    "chat": ("local-chat-completions", "arithmetic_chat", "/v1/chat/completions"),
}
PROMPTS = 40


def command(
    model: str, tasks: str, path: str, server: Server, results: Path, prompts: int = PROMPTS
) -> list[str]:
    """The bare command of the MLA draft's card, with tasks that need no network."""
    write_tasks(results / "tasks", prompts)
    argv = ["lm_eval", "--model", model, "--model_args", f"base_url={server.url}{path}"]
    argv += ["--tasks", tasks, "--include_path", "tasks", "--batch_size", "16"]
    argv += ["--output_path", "out", "--log_samples"]
    return [*argv, "--apply_chat_template"] if "chat" in model else argv


def read(results: Path) -> Counts:
    """A sample that was not answered has no response."""
    (result,) = results.glob("out/**/results_*.json")
    samples = json.loads(result.read_text())["n-samples"]
    asked = sum(task["original"] for task in samples.values())
    samples = read_samples(results)
    answered = sum(all(said not in ("", [], None) for said in s["resps"]) for s in samples)
    return Counts(answered, asked - answered)


def read_samples(results: Path) -> list[dict[str, Any]]:
    files = results.glob("out/**/samples_*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def accuracy(results: Path) -> float:
    (result,) = results.glob("out/**/results_*.json")
    scores = json.loads(result.read_text())["results"]["worked_arithmetic"]
    return scores["exact_match,last-line"]


def _client(mode: str) -> Client:
    return Client(
        f"lm_eval {MODES[mode][0]}, {mode}",
        "lm_eval",
        "lm_eval",
        lambda server, results: command(*MODES[mode], server, results),
        read,
        {"HF_HUB_OFFLINE": "1"},
    )


CLIENTS = tuple(map(_client, MODES))
