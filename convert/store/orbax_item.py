"""One item as Orbax writes it: a folder with an OCDBT database of uncompressed Zarr arrays.

Orbax itself makes a folder appear complete or not at all; what it leaves behind when killed has
another name.
"""

import functools
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

SMALLEST_CHUNK, LARGEST_CHUNK = 2**20, 16 * 2**20
CHUNKS = 64
"""A matrix is cut in 8 x 8 or so: eight devices then read little more than their own share."""
FILE_BYTES = 32 * 2**20
"""OCDBT keeps a data file in memory until it is on disk, and several are under way at a time."""
SLAB_BYTES = 64 * 2**20


def save_item(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by path as one new item; on disk when this returns. OSError if it cannot be."""
    arguments = ocp.args.PyTreeSave(
        dict(arrays),
        save_args={path: _save_args(array) for path, array in arrays.items()},
        ocdbt_target_data_file_size=FILE_BYTES,
    )
    before, sys.unraisablehook = sys.unraisablehook, _without_late_reports
    try:
        _checkpointer().save(directory, args=arguments)
    except ValueError as error:  # what TensorStore makes of a full disk
        raise OSError(f"cannot write {directory}, repeat the command to resume: {error}") from error
    sys.unraisablehook = before


def read_array(directory: Path, path: str) -> np.ndarray:
    """One parameter of an item, whole; in slabs, since TensorStore buffers all that it reads."""
    stored = ts.open(
        {
            "driver": "zarr",
            "kvstore": {
                "driver": "ocdbt",
                "base": {"driver": "file", "path": f"{directory}/"},
                "path": path,
            },
            "fill_missing_data_reads": False,
        },
        read=True,
    ).result()
    out = np.empty(stored.shape, stored.dtype.numpy_dtype)
    for slab in _slabs(stored):
        ts.array(out)[slab].write(stored[slab]).result()
    return out


def read_sharded(
    directory: Path, path: str, dtype: np.dtype, sharding: jax.sharding.Sharding
) -> jax.Array:
    """One parameter of an item laid out by `sharding`; every device reads its own slices."""
    how = ocp.ArrayRestoreArgs(sharding=sharding, dtype=dtype)
    args = ocp.args.PyTreeRestore(item={path: 0}, restore_args={path: how}, partial_restore=True)
    return _checkpointer().restore(directory, args=args)[path]


def paths_of(directory: Path) -> set[str]:
    """The paths an item holds by its own metadata; none when that is damaged."""
    found = _checkpointer().metadata(directory).item_metadata
    return set(found.tree) if found else set()


def _without_late_reports(unraisable: "sys.UnraisableHookArgs") -> None:
    """The unraisable hook that stays after a failed write.

    Orbax raises at the first array that fails and closes its event loop; TensorStore's threads
    then print a traceback for each other array that wanted to report to that loop.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _slabs(stored: ts.TensorStore) -> Iterator[tuple[slice, ...]]:
    """Whole chunks of about SLAB_BYTES, along the axis that is cut into most chunks."""
    shape, itemsize = stored.shape, stored.dtype.numpy_dtype.itemsize
    if math.prod(shape) <= 1:
        yield (slice(None),) * len(shape)
        return
    template = stored.chunk_layout.read_chunk.shape or shape
    chunk = [part or size for part, size in zip(template, shape, strict=True)]
    axis = max(range(len(shape)), key=lambda i: shape[i] / chunk[i])
    row_bytes = math.prod(shape) // shape[axis] * itemsize
    step = chunk[axis] * max(1, SLAB_BYTES // (chunk[axis] * row_bytes))
    for start in range(0, shape[axis], step):
        yield (*(slice(None),) * axis, slice(start, min(start + step, shape[axis])))


def _save_args(array: np.ndarray) -> ocp.SaveArgs:
    """Stacked weights are cut row by row, others along their longest axes in turn."""
    if array.ndim > 2:
        return ocp.SaveArgs(chunk_byte_size=LARGEST_CHUNK, shard_axes=(0,))
    chunk = min(max(array.nbytes // CHUNKS, SMALLEST_CHUNK), LARGEST_CHUNK)
    return ocp.SaveArgs(chunk_byte_size=chunk)


@functools.cache
def _checkpointer() -> ocp.Checkpointer:
    handlers = ocp.type_handlers
    registry = handlers.create_type_handler_registry(
        (np.ndarray, handlers.NumpyHandler(deepcopy_host_arrays=False)),
        (jax.Array, handlers.ArrayHandler()),
    )
    return ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(
            use_ocdbt=True,
            use_zarr3=False,
            use_compression=False,
            type_handler_registry=registry,
        )
    )
