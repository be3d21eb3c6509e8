"""Tasks for `eagle3-bench accept`: from the user's files or the embedded held-out prompts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_tools.bench.acceptance.picture_questions import picture_message, read_entries
from eagle3_tools.make_demo.corpus import CATEGORIES, Conversation, held_out_prompts

ChatMessage = Mapping[str, Any]
QUESTIONS = ("prompt", "question", "problem")
"""Names of the user's text in published question lists."""


@dataclass(frozen=True)
class Task:
    """First messages of a conversation, and `later` user messages, one after each answer.

    `expected` is the correct answer to the first question, or None if it is not judged.
    `conversation` is that of the embedded corpus, which has rules of its own.
    """

    category: str
    messages: tuple[ChatMessage, ...]
    later: tuple[str, ...] = ()
    tools: tuple[Any, ...] = ()
    expected: str | None = None
    conversation: Conversation | None = None


def read_tasks(
    directory: str | Path, per_category: int | None = None, *, drop_options: bool = False
) -> list[Task]:
    """Read at most `per_category` tasks of each category from *.jsonl and *.parquet files.

    A line or row is an object with `image`, `question` and `answer`, or with `prompt` (or
    `question`, `problem`), `turns` or `messages`. `category` defaults to the file's name.
    `drop_options` cuts image questions before their options (see `picture_message`), which are then
    not judged. Raises ValueError, naming the line, for anything else.
    """
    found: dict[str, list[Task]] = {}
    for entry, place, stem in read_entries(directory):
        if not isinstance(entry, dict):
            raise ValueError(f"{place}: a task must be an object; got {entry!r:.60}")
        tasks = found.setdefault(str(entry.get("category") or stem), [])
        # Skipped entries must not cost reading their images.
        if per_category is None or len(tasks) < per_category:
            tasks.append(_read(entry, place, stem, Path(directory), drop_options))
    if not found:
        raise ValueError(f"--data: the files of {directory} are empty")
    return [task for tasks in found.values() for task in tasks]


def held_out_tasks(per_category: int) -> list[Task]:
    """Return the first held-out prompts of every category of the embedded corpus."""
    return [
        Task(name, tuple(c.prompt), tools=tuple(c.tools), conversation=c)
        for name in CATEGORIES
        for c in held_out_prompts(name, per_category)
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
    """Return the messages up to the last one of the user or a tool, without a final answer."""
    users = [i for i, message in enumerate(messages) if message.get("role") in ("user", "tool")]
    if not users:
        raise ValueError(f"{place}: `messages` has none of a user")
    return tuple(messages[: users[-1] + 1])


END_OF_THINK = "</think>"
LETTER = "([A-H])"
STATED = (
    re.compile(rf"\\boxed\{{\W*(?:\\text\{{)?{LETTER}\b"),
    re.compile(rf"(?i:\banswer\b\W*(?:is\b\W*)?(?:option\b\W*)?){LETTER}\b"),
    re.compile(rf"(?i:\boption\b)\W*{LETTER}\b"),
    re.compile(rf"\({LETTER}\)"),
)
"""Patterns that state a choice. The first pattern that matches counts, and its last match."""
ALONE = re.compile(rf"\W*{LETTER}\s*(?:[).:,*]|$)")
"""A choice at the beginning of an answer: `B`, `(B)`, `B. two cats`, but not `A cat`."""


def is_right(text: str, expected: str) -> bool:
    """Return whether the text after the reasoning is the expected answer.

    If `expected` is one letter from A to H, the choice that the text states is compared. Otherwise
    the words are compared, ignoring case, whitespace and a final full stop.
    """
    said = text.rpartition(END_OF_THINK)[2].strip()
    if re.fullmatch(LETTER, expected.strip()):
        return chosen(said) == expected.strip()
    return _words(said) == _words(expected)


def chosen(text: str) -> str | None:
    """Return the letter that a text chooses, or None."""
    if begins := ALONE.match(text):
        return begins[1]
    found = (pattern.findall(text) for pattern in STATED)
    return next((letters[-1] for letters in found if letters), None)


def _words(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()
