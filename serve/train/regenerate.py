"""Have a served model answer conversations again: concurrent requests, with progress.

The answers are a file that grows line by line, and can be resumed after a kill.
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from serve.train.asking import Answered, Asking, Unanswered
from serve.train.data import Records, open_records, read_conversation

LEFT_OUT = ".left_out.jsonl"


def regenerate(options: argparse.Namespace) -> bool:
    """Ask `options.url`, and write its answers to `options.output`; False if interrupted."""
    records = open_records(options.data, options.split)
    with AnswersFile(options.output, records, resume=options.resume) as file:
        try:
            asyncio.run(_ask_all(options, records, file))
        except KeyboardInterrupt:
            return False
        print(file.summary)
        if not file.answers:
            raise ValueError(f"{options.output}: no conversation was answered")
    return True


async def _ask_all(options: argparse.Namespace, records: Records, file: "AnswersFile") -> None:
    count = min(len(records), options.conversations or len(records))
    waiting = [index for index in range(count) if index not in file.done]
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, TextColumn("{task.description}")) as progress:
        task = progress.add_task(file.summary, total=count, completed=count - len(waiting))
        turns = iter(waiting)

        async def work(asking: Asking, turns: Iterator[int]) -> None:
            for index in turns:  # shared: each worker takes the next
                messages, tools = read_conversation(records, index, _as_given)
                file.write(index, await asking.converse(index, messages, tools), tools)
                progress.update(task, advance=1, description=file.summary)

        async with Asking.of(options) as asking:
            await asyncio.gather(*(work(asking, turns) for _ in range(options.concurrency)))


def _as_given(messages: Sequence[Any], tools: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    if not all(isinstance(message["role"], str) for message in messages):
        raise ValueError("a role that is no text")
    return list(messages), list(tools)


class AnswersFile:
    """A JSONL file for `eagle3-train draft --data`, and a second one of omitted conversations.

    `done` has the records in either file. A last line that a kill cut off is removed.
    """

    def __init__(self, path: Path, records: Records, *, resume: bool) -> None:
        """Open both files; ValueError for one that must not be resumed, or has other records."""
        self._left_out = path.with_name(path.name + LEFT_OUT)
        if not resume and any(_size(file) for file in (path, self._left_out)):
            raise ValueError(f"{path} is there; add --resume or name another --output")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.done, self.answers, self.tokens, self.reasons = set[int](), 0, 0, Counter[str]()
        for line in _whole_lines(path):
            self._check(path, line, records)
            self._count(line["index"], Answered(line["messages"], line["tokens"]))
        for line in _whole_lines(self._left_out):
            self._count(line["index"], Unanswered(line["reason"]))
        self._file, self._others = (
            file.open("a", buffering=1, encoding="utf-8") for file in (path, self._left_out)
        )

    def __enter__(self) -> "AnswersFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._others.close()

    def write(self, index: int, found: Answered | Unanswered, tools: Any) -> None:
        """Add the result for a record."""
        self._count(index, found)
        if isinstance(found, Unanswered):
            self._others.write(f"{json.dumps({'index': index, 'reason': found.reason})}\n")
            return
        line = {"index": index, **found._asdict(), **({"tools": list(tools)} if tools else {})}
        self._file.write(f"{json.dumps(line, ensure_ascii=False)}\n")

    @property
    def summary(self) -> str:
        """One line, with the reasons for omitted conversations."""
        text = f"{self.answers} conversations, {self.tokens:,} tokens of answers"
        reasons = (f"{count} left out: {reason}" for reason, count in self.reasons.most_common(3))
        return "; ".join([text, *reasons])

    def _count(self, index: int, found: Answered | Unanswered) -> None:
        self.done.add(index)
        if isinstance(found, Unanswered):
            self.reasons[found.reason] += 1
        else:
            self.answers += 1
            self.tokens += found.tokens

    def _check(self, path: Path, line: Any, records: Records) -> None:
        index = line["index"]
        if index >= len(records) or line["messages"][0] != records[index]["messages"][0]:
            raise ValueError(
                f"{path}: record {index} begins otherwise than that of --data; name another "
                "--output"
            )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _whole_lines(path: Path) -> list[Any]:
    """Return the lines of a file, after cutting off an incomplete last line."""
    if not path.exists():
        return []
    raw = path.read_bytes()
    end = raw.rfind(b"\n") + 1
    if end < len(raw):
        with path.open("r+b") as file:
            file.truncate(end)
    return [json.loads(line) for line in raw[:end].splitlines()]
