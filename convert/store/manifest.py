"""The manifest: all that a store holds, and what it was made from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from convert.safetensors_files import read_json
from convert.store.checksum import ALGORITHM
from convert.store.durable import write_durably
from convert.store.source import SourceFile

MANIFEST_FILE = "manifest.json"
FORMAT = "eagle3-jax checkpoint"
VERSION = 1


@dataclass(frozen=True)
class StoredParameter:
    """One parameter in a store: where it lies, and the checksum of its bytes."""

    path: str
    item: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    checksum: str

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "StoredParameter":
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**fields, "shape": tuple(fields["shape"])})


@dataclass(frozen=True)
class Origin:
    """What decides a store's content besides the weights: it must agree when a run is resumed.

    arch: the accelerator whose number formats are used. options: the conversion's own, with what
    was assumed. formats: parameters that stay quantised -> names of the formats of their weights
    and activations. tensors: logical names of the source's weights with their shapes.
    """

    source: tuple[SourceFile, ...]
    arch: str
    options: Mapping[str, Any]
    formats: Mapping[str, Mapping[str, str]] = field(repr=False)
    tensors: Mapping[str, tuple[int, ...]] = field(repr=False)


@dataclass(frozen=True)
class Manifest:
    """A finished store."""

    origin: Origin
    parameters: tuple[StoredParameter, ...] = field(repr=False)

    @property
    def totals(self) -> dict[str, int]:
        """Numbers of parameters, of items and of bytes."""
        return {
            "parameters": len(self.parameters),
            "items": len({parameter.item for parameter in self.parameters}),
            "bytes": sum(parameter.nbytes for parameter in self.parameters),
        }


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest, on disk when this returns."""
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "checksum": ALGORITHM,
        "totals": manifest.totals,
        **asdict(manifest.origin),
        "parameters": [asdict(parameter) for parameter in manifest.parameters],
    }
    write_durably(directory / MANIFEST_FILE, json.dumps(fields, indent=1).encode() + b"\n")


def read_manifest(directory: Path) -> Manifest:
    """Reads a store's manifest; FileNotFoundError without one, ValueError when it is damaged."""
    file = directory / MANIFEST_FILE
    fields = read_json(file)
    made = {"format": FORMAT, "version": VERSION, "checksum": ALGORITHM}
    found = {name: fields.get(name) for name in made}
    if found != made:
        raise ValueError(f"{file} must say {made}, got {found}; convert again with this version")
    try:
        manifest = _parse(fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged: {error!r}") from error
    if fields.get("totals") != manifest.totals:
        raise ValueError(f"{file} is damaged: it lists {manifest.totals}, not {fields['totals']}")
    return manifest


def _parse(fields: Mapping[str, Any]) -> Manifest:
    origin = Origin(
        source=tuple(SourceFile(**file) for file in fields["source"]),
        arch=fields["arch"],
        options=dict(fields["options"]),
        formats={path: dict(names) for path, names in fields["formats"].items()},
        tensors={name: tuple(shape) for name, shape in fields["tensors"].items()},
    )
    return Manifest(origin, tuple(map(StoredParameter.from_json, fields["parameters"])))
