"""The manifest of a store, and the journal of an unfinished one.

Both list origin and contents in JSON. They are validated strictly: files may be damaged or forged.
"""

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from convert.files.json_object import parse_object
from convert.files.safetensors_files import (
    DTYPES,
    LARGEST_DIMENSION,
    MAX_DIMENSIONS,
    MAX_NAME_LENGTH,
    read_json,
)
from convert.store.files import SourceFile, write_durably
from convert.store.parameters import ALGORITHM, ARCHS, E4M3FNUZ
from eagle3_jax.config.published import brief
from pallas_kernels import QuantFormat

MANIFEST_FILE = "manifest.json"
JOURNAL_FILE = "unfinished.json"
HEADING = {"format": "eagle3-jax checkpoint", "version": 2, "checksum": ALGORITHM}
LONGEST = 200
"""Maximum characters of a value in an error."""
_DTYPES = {dtype.name: dtype for dtype in (*DTYPES.values(), E4M3FNUZ)}
_NOWHERE = {"", ".", ".."}
Record = TypeVar("Record")


def _must(hold: Callable[[str], bool], expected: str) -> AfterValidator:
    """Return a validator that rejects texts for which `hold` is false: "must `expected`"."""

    def check(text: str) -> str:
        if not hold(text):
            raise ValueError(f"must {expected}")
        return text

    return AfterValidator(check)


def _known_format(names: Mapping[str, str]) -> Mapping[str, str]:
    try:
        QuantFormat(**names)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("must name the formats of weights and activations") from error
    return names


_PRINTABLE = _must(str.isprintable, "be printable")
_IS_ENTRY = _must(
    lambda text: text not in _NOWHERE and PurePosixPath(text).name == text,
    "name one entry of a directory",
)
_IS_INSIDE = _must(lambda text: _NOWHERE.isdisjoint(text.split("/")), "be a path inside the store")
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), _PRINTABLE]
EntryName = Annotated[Name, _IS_ENTRY]
"""Name of a file or folder that cannot leave its directory."""
InsidePath = Annotated[str, _PRINTABLE, _IS_INSIDE]
ArchName = Annotated[str, _must(ARCHS.__contains__, f"be one of {', '.join(ARCHS)}")]
DtypeName = Annotated[str, _must(_DTYPES.__contains__, f"be one of {', '.join(_DTYPES)}")]
Dimension = Annotated[int, Field(ge=0, le=LARGEST_DIMENSION)]
Shape = Annotated[tuple[Dimension, ...], Field(max_length=MAX_DIMENSIONS)]
Size = Annotated[int, Field(ge=0, lt=2**63)]
Checksum = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Format = Annotated[Mapping[str, str], AfterValidator(_known_format)]


@dataclass(frozen=True)
class StoredParameter:
    """One parameter in a store: its item, and the checksum of its bytes.

    `nonfinite` names the source's tensors, or the parameter itself, that hold NaN or infinities.
    """

    path: Name
    item: EntryName
    shape: Shape
    dtype: DtypeName
    nbytes: Size
    checksum: Checksum
    nonfinite: tuple[Name, ...] = ()

    def __post_init__(self) -> None:
        if self.nbytes != math.prod(self.shape) * _DTYPES[self.dtype].itemsize:
            raise ValueError(f"nbytes must fit shape and dtype, got {self.nbytes}")


@dataclass(frozen=True)
class Origin:
    """The facts besides weights that determine a store; a resumed run must have the same.

    `arch` is the accelerator whose number formats are used. `options` are the conversion's, with
    its assumptions. `formats` maps quantised parameters to the formats of weights and activations,
    and `tensors` the source's logical weight names to their shapes.
    """

    source: tuple[SourceFile, ...]
    arch: ArchName
    options: Mapping[str, str | list[str]]
    formats: Mapping[Name, Format] = field(repr=False)
    tensors: Mapping[Name, Shape] = field(repr=False)


@dataclass(frozen=True)
class Contents:
    """The finished items of a store.

    `files` maps every file of the items, by its path in the store, to its size in bytes.
    `side_files` maps the configuration and other files outside the items to their SHA-256.
    """

    parameters: tuple[StoredParameter, ...] = field(default=(), repr=False)
    files: Mapping[InsidePath, Size] = field(default_factory=dict, repr=False)
    side_files: Mapping[EntryName, Checksum] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        paths = {parameter.path for parameter in self.parameters}
        if len(paths) != len(self.parameters):
            raise ValueError("a parameter is listed twice")


@dataclass(frozen=True)
class Manifest:
    """A finished store; its parameters are in the model's order."""

    origin: Origin
    contents: Contents

    @property
    def totals(self) -> dict[str, int]:
        """Numbers of parameters, items and bytes."""
        parameters = self.contents.parameters
        return {
            "parameters": len(parameters),
            "items": len({parameter.item for parameter in parameters}),
            "bytes": sum(parameter.nbytes for parameter in parameters),
        }


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest; it is on disk on return."""
    listed = {**asdict(manifest.origin), **asdict(manifest.contents)}
    # No final newline, so that a file without its last byte is not valid JSON.
    content = json.dumps({**HEADING, "totals": manifest.totals, **listed}, indent=1)
    write_durably(directory / MANIFEST_FILE, content.encode())


def read_manifest(directory: Path) -> Manifest:
    """Read a store's manifest; FileNotFoundError if there is none, ValueError if it is damaged."""
    file = directory / MANIFEST_FILE
    fields = read_json(file)
    found = {name: fields.get(name) for name in HEADING}
    if found != HEADING:
        raise ValueError(
            f"{file} must say {HEADING}, got {brief(found)}; convert again with this version"
        )
    try:
        raw = file.read_bytes()
        manifest = Manifest(_read_record(Origin, raw), _read_record(Contents, raw))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if fields.get("totals") != manifest.totals:
        raise ValueError(
            f"{file} is damaged: it lists {manifest.totals}, not {brief(fields.get('totals'))}"
        )
    return manifest


def write_journal(directory: Path, origin: Origin, contents: Contents) -> None:
    """Record the items that are on disk; the record is on disk on return."""
    listed = {**_facts(origin), **asdict(contents)}
    write_durably(directory / JOURNAL_FILE, json.dumps(listed).encode())


def read_journal(directory: Path, origin: Origin) -> Contents:
    """Return the items that an interrupted run finished, none without a journal.

    Raises ValueError if the journal is damaged, or belongs to another origin (naming the
    difference).
    """
    file = directory / JOURNAL_FILE
    if not file.exists():
        return Contents()
    try:
        raw = file.read_bytes()
        begun, contents = parse_object(raw, unique_names=True), _read_record(Contents, raw)
    except ValueError as error:
        raise ValueError(
            f"{file} is damaged: {error}; delete {directory} to start again"
        ) from error
    facts = json.loads(json.dumps(_facts(origin)))
    if different := [name for name in facts if begun.get(name) != facts[name]]:
        changed = _changed_files(begun, facts) if "source" in different else ""
        raise ValueError(
            f"{directory} was begun with another {' and '.join(different)}{changed}; "
            "delete it to start again, or repeat the command it was begun with"
        )
    return contents


def _facts(origin: Origin) -> dict[str, Any]:
    """Return the origin's fields without tensors, of which there may be 200,000."""
    facts = asdict(replace(origin, tensors={}))
    del facts["tensors"]
    return facts


def _changed_files(begun: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return a note that names the first source file that changed."""
    before = begun.get("source")
    before = before if isinstance(before, list) else []
    names = [file["name"] for file in facts["source"] if file not in before]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f" ({names[0]}{more} changed or new)" if names else " (files are gone)"


def _read_record(kind: type[Record], raw: bytes) -> Record:
    """Read a dataclass from a JSON object, which may have more fields.

    Raises ValueError, in one line, for values that do not have exactly the fields' types.
    """
    parse_object(raw, unique_names=True)
    try:
        return _adapter(kind).validate_json(raw, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if place := ".".join(brief(part).strip("'") for part in first["loc"]):
            message = f"{place}: {message}, got {brief(first['input'])[:LONGEST]}"
        raise ValueError(message) from error


@functools.cache
def _adapter(kind: type[Record]) -> TypeAdapter[Record]:
    return TypeAdapter(kind)
