"""Features on disk: one atomically written file per group of samples."""

import argparse
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from convert.files.json_object import parse_object
from convert.hub.files import CONFIG, WEIGHT_SUFFIXES
from convert.store.manifest import MANIFEST_FILE
from convert.store.reader import is_store
from eagle3_jax.models.target import Target
from eagle3_jax.training.packing import Features, Sample

MANIFEST, PARTIAL = "features.json", ".partial"
LOOKED_AT = 2**20
"""Bytes at the start and end of a weight file that identify a target."""


@dataclass(frozen=True)
class Computed:
    """The settings that determine the bits of features; `target` is a digest of the target."""

    target: str
    aux_layer_ids: list[int]
    prefill_chunk: int
    quantize_activations: str
    dtype: str

    @classmethod
    def by(
        cls,
        options: argparse.Namespace,
        target: Target,
        aux_layer_ids: Sequence[int],
        checkpoint: Path,
    ) -> "Computed":
        """Return the settings of a command with these flags."""
        return cls(
            target_digest(checkpoint),
            list(aux_layer_ids),
            options.prefill_chunk,
            options.quantize_activations,
            target.dtype.name,
        )


@dataclass(frozen=True)
class Contents:
    """The content of a complete directory; `data` is a digest of the samples."""

    computed: Computed
    data: str
    samples: int
    file_samples: int

    @classmethod
    def read(cls, directory: Path) -> "Contents":
        """Read a directory's manifest; ValueError if it has none."""
        path = directory / MANIFEST
        if not path.is_file():
            raise ValueError(f"{directory} has no {MANIFEST}: `eagle3-train features` makes one")
        try:
            found = parse_object(path.read_bytes())
            return cls(**{**found, "computed": Computed(**found["computed"])})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is of another release, or damaged: {error}") from error

    def write(self, directory: Path) -> None:
        """Create the directory with its manifest."""
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / (MANIFEST + PARTIAL)
        partial.write_text(f"{json.dumps(asdict(self), indent=2)}\n", encoding="utf-8")
        os.replace(partial, directory / MANIFEST)

    @property
    def files(self) -> list[range]:
        """Numbers of the samples of each file."""
        starts = range(0, self.samples, self.file_samples)
        return [range(start, min(start + self.file_samples, self.samples)) for start in starts]


def check_same(directory: Path, ours: Contents | Computed, wanted: Contents | Computed) -> None:
    """Raise ValueError if a directory differs from the output of a command with these flags."""
    mine, others = _flat(asdict(ours)), _flat(asdict(wanted))
    if names := [name for name in mine if mine[name] != others[name]]:
        given = ", ".join(f"{name} {mine[name]}, not {others[name]}" for name in names)
        raise ValueError(f"{directory} holds other features: {given}")


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    computed = fields.pop("computed", {})
    return {**fields, **computed}


def path_of(directory: Path, number: int) -> Path:
    """Return the path of a feature file."""
    return directory / f"features-{number:06}.safetensors"


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Write samples with their features, concatenated."""
    shown = [sample.features for sample in samples if sample.features is not None]
    arrays = {
        "lengths": np.array([len(sample.token_ids) for sample in samples], np.int32),
        "token_ids": np.concatenate([np.asarray(s.token_ids, np.int32) for s in samples]),
        "wanted": np.concatenate([np.asarray(s.wanted, bool) for s in samples]),
        "aux": np.concatenate([features.aux for features in shown]),
        "hidden": np.concatenate([features.hidden for features in shown]),
    }
    partial = path.with_name(path.name + PARTIAL)
    save_file(arrays, partial)
    os.replace(partial, path)


class FeatureSamples:
    """The samples of a directory that fit into a row, with their features.

    `left_out` counts longer samples; `lengths` has the tokens of each, int32.
    """

    def __init__(self, directory: Path, longest: int) -> None:
        """Open a directory; ValueError if it is incomplete."""
        self._directory, self.contents = directory, Contents.read(directory)
        files = range(len(self.contents.files))
        if missing := [number for number in files if not path_of(directory, number).exists()]:
            raise ValueError(
                f"{directory} lacks {len(missing)} of {len(files)} files: `eagle3-train features "
                "--resume` goes on with it"
            )
        lengths = [self._arrays(number, ["lengths"])["lengths"] for number in files]
        ends = [np.cumsum(part) for part in lengths]
        every = np.concatenate(lengths)
        self._numbers = np.flatnonzero(every <= longest)
        self._ends, self.lengths = np.concatenate(ends), every[self._numbers]
        self.left_out = len(every) - len(self.lengths)
        if not len(self.lengths):
            raise ValueError(f"{directory}: no sample of at most {longest} tokens")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Sample:
        number, length = int(self._numbers[index]), int(self.lengths[index])
        end = int(self._ends[number])
        names = ["token_ids", "wanted", "aux", "hidden"]
        found = self._arrays(number // self.contents.file_samples, names, slice(end - length, end))
        return Sample(found["token_ids"], found["wanted"], Features(found["aux"], found["hidden"]))

    def check(self, wanted: Computed) -> None:
        """Raise ValueError if the features have other settings than a training run's."""
        check_same(self._directory, self.contents.computed, wanted)

    def counts(self, vocab_size: int) -> np.ndarray:
        """Count each id in all answers."""
        found = np.zeros(vocab_size, np.int64)
        for number in range(len(self.contents.files)):
            part = self._arrays(number, ["token_ids", "wanted"])
            found += np.bincount(part["token_ids"][part["wanted"]], minlength=vocab_size)
        return found

    def _arrays(
        self, number: int, names: Sequence[str], rows: slice = slice(None)
    ) -> Mapping[str, np.ndarray]:
        with safe_open(path_of(self._directory, number), "numpy") as file:
            return {name: file.get_slice(name)[rows] for name in names}


def target_digest(directory: Path) -> str:
    """Return a digest that identifies a target, fine-tuned ones too, without reading all of it."""
    found = hashlib.sha256((directory / CONFIG).read_bytes())
    if is_store(directory):
        found.update((directory / MANIFEST_FILE).read_bytes())
    for path in sorted(directory.rglob("*")):
        if path.suffix in WEIGHT_SUFFIXES:
            size = path.stat().st_size
            found.update(f"{path.relative_to(directory)} {size}".encode())
            with path.open("rb") as file:
                found.update(file.read(LOOKED_AT))
                file.seek(max(size - LOOKED_AT, 0))
                found.update(file.read(LOOKED_AT))
    return found.hexdigest()
