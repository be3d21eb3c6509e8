"""Read checkpoints of safetensors files: headers strictly, tensors lazily; and write one file.

Layout of a file (https://huggingface.co/docs/safetensors): u64 header length, JSON header, tensor
bytes without gaps. Headers are parsed here, not by a library, so that every defect of a download
gives a clear message before a weight is read.
"""

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from convert.files.box import Box, whole
from convert.files.json_object import parse_object
from eagle3_jax.config.published import brief

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
MAX_NAME_LENGTH = 200
MAX_DIMENSIONS = 32
LARGEST_DIMENSION = 2**48
MOST_PROBLEMS = 1000
"""Maximum number of problems that an error lists."""

DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "U16": np.dtype(np.uint16),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}


Append = Callable[[str, bytes], None]
"""A function that writes the next bytes of one tensor."""


@dataclass(frozen=True)
class TensorType:
    """Dtype, by safetensors' name, and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor's data in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class TensorInfo(TensorType):
    """One tensor of a header; `start` is its offset in bytes from the start of the file."""

    name: str
    file: Path
    start: int


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of one directory by name. Only headers are read before `read` is called."""

    directory: Path
    tensors: dict[str, TensorInfo] = field(repr=False)

    def read(self, name: str) -> np.ndarray:
        """Read one tensor into its own memory."""
        return read_box(self.tensors[name])


def read_box(info: TensorInfo, box: Box | None = None) -> np.ndarray:
    """Read a part of a tensor, or all of it, into its own memory; ValueError for a truncated file.

    Whole rows are not mapped, because mapped pages would count as this process's memory while a
    checkpoint streams by. For narrower boxes a temporary map reads only the pages that the box
    touches.
    """
    box = whole(info.shape) if box is None else box
    rows, columns = box[:1], box[1:]
    if columns == whole(info.shape[1:]):
        return read_rows(info, *rows) if rows else read_rows(info, slice(0, 1)).reshape(())
    first, count = rows[0].start, rows[0].stop - rows[0].start
    dtype, row_shape = DTYPES[info.dtype], info.shape[1:]
    row_bytes = math.prod(row_shape) * dtype.itemsize
    where = {"offset": info.start + first * row_bytes, "shape": (count, row_bytes)}
    try:
        mapped = np.memmap(info.file, np.uint8, "r", **where)
    except ValueError as error:
        raise ValueError(f"{info.file} was truncated while {info.name} was read") from error
    return np.array(mapped.view(dtype).reshape(count, *row_shape)[:, *columns], subok=False)


def read_rows(info: TensorInfo, rows: slice) -> np.ndarray:
    """Read some rows of a tensor; a scalar is one row."""
    dtype, row_shape = DTYPES[info.dtype], info.shape[1:]
    count, row_bytes = rows.stop - rows.start, math.prod(row_shape) * dtype.itemsize
    offset = info.start + rows.start * row_bytes
    raw = np.fromfile(info.file, np.uint8, count * row_bytes, offset=offset)
    if raw.size != count * row_bytes:
        raise ValueError(f"{info.file} was truncated while {info.name} was read")
    return raw.view(dtype).reshape(count, *row_shape)


def open_checkpoint(directory: str | Path) -> Checkpoint:
    """Open `model.safetensors`, or the shards that its index names (their numbers may have gaps).

    Raises FileNotFoundError for a missing directory, file or shard, ValueError for a damaged one.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"checkpoint directory {directory} does not exist")
    if (directory / INDEX_FILE).is_file():
        tensors = _read_shards(directory)
    elif (directory / SINGLE_FILE).is_file():
        tensors = read_header(directory / SINGLE_FILE)
    else:
        raise FileNotFoundError(f"{directory} holds neither {SINGLE_FILE} nor {INDEX_FILE}")
    return Checkpoint(directory, tensors)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; ValueError, naming the file, if it is not one."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    if (size := path.stat().st_size) > MAX_HEADER_BYTES:
        raise ValueError(f"{path} has {size} bytes, no published JSON file has {MAX_HEADER_BYTES}")
    try:
        return parse_object(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


@contextmanager
def writing_tensors(file: IO[bytes], tensors: Mapping[str, TensorType]) -> Iterator[Append]:
    """Write a header, then the tensors, which the block appends in parts and in any order.

    Wider dtypes come first, so that all tensors are aligned.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    starts, end = {}, 0
    for name in sorted(tensors, key=lambda name: -DTYPES[tensors[name].dtype].itemsize):
        starts[name], end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [starts[name], end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write(struct.pack("<Q", len(encoded)) + encoded)
    data_start, written = file.tell(), dict.fromkeys(tensors, 0)

    def append(name: str, data: bytes) -> None:
        file.seek(data_start + starts[name] + written[name])
        file.write(data)
        written[name] += len(data)

    yield append
    assert written == {name: one.nbytes for name, one in tensors.items()}, "a tensor is not whole"


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Read and check one header: complete file, no overlap, no gap, no repeated name."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise ValueError(
                f"{path} is truncated or not a safetensors file: {size} bytes, header of {length}"
            )
        raw = file.read(length)
    try:
        header = parse_object(raw, unique_names=True)
    except ValueError as error:
        raise ValueError(f"{path} has a damaged header: {error}") from error
    header.pop("__metadata__", None)
    spans = sorted(
        (_parse_entry(path, name, entry, 8 + length) for name, entry in header.items()),
        key=lambda info: (info.start, info.nbytes),
    )
    _check_spans(path, spans, 8 + length, size)
    return {info.name: info for info in spans}


def listed(problems: Sequence[str]) -> str:
    """Return one problem on the same line, or several on a line each, at most a thousand."""
    if len(problems) == 1:
        return f" {problems[0]}"
    more = len(problems) - MOST_PROBLEMS
    lines = [*problems[:MOST_PROBLEMS], *([f"... and {more} more"] if more > 0 else [])]
    return "".join(f"\n  {line}" for line in lines)


def _parse_entry(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(f"{path} has a damaged header: a tensor cannot be named {brief(name)}")
    try:
        shape, dtype, (start, end) = entry["shape"], entry["dtype"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged header entry of {name}: {brief(entry)}") from error
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(
            f"{path}: {name} has unknown dtype {brief(dtype)}; known: {', '.join(DTYPES)}"
        )
    if not _is_shape(shape) or not type(start) is type(end) is int:
        raise ValueError(f"{path}: damaged header entry of {name}: {brief(entry)}")
    info = TensorInfo(dtype, tuple(shape), name, path, data_start + start)
    if start < 0 or end - start != info.nbytes:
        raise ValueError(f"{path}: offsets of {name} do not fit its shape: {brief(entry)}")
    return info


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) <= MAX_DIMENSIONS
        and all(type(n) is int and 0 <= n <= LARGEST_DIMENSION for n in shape)
    )


def _check_spans(path: Path, spans: list[TensorInfo], data_start: int, size: int) -> None:
    end = data_start
    for info in spans:
        if info.start != end:
            kind = "overlaps the tensor before it" if info.start < end else "leaves a gap before it"
            raise ValueError(f"{path}: {info.name} {kind} (starts at {info.start}, expected {end})")
        end += info.nbytes
    if size != end:
        kind = "is truncated" if size < end else "has trailing bytes"
        raise ValueError(f"{path} {kind}: {size} bytes, its header describes {end}")


def _read_shards(directory: Path) -> dict[str, TensorInfo]:
    index = directory / INDEX_FILE
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise ValueError(f"{index} lacks a weight_map from tensor names to file names")
    shards = sorted(set(weight_map.values()))
    outside = [shard for shard in shards if Path(shard).name != shard or shard in ("", "..")]
    if outside:
        raise ValueError(f"{index} names files outside its directory: {brief(outside)}")
    present = {path.name for path in directory.iterdir() if path.is_file()}
    missing = [shard for shard in shards if shard not in present]
    if missing:
        raise FileNotFoundError(f"{index} names shards that are missing: {brief(missing)}")
    found = [info for shard in shards for info in read_header(directory / shard).values()]
    _check_index(index, weight_map, found)
    return {info.name: info for info in found}


def _check_index(index: Path, weight_map: dict[str, str], found: list[TensorInfo]) -> None:
    wrong = [
        f"{info.name} lies in {info.file.name}, the index says {brief(weight_map.get(info.name))}"
        for info in found
        if weight_map.get(info.name) != info.file.name
    ]
    absent = sorted(set(weight_map) - {info.name for info in found})
    wrong += [f"{brief(name)} is not in {weight_map[name]}" for name in absent]
    if wrong:
        raise ValueError(f"{index} disagrees with its shards:{listed(wrong)}")
