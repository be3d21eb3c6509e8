"""The manifest: the contents of a store and its origin."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from convert.files.safetensors_files import read_json
from convert.store.arch import ARCHS
from convert.store.array_bytes import ALGORITHM
from convert.store.files import write_durably
from convert.store.records import (
    Checksum,
    EntryName,
    InsidePath,
    Name,
    Shape,
    Size,
    StoredParameter,
    must,
    read_record,
)
from convert.store.source import SourceFile
from eagle3_jax.config.brief import brief
from pallas_kernels import QuantFormat

MANIFEST_FILE = "manifest.json"
FORMAT = "eagle3-jax checkpoint"
VERSION = 2


def _known_format(names: Mapping[str, str]) -> Mapping[str, str]:
    try:
        QuantFormat(**names)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("must name the formats of weights and activations") from error
    return names


Format = Annotated[Mapping[str, str], AfterValidator(_known_format)]


@dataclass(frozen=True)
class Origin:
    """The facts besides weights that determine a store; a resumed run must have the same.

    `arch` is the accelerator whose number formats are used. `options` are the conversion's, with
    its assumptions. `formats` maps quantised parameters to the formats of weights and activations,
    and `tensors` the source's logical weight names to their shapes.
    """

    source: tuple[SourceFile, ...]
    arch: Annotated[str, must(ARCHS.__contains__, f"be one of {', '.join(ARCHS)}")]
    options: Mapping[str, str | list[str]]
    formats: Mapping[Name, Format] = field(repr=False)
    tensors: Mapping[Name, Shape] = field(repr=False)


@dataclass(frozen=True)
class Contents:
    """The contents of a store besides its manifest.

    `files` maps every file of the items, by its path in the store, to its size in bytes.
    `side_files` maps the configuration and other files outside the items to their SHA-256.
    """

    parameters: tuple[StoredParameter, ...] = field(repr=False)
    files: Mapping[InsidePath, Size] = field(repr=False)
    side_files: Mapping[EntryName, Checksum] = field(repr=False)

    def __post_init__(self) -> None:
        paths = {parameter.path for parameter in self.parameters}
        if len(paths) != len(self.parameters):
            raise ValueError("a parameter is listed twice")


@dataclass(frozen=True)
class Manifest:
    """A finished store."""

    origin: Origin
    contents: Contents

    @property
    def parameters(self) -> tuple[StoredParameter, ...]:
        """All parameters, in the model's order."""
        return self.contents.parameters

    @property
    def totals(self) -> dict[str, int]:
        """Numbers of parameters, items and bytes."""
        return {
            "parameters": len(self.parameters),
            "items": len({parameter.item for parameter in self.parameters}),
            "bytes": sum(parameter.nbytes for parameter in self.parameters),
        }


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest; it is on disk on return."""
    fields = {
        **_heading(),
        "totals": manifest.totals,
        **asdict(manifest.origin),
        **asdict(manifest.contents),
    }
    # No final newline, so that a file without its last byte is not valid JSON.
    write_durably(directory / MANIFEST_FILE, json.dumps(fields, indent=1).encode())


def read_manifest(directory: Path) -> Manifest:
    """Read a store's manifest; FileNotFoundError if there is none, ValueError if it is damaged."""
    file = directory / MANIFEST_FILE
    fields, made = read_json(file), _heading()
    found = {name: fields.get(name) for name in made}
    if found != made:
        raise ValueError(
            f"{file} must say {made}, got {brief(found)}; convert again with this version"
        )
    try:
        raw = file.read_bytes()
        manifest = Manifest(read_record(Origin, raw), read_record(Contents, raw))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if fields.get("totals") != manifest.totals:
        raise ValueError(
            f"{file} is damaged: it lists {manifest.totals}, not {brief(fields.get('totals'))}"
        )
    return manifest


def _heading() -> dict[str, str | int]:
    return {"format": FORMAT, "version": VERSION, "checksum": ALGORITHM}
