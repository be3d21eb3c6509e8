"""Read a store: parameters by path, whole or laid out on a mesh."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import tensorstore as ts

from convert.store.files import differences, files_below
from convert.store.manifest import MANIFEST_FILE, Manifest, read_manifest
from convert.store.orbax_item import open_array, read_array, read_sharded
from convert.store.partial import ITEMS
from convert.store.records import StoredParameter


@dataclass(frozen=True)
class Store:
    """A finished store. Only its manifest is read before `read` is called."""

    directory: Path
    manifest: Manifest
    parameters: Mapping[str, StoredParameter]

    def read(self, path: str) -> np.ndarray:
        """Read a parameter; KeyError if the store lacks it, ValueError if files are damaged."""
        with self._opened(path) as stored:
            return read_array(stored)

    def read_sharded(
        self, path: str, sharding: jax.sharding.Sharding, dtype: np.dtype | None = None
    ) -> jax.Array:
        """Read a parameter in `dtype` onto the devices of a sharding."""
        with self._opened(path) as stored:
            return read_sharded(stored, dtype or stored.dtype.numpy_dtype, sharding)

    @contextmanager
    def _opened(self, path: str) -> Iterator[ts.TensorStore]:
        parameter = self.parameters[path]
        try:
            stored = open_array(self.directory.absolute() / ITEMS / parameter.item, path)
            found = (stored.shape, stored.dtype.numpy_dtype.name)
            if found != (parameter.shape, parameter.dtype):
                expected = (parameter.shape, parameter.dtype)
                raise ValueError(f"expected {expected}, found {found}")
            yield stored
        except Exception as error:  # Orbax and TensorStore raise any type for damaged files.
            reason = next(iter(str(error).splitlines()), repr(error)).partition(" [")[0]
            raise ValueError(f"{path}: cannot be read from {self.directory}: {reason}") from error


def is_store(directory: str | Path) -> bool:
    """Return whether the directory is a converted checkpoint."""
    return (Path(directory) / MANIFEST_FILE).is_file()


def open_store(directory: str | Path, *, check_files: bool = True) -> Store:
    """Open a converted checkpoint; no file outside it is read.

    Raises FileNotFoundError if it is none. Raises ValueError if its manifest is damaged or of
    another version, if an item is a link and, with `check_files`, if a file is missing or of
    another size.
    """
    directory = Path(directory)
    manifest = read_manifest(directory)
    found, expected = item_files(directory), manifest.contents.files
    lost = differences({name: found[name] for name in expected if name in found}, expected)
    if check_files and lost:
        raise ValueError(
            f"{directory} is damaged: {lost[0]} ({len(lost)} of {len(expected)} files); "
            "convert again"
        )
    return Store(directory, manifest, {entry.path: entry for entry in manifest.parameters})


def item_files(directory: Path) -> dict[str, int]:
    """Return the files of a store's items by their paths in the store, with sizes in bytes."""
    found = files_below(directory / ITEMS)
    return {f"{ITEMS}/{name}": size for name, size in found.items()}
