"""What journals and manifests record, read strictly: they may be damaged or forged."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from convert.files.json_object import parse_object
from convert.files.safetensors_files import (
    DTYPES,
    LARGEST_DIMENSION,
    MAX_DIMENSIONS,
    MAX_NAME_LENGTH,
)
from convert.store.arch import E4M3FNUZ
from eagle3_jax.config.brief import brief

Record = TypeVar("Record")

LONGEST = 200
"""Characters of a value in an error."""
_DTYPES = {dtype.name: dtype for dtype in (*DTYPES.values(), E4M3FNUZ)}


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable")
    return text


def _one_name(text: str) -> str:
    if text in ("", ".", "..") or PurePosixPath(text).name != text:
        raise ValueError("must name one entry of a directory")
    return text


def _inside(text: str) -> str:
    parts = text.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError("must be a path inside the store")
    return text


def _dtype(text: str) -> str:
    if text not in _DTYPES:
        raise ValueError(f"must be one of {', '.join(_DTYPES)}")
    return text


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), AfterValidator(_printable)]
EntryName = Annotated[Name, AfterValidator(_one_name)]
"""A file or folder, with no way out of the directory that it is looked up in."""
InsidePath = Annotated[str, AfterValidator(_printable), AfterValidator(_inside)]
Dimension = Annotated[int, Field(ge=0, le=LARGEST_DIMENSION)]
Shape = Annotated[tuple[Dimension, ...], Field(max_length=MAX_DIMENSIONS)]
Size = Annotated[int, Field(ge=0, lt=2**63)]
Checksum = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class StoredParameter:
    """One parameter in a store: where it lies, and the checksum of its bytes.

    nonfinite: the tensors of the source, or the parameter itself, that hold NaN or infinities.
    """

    path: Name
    item: EntryName
    shape: Shape
    dtype: Annotated[str, AfterValidator(_dtype)]
    nbytes: Size
    checksum: Checksum
    nonfinite: tuple[Name, ...] = ()

    def __post_init__(self) -> None:
        if self.nbytes != math.prod(self.shape) * _DTYPES[self.dtype].itemsize:
            raise ValueError(f"nbytes must fit shape and dtype, got {self.nbytes}")


@dataclass(frozen=True)
class FinishedItem:
    """An item whose files are on disk: files are paths inside it with their sizes in bytes."""

    item: EntryName
    parameters: tuple[StoredParameter, ...] = field(repr=False)
    files: Mapping[InsidePath, Size] = field(repr=False)

    def __post_init__(self) -> None:
        if any(parameter.item != self.item for parameter in self.parameters):
            raise ValueError(f"every parameter must be of item {self.item}")


def read_record(kind: type[Record], raw: bytes) -> Record:
    """Reads a dataclass from a JSON object that may have more fields.

    Raises ValueError, one line, for anything that is not exactly of the fields' types.
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
