"""lm_eval: generation, choice by log-likelihood, rolling log-likelihood, and chat."""

import json
from pathlib import Path

from clients.arithmetic_tasks import write_tasks
from clients.client import Client, Counts, Server

MODES = {
    "generation": ("local-completions", "worked_arithmetic", "/v1/completions"),
    "choice": ("local-completions", "arithmetic_choice", "/v1/completions"),
    "rolling": ("local-completions", "arithmetic_rolling", "/v1/completions"),
    "chat": ("local-chat-completions", "arithmetic_chat", "/v1/chat/completions"),
}
PROMPTS = 40


def command(mode: str, server: Server, results: Path, prompts: int = PROMPTS) -> list[str]:
    """The bare command of the MLA draft's card, with a task that needs no network.

    Chat needs to be told the model's name in lm_eval itself, and that a template applies.
    """
    model, task, path = MODES[mode]
    write_tasks(results / "tasks", prompts)
    argv = ["lm_eval", "--model", model, "--model_args", f"base_url={server.url}{path}"]
    argv += ["--tasks", task, "--include_path", "tasks", "--batch_size", "16"]
    argv += ["--output_path", "out", "--log_samples"]
    return [*argv, "--apply_chat_template"] if mode == "chat" else argv


def read(results: Path) -> Counts:
    """A sample that was not answered has no response."""
    (result,) = results.glob("out/**/results_*.json")
    samples = json.loads(result.read_text())["n-samples"]
    asked = sum(task["original"] for task in samples.values())
    lines = [
        json.loads(line)
        for file in results.glob("out/**/samples_*.jsonl")
        for line in file.read_text().splitlines()
    ]
    answered = sum(all(response not in ("", [], None) for response in s["resps"]) for s in lines)
    return Counts(answered, asked - answered)


def accuracy(results: Path) -> float:
    """The share of right answers."""
    (result,) = results.glob("out/**/results_*.json")
    (scores,) = json.loads(result.read_text())["results"].values()
    return next(v for k, v in scores.items() if k.startswith(("exact_match,", "acc,")))


def _client(mode: str) -> Client:
    return Client(
        f"lm_eval {MODES[mode][0]}, {mode}",
        "lm_eval",
        "lm_eval",
        lambda server, results: command(mode, server, results),
        read,
        {"HF_HUB_OFFLINE": "1"},
    )


CLIENTS = tuple(map(_client, MODES))
