"""Records of journals and manifests, validated strictly: files may be damaged or forged."""

import functools
import math
from collections.abc import Callable, Mapping
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
"""Maximum characters of a value in an error."""
_DTYPES = {dtype.name: dtype for dtype in (*DTYPES.values(), E4M3FNUZ)}
_NOWHERE = {"", ".", ".."}


def must(hold: Callable[[str], bool], expected: str) -> AfterValidator:
    """Return a validator that rejects texts for which `hold` is false: "must `expected`"."""

    def check(text: str) -> str:
        if not hold(text):
            raise ValueError(f"must {expected}")
        return text

    return AfterValidator(check)


_PRINTABLE = must(str.isprintable, "be printable")
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH), _PRINTABLE]
_IS_ENTRY = must(
    lambda text: text not in _NOWHERE and PurePosixPath(text).name == text,
    "name one entry of a directory",
)
EntryName = Annotated[Name, _IS_ENTRY]
"""Name of a file or folder that cannot leave its directory."""
_IS_INSIDE = must(lambda text: _NOWHERE.isdisjoint(text.split("/")), "be a path inside the store")
InsidePath = Annotated[str, _PRINTABLE, _IS_INSIDE]
DtypeName = Annotated[str, must(_DTYPES.__contains__, f"be one of {', '.join(_DTYPES)}")]
Dimension = Annotated[int, Field(ge=0, le=LARGEST_DIMENSION)]
Shape = Annotated[tuple[Dimension, ...], Field(max_length=MAX_DIMENSIONS)]
Size = Annotated[int, Field(ge=0, lt=2**63)]
Checksum = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


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
class FinishedItem:
    """An item whose files are on disk; `files` maps paths inside it to sizes in bytes."""

    item: EntryName
    parameters: tuple[StoredParameter, ...] = field(repr=False)
    files: Mapping[InsidePath, Size] = field(repr=False)

    def __post_init__(self) -> None:
        if any(parameter.item != self.item for parameter in self.parameters):
            raise ValueError(f"every parameter must be of item {self.item}")


def read_record(kind: type[Record], raw: bytes) -> Record:
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
