"""Read a store: parameters by path, whole or laid out on a mesh."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import jax
import numpy as np

from convert.store.manifest import MANIFEST_FILE, Manifest, StoredParameter, read_manifest
from convert.store.orbax_item import read_array, read_sharded
from convert.store.writer import ITEMS


@dataclass(frozen=True)
class Store:
    """A finished store; nothing but its manifest is read until `read`."""

    directory: Path
    manifest: Manifest
    parameters: Mapping[str, StoredParameter]

    @overload
    def read(self, path: str, sharding: None = None) -> np.ndarray: ...

    @overload
    def read(
        self, path: str, sharding: jax.sharding.Sharding, dtype: np.dtype | None = None
    ) -> jax.Array: ...

    def read(
        self,
        path: str,
        sharding: jax.sharding.Sharding | None = None,
        dtype: np.dtype | None = None,
    ) -> np.ndarray | jax.Array:
        """A parameter as numpy, or as a jax.Array on the devices of a sharding, in `dtype`.

        Raises KeyError for a path the store has not.
        """
        parameter = self.parameters[path]
        item = self.directory.absolute() / ITEMS / parameter.item
        if sharding is None:
            return read_array(item, path)
        return read_sharded(item, path, dtype or np.dtype(parameter.dtype), sharding)


def is_store(directory: str | Path) -> bool:
    """Whether the directory is a converted checkpoint."""
    return (Path(directory) / MANIFEST_FILE).is_file()


def open_store(directory: str | Path) -> Store:
    """Opens a converted checkpoint.

    Raises FileNotFoundError when it is none, ValueError when its manifest is damaged or of
    another version.
    """
    directory = Path(directory)
    manifest = read_manifest(directory)
    return Store(directory, manifest, {entry.path: entry for entry in manifest.parameters})
