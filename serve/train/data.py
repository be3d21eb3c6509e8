"""Conversations from a file or a data set as samples, each found by its number."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from eagle3_jax.training.packing import Sample
from serve.demo.recipe import MakeSamples


class Records(Protocol):
    """Conversations `{"messages": [...], "tools": [...]}` by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class JsonLines:
    """The lines of a JSONL file that are not blank, read one at a time."""

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
        """What an error calls a record."""
        return f"{self.path}, line {self.numbers[index]}"


class HubRecords:
    """A data set of the Hugging Face hub, or local files that `datasets` reads."""

    def __init__(self, name: str, split: str) -> None:
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise ValueError(
                f"--data {name}: what is no JSONL file needs the extra `datasets`"
            ) from error
        self.name, self._rows = name, load_dataset(name, split=split)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return without_nulls(self._rows[int(index)])

    def place(self, index: int) -> str:
        """What an error calls a record."""
        return f"{self.name}, row {index}"


def without_nulls(value: Any) -> Any:
    """A row as it was written: columns give every row each field that any row has."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def open_records(data: str, split: str) -> JsonLines | HubRecords:
    """A JSONL file, or whatever `datasets` knows by this name; ValueError or OSError if none."""
    path = Path(data)
    return JsonLines(path) if path.suffix in (".jsonl", ".json") else HubRecords(data, split)


class ConversationSamples:
    """The samples of all conversations that fit into a row.

    Every record is read once to know which those are. left_out: how many are longer.
    """

    def __init__(self, records: JsonLines | HubRecords, make: MakeSamples, longest: int) -> None:
        """Raises ValueError naming the record that is no conversation, and when none is left."""
        self._records, self._make = records, make
        self._places: list[tuple[int, int]] = []
        self._answers = list[np.ndarray]()
        self.left_out = 0
        for index in range(len(records)):
            for number, sample in enumerate(self._samples(index)):
                if len(sample.token_ids) > longest:
                    self.left_out += 1
                    continue
                self._places.append((index, number))
                wanted = np.asarray(sample.token_ids)[np.asarray(sample.wanted, bool)]
                self._answers.append(np.stack(np.unique(wanted, return_counts=True)))
        if not self._places:
            raise ValueError(f"{records.place(0)} and on: no sample of at most {longest} tokens")

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Sample:
        record, number = self._places[index]
        return self._samples(record)[number]

    def counts(self, vocab_size: int) -> np.ndarray:
        """How often each id occurs in all answers."""
        found = np.zeros(vocab_size, np.int64)
        for ids, times in self._answers:
            found[ids] += times
        return found

    def _samples(self, index: int) -> list[Sample]:
        try:
            record = self._records[index]
            return self._make(record["messages"], record.get("tools") or ())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self._records.place(index)}: expected an object with `messages`, got: {error}"
            ) from error


def prompts_of(records: Records, count: int) -> list[tuple[Sequence[Any], Sequence[Any]]]:
    """Messages before the last answer, and tools, of the first conversations that have one."""
    found = []
    for index in range(len(records)):
        record = records[index]
        messages = record["messages"]
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if answers and len(found) < count:
            found.append((messages[: answers[-1]], record.get("tools") or ()))
    return found
