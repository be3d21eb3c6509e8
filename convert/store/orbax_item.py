"""Write and read one Orbax item: a folder with an OCDBT database of uncompressed Zarr arrays.

Orbax writes a folder atomically; an interrupted write leaves a folder with another name.
"""

import functools
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from convert.files.box import Box, box_of, box_shape, hull, whole, within

SMALLEST_CHUNK, LARGEST_CHUNK = 2**20, 16 * 2**20
CHUNKS = 64
"""Chunks of a matrix, about 8 x 8: each of eight processes reads little more than its shard."""
FILE_BYTES = 32 * 2**20
"""OCDBT keeps several data files in memory until they are on disk."""
SLAB_BYTES = 64 * 2**20


def save_item(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by path as one new item; it is on disk on return. OSError if writing fails."""
    arguments = ocp.args.PyTreeSave(
        dict(arrays),
        save_args={path: _save_args(array) for path, array in arrays.items()},
        ocdbt_target_data_file_size=FILE_BYTES,
    )
    before, sys.unraisablehook = sys.unraisablehook, _without_late_reports
    try:
        _checkpointer().save(directory, args=arguments)
    except ValueError as error:  # TensorStore's error for a full disk
        reason = str(error).rpartition('": ')[2]  # It follows the names of several files.
        message = f"cannot write {directory}, repeat the command to resume: {reason}"
        raise OSError(message) from error
    sys.unraisablehook = before


def read_sharded(
    stored: ts.TensorStore, dtype: np.dtype, sharding: jax.sharding.Sharding
) -> jax.Array:
    """Return one parameter laid out by `sharding`.

    The process reads the box around all its devices' slices once, and its devices take their slices
    from it. Otherwise a chunk, such as a whole expert, would be read once for each device.
    """
    indices = sharding.addressable_devices_indices_map(stored.shape).values()
    box = hull([box_of(index, stored.shape) for index in indices])
    read = read_array(stored, box)
    return jax.make_array_from_callback(
        stored.shape,
        sharding,
        lambda index: read[within(box_of(index, stored.shape), box)].astype(dtype),
    )


def open_array(directory: Path, path: str) -> ts.TensorStore:
    """Open one parameter of an item without reading it."""
    kvstore = {**_database(directory), "path": path}
    spec = {"driver": "zarr", "kvstore": kvstore, "fill_missing_data_reads": False}
    return ts.open(spec, read=True).result()


def _database(directory: Path) -> dict[str, Any]:
    return {"driver": "ocdbt", "base": {"driver": "file", "path": f"{directory}/"}}


def read_array(stored: ts.TensorStore, box: Box | None = None) -> np.ndarray:
    """Read a box, or the whole array, in slabs, because TensorStore buffers everything it reads."""
    box = whole(stored.shape) if box is None else box
    out = np.empty(box_shape(box), stored.dtype.numpy_dtype)
    for slab in _slabs(stored, box):
        ts.array(out)[within(slab, box)].write(stored[slab]).result()
    return out


def paths_of(directory: Path) -> set[str]:
    """Return the paths of an item's arrays; ValueError if its database is damaged."""
    keys = ts.KvStore.open(_database(directory)).result().list().result()
    names = [key.decode(errors="replace").rpartition("/") for key in keys]
    return {path for path, _, name in names if name == ".zarray"}


def _without_late_reports(unraisable: "sys.UnraisableHookArgs") -> None:
    """Unraisable hook that stays installed after a failed write.

    Orbax raises for the first array that fails and closes its event loop. TensorStore's threads
    then print a traceback for every other array that reports to that loop.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _slabs(stored: ts.TensorStore, box: Box) -> Iterator[Box]:
    """Yield boxes of whole chunks, about SLAB_BYTES each, along the axis with the most chunks."""
    shape, itemsize = stored.shape, stored.dtype.numpy_dtype.itemsize
    if math.prod(shape) <= 1:
        yield box
        return
    template = stored.chunk_layout.read_chunk.shape or shape
    chunk = [part or size for part, size in zip(template, shape, strict=True)]
    axis = max(range(len(shape)), key=lambda i: shape[i] / chunk[i])
    wanted = box[axis]
    row_bytes = math.prod(box_shape(box)) // (wanted.stop - wanted.start) * itemsize
    step = chunk[axis] * max(1, SLAB_BYTES // (chunk[axis] * row_bytes))
    for start in range(wanted.start // step * step, wanted.stop, step):
        rows = slice(max(start, wanted.start), min(start + step, wanted.stop))
        yield (*box[:axis], rows, *box[axis + 1 :])


def _save_args(array: np.ndarray) -> ocp.SaveArgs:
    """Cut stacked weights row by row, and others along their longest axes in turn."""
    if array.ndim > 2:
        return ocp.SaveArgs(chunk_byte_size=LARGEST_CHUNK, shard_axes=(0,))
    chunk = min(max(array.nbytes // CHUNKS, SMALLEST_CHUNK), LARGEST_CHUNK)
    return ocp.SaveArgs(chunk_byte_size=chunk)


@functools.cache
def _checkpointer() -> ocp.Checkpointer:
    handlers = ocp.type_handlers
    registry = handlers.create_type_handler_registry(
        (np.ndarray, handlers.NumpyHandler(deepcopy_host_arrays=False)),
    )
    return ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(
            use_ocdbt=True,
            use_zarr3=False,
            use_compression=False,
            type_handler_registry=registry,
        )
    )
