"""Read conversations from a file or data set as samples, each by number."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from eagle3_jax.training.packing import Sample

T = TypeVar("T")
Message = dict[str, Any]
MakeSamples = Callable[[Sequence[Message], Sequence[Message]], list[Sample]]
"""A function that returns the samples of a conversation's messages and tools."""


class JsonLines:
    """The non-blank lines of a JSONL file, read one at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self._starts, self.numbers = path, list[int](), list[int]()
        with path.open("rb") as file:
            start = 0
            for number, line in enumerate(file, start=1):
                if line.strip():
                    self._starts.append(start)
                    self.numbers.append(number)
                start += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Any:
        with self.path.open("rb") as file:
            file.seek(self._starts[index])
            return json.loads(file.readline())

    def place(self, index: int) -> str:
        """Return a record's name in errors."""
        return f"{self.path}, line {self.numbers[index]}"


class HubRecords:
    """A data set of the Hugging Face hub, or local files that `datasets` reads."""

    def __init__(self, name: str, split: str) -> None:
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise ValueError(
                f"--data {name} is not a JSONL file; data sets need the extra `datasets`"
            ) from error
        self.name, self._rows = name, load_dataset(name, split=split)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return without_nulls(self._rows[int(index)])

    def place(self, index: int) -> str:
        """Return a record's name in errors."""
        return f"{self.name}, row {index}"


def without_nulls(value: Any) -> Any:
    """Remove the nulls of a row: columns give every row each field that any row has."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


Records = JsonLines | HubRecords
"""Conversations `{"messages": [...], "tools": [...]}` by number."""


def open_records(data: str, split: str) -> Records:
    """Open a JSONL file, or a data set of this name; ValueError or OSError if there is none."""
    path = Path(data)
    return JsonLines(path) if path.suffix in (".jsonl", ".json") else HubRecords(data, split)


class ConversationSamples:
    """The samples of all conversations that fit into a row.

    All records are read once to find them. `lengths` has their tokens, int32. `left_out` counts
    longer samples. `has_images` is True if a sample has an image. `digest` is a hexadecimal SHA-256
    of their content.
    """

    def __init__(self, records: Records, make: MakeSamples, longest: int) -> None:
        """Read the records; ValueError for one that is no conversation, or if no sample is left."""
        self._records, self._make = records, make
        self._counts, self.left_out, self.has_images = np.zeros(0, np.int64), 0, False
        found, content = list[tuple[int, int, int]](), hashlib.sha256()
        for index in range(len(records)):
            for number, sample in enumerate(self._samples(index)):
                if (length := len(sample.token_ids)) > longest:
                    self.left_out += 1
                else:
                    found.append((index, number, length))
                    self.has_images |= bool(sample.images)
                    self._count(sample)
                    for part in _content(sample):
                        content.update(part)
        self.digest = content.hexdigest()
        if not found:
            raise ValueError(f"{records.place(0)} and on: no sample of at most {longest} tokens")
        self._places, self._numbers, self.lengths = np.array(found, np.int32).T

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Sample:
        return self._samples(int(self._places[index]))[self._numbers[index]]

    def counts(self, vocab_size: int) -> np.ndarray:
        """Count each id in all answers; the result is longer than `vocab_size` for larger ids."""
        return np.pad(self._counts, (0, max(vocab_size - len(self._counts), 0)))

    def _count(self, sample: Sample) -> None:
        answered = np.asarray(sample.token_ids)[np.asarray(sample.wanted, bool)]
        size = max(len(self._counts), int(answered.max(initial=0)) + 1)
        self._counts = np.pad(self._counts, (0, size - len(self._counts)))
        np.add.at(self._counts, answered, 1)

    def _samples(self, index: int) -> list[Sample]:
        return read_conversation(self._records, index, self._make)


def _content(sample: Sample) -> Iterator[bytes]:
    yield len(sample.token_ids).to_bytes(8)
    yield np.asarray(sample.token_ids, np.int32).tobytes()
    yield np.asarray(sample.wanted, bool).tobytes()
    yield from (item.digest for item in sample.images)


def read_conversation(
    records: Records, index: int, read: Callable[[Sequence[Any], Sequence[Any]], T]
) -> T:
    """Return `read` of a record's messages and tools; ValueError names the record."""
    try:
        record = records[index]
        return read(record["messages"], record.get("tools") or ())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{records.place(index)}: expected an object with `messages`, got: {error}"
        ) from error


def prompts_of(
    records: Records, count: int, check: Callable[[Any], None]
) -> list[tuple[Sequence[Any], Sequence[Any]]]:
    """Return messages before the last answer, and tools, of the first answered conversations.

    `check` raises ValueError for messages that cannot be asked; the error then names the record.
    """

    def prompt(messages: Sequence[Any], tools: Sequence[Any]) -> Any:
        check(messages)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        return (messages[: answers[-1]], tools) if answers else None

    found = (read_conversation(records, index, prompt) for index in range(len(records)))
    return list(islice(filter(None, found), count))
