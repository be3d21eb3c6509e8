"""A file of conversations that grows line by line, and can be resumed after a kill."""

import json
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

from serve.train.data import Records
from serve.train.regenerate.asking import Answered, Unanswered

LEFT_OUT = ".left_out.jsonl"


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
