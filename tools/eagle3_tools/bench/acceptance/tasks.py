"""Tasks whose answers show how much of a draft is accepted: files of one's own, or the embedded
held-out prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_tools.bench.acceptance.picture_questions import picture_message, read_entries
from eagle3_tools.bench.common.held_out import HeldOutPrompt

ChatMessage = Mapping[str, Any]
QUESTIONS = ("prompt", "question", "problem")
"""Names that published question lists give to what the user says."""


@dataclass(frozen=True)
class Task:
    """A conversation as it begins, and what the user says after each answer.

    expected: the right answer to the first question, None where it is not judged.
    """

    category: str
    messages: tuple[ChatMessage, ...]
    later: tuple[str, ...] = ()
    tools: tuple[Any, ...] = ()
    expected: str | None = None


def read_tasks(
    directory: str | Path, per_category: int | None = None, *, drop_options: bool = False
) -> list[Task]:
    """The tasks of every *.jsonl and *.parquet file, by category in the order of files; at most so
    many each.

    A line or row is an object with `image`, `question` and `answer`; or `prompt` (or `question`,
    `problem`), `turns` or `messages`. `category` is the file's name unless it has one.
    drop_options: of questions about images, see `picture_message`; their answers are then not
    judged. Raises ValueError, naming the line, for anything else.
    """
    found: dict[str, list[Task]] = {}
    for entry, place, stem in read_entries(directory):
        if not isinstance(entry, dict):
            raise ValueError(f"{place}: a task must be an object; got {entry!r:.60}")
        tasks = found.setdefault(str(entry.get("category") or stem), [])
        # Images that are not asked about are not read either.
        if per_category is None or len(tasks) < per_category:
            tasks.append(_read(entry, place, stem, Path(directory), drop_options))
    if not found:
        raise ValueError(f"--data: the files of {directory} are empty")
    return [task for tasks in found.values() for task in tasks]


def held_out_tasks(prompts: Sequence[HeldOutPrompt]) -> list[Task]:
    """The embedded held-out prompts."""
    return [
        Task(p.category, tuple(p.conversation.prompt), tools=tuple(p.conversation.tools))
        for p in prompts
    ]


def _read(
    entry: Mapping[str, Any], place: str, stem: str, directory: Path, drop_options: bool
) -> Task:
    category = str(entry.get("category") or stem)
    if entry.get("image") is not None:
        return _about_picture(entry, place, category, directory, drop_options)
    if messages := entry.get("messages"):
        return Task(category, _begun(messages, place), tools=tuple(entry.get("tools") or ()))
    turns = entry.get("turns") or [entry[name] for name in QUESTIONS if entry.get(name)][:1]
    if not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{place}: a task needs `prompt`, `turns` or `messages`, made of text")
    return Task(category, ({"role": "user", "content": turns[0]},), tuple(turns[1:]))


def _about_picture(
    entry: Mapping[str, Any], place: str, category: str, directory: Path, drop_options: bool
) -> Task:
    question, answer = entry.get("question"), entry.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str | None):
        raise ValueError(f"{place}: an `image` needs a `question`, and an `answer`, made of text")
    try:
        message = picture_message(entry["image"], question, directory, drop_options=drop_options)
    except (ValueError, OSError) as error:
        raise ValueError(f"{place}: {error}") from error
    return Task(category, (message,), expected=None if drop_options else answer)


def _begun(messages: Sequence[ChatMessage], place: str) -> tuple[ChatMessage, ...]:
    """Without an answer at the end: that is for the model to give."""
    users = [i for i, message in enumerate(messages) if message.get("role") in ("user", "tool")]
    if not users:
        raise ValueError(f"{place}: `messages` has none of a user")
    return tuple(messages[: users[-1] + 1])
