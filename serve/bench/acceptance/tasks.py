"""Tasks whose answers show how much of a draft is accepted: JSONL files of one's own, or the
embedded held-out prompts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve.bench.common.held_out import HeldOutPrompt

ChatMessage = Mapping[str, Any]
QUESTIONS = ("prompt", "question", "problem")
"""Names that published question lists give to what the user says."""


@dataclass(frozen=True)
class Task:
    """A conversation as it begins, and what the user says after each answer."""

    category: str
    messages: tuple[ChatMessage, ...]
    later: tuple[str, ...] = ()
    tools: tuple[Any, ...] = ()


def read_tasks(directory: str | Path, per_category: int | None = None) -> list[Task]:
    """The tasks of every *.jsonl file, by category in the order of files; at most so many each.

    A line is an object with `prompt` (or `question`, `problem`), `turns` or `messages`; `category`
    is the file's name unless it has one. Raises ValueError, naming the line, for anything else.
    """
    files = sorted(Path(directory).glob("*.jsonl"))
    if not files:
        raise ValueError(f"--data: {directory} has no .jsonl file")
    found: dict[str, list[Task]] = {}
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                task = _read(line, f"{file}:{number}", file.stem)
                found.setdefault(task.category, []).append(task)
    if not found:
        raise ValueError(f"--data: the files of {directory} are empty")
    return [task for tasks in found.values() for task in tasks[:per_category]]


def held_out_tasks(prompts: Sequence[HeldOutPrompt]) -> list[Task]:
    """The embedded held-out prompts."""
    return [
        Task(p.category, tuple(p.conversation.prompt), tools=tuple(p.conversation.tools))
        for p in prompts
    ]


def _read(line: str, place: str, stem: str) -> Task:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place} is not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: a task must be an object; got {line[:60]}")
    category = str(entry.get("category") or stem)
    if messages := entry.get("messages"):
        return Task(category, _begun(messages, place), tools=tuple(entry.get("tools") or ()))
    turns = entry.get("turns") or [entry[name] for name in QUESTIONS if entry.get(name)][:1]
    if not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{place}: a task needs `prompt`, `turns` or `messages`, made of text")
    return Task(category, ({"role": "user", "content": turns[0]},), tuple(turns[1:]))


def _begun(messages: Sequence[ChatMessage], place: str) -> tuple[ChatMessage, ...]:
    """Without an answer at the end: that is for the model to give."""
    users = [i for i, message in enumerate(messages) if message.get("role") in ("user", "tool")]
    if not users:
        raise ValueError(f"{place}: `messages` has none of a user")
    return tuple(messages[: users[-1] + 1])
