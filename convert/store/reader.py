"""Read a store: parameters by path, whole or laid out on a mesh, and verify them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from jax.sharding import Sharding

from convert.files.safetensors_files import read_json
from convert.store.files import ITEMS, differences, file_checksum, files_below
from convert.store.manifest import MANIFEST_FILE, Manifest, StoredParameter, read_manifest
from convert.store.orbax_item import open_array, paths_of, read_array, read_sharded
from convert.store.parameters import checksum
from pallas_kernels import QuantFormat


@dataclass(frozen=True)
class Store:
    """A finished store, with the methods of `PublishedParameters`.

    Only its manifest is read before a parameter is.
    """

    directory: Path
    manifest: Manifest
    parameters: Mapping[str, StoredParameter]

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The content of config.json; FileNotFoundError or ValueError if it is damaged."""
        return read_json(self.directory / "config.json")

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Names and [out, in] shapes of the published weights that it was converted from."""
        return self.manifest.origin.tensors

    @property
    def formats(self) -> dict[str, QuantFormat]:
        """Formats of the parameters that stay quantised, as published."""
        given = self.manifest.origin.formats
        return {path: QuantFormat(**names) for path, names in given.items()}  # type: ignore[arg-type]

    def check(self, paths: Collection[str], skip: Collection[str]) -> None:
        """Raise ValueError unless the store holds exactly these parameters.

        Parameters of the submodules in `skip` may be present and stay unused.
        """
        stored = {path for path in self.parameters if path.split(".")[0] not in skip}
        missing, surplus = sorted(set(paths) - stored), sorted(stored - set(paths))
        if missing or surplus:
            raise ValueError(
                f"{self.directory} does not fit its config.json: parameters missing {missing}, "
                f"unknown parameters {surplus}; convert it again"
            )

    def stored_dtype(self, path: str) -> np.dtype:
        """Return a parameter's dtype in the files."""
        return np.dtype(self.parameters[path].dtype)

    def load(
        self, path: str, dtype: np.dtype | None, shape: tuple[int, ...], sharding: Sharding | None
    ) -> jax.Array:
        """Load one parameter, cast to `dtype` unless None; each device reads only its slices."""
        if (stored := self.parameters[path].shape) != shape:
            raise ValueError(f"{path}: expected shape {shape}, {self.directory} has {stored}")
        if sharding is not None:
            return self.read_sharded(path, sharding, dtype)
        array = self.read(path)
        return jax.device_put(array.astype(dtype or array.dtype, copy=False))

    def read_target_offsets(self) -> np.ndarray | None:
        """Return the draft's d2t table, or None if there is none."""
        return self.read("d2t") if "d2t" in self.parameters else None

    def read(self, path: str) -> np.ndarray:
        """Read a parameter; KeyError if the store lacks it, ValueError if files are damaged."""
        with self._opened(path) as stored:
            return read_array(stored)

    def read_sharded(
        self, path: str, sharding: Sharding, dtype: np.dtype | None = None
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
    found, expected = files_below(directory / ITEMS, directory), manifest.contents.files
    lost = differences({name: found[name] for name in expected if name in found}, expected)
    if check_files and lost:
        raise ValueError(
            f"{directory} is damaged: {lost[0]} ({len(lost)} of {len(expected)} files); "
            "convert again"
        )
    return Store(directory, manifest, {entry.path: entry for entry in manifest.contents.parameters})


def verify_store(
    store: Store, on_bytes: Callable[[int], None] = lambda _: None
) -> tuple[list[str], list[str]]:
    """Read everything; compare files, shapes, bytes and checksums with the manifest.

    Returns a line for each damaged parameter, and one for each file that is missing, changed or
    unexpected. Raises ValueError for links.
    """
    found = files_below(store.directory / ITEMS, store.directory)
    wrong_files = differences(found, store.manifest.contents.files)
    damage = []
    for parameter in store.parameters.values():
        try:
            if checksum(store.read(parameter.path)) != parameter.checksum:
                damage.append(f"{parameter.path}: its checksum differs")
        except ValueError as error:
            damage.append(str(error))
        on_bytes(parameter.nbytes)
    return damage, [*_wrong_side_files(store), *wrong_files, *_wrong_items(store)]


def _wrong_side_files(store: Store) -> Iterator[str]:
    for name, expected in store.manifest.contents.side_files.items():
        file = store.directory / name
        if not file.is_file():
            yield f"{name}: missing"
        elif file_checksum(file) != expected:
            yield f"{name}: its checksum differs"


def _wrong_items(store: Store) -> Iterator[str]:
    """Yield an error for each item with parameters that the manifest does not list."""
    listed = {(parameter.item, path) for path, parameter in store.parameters.items()}
    for item in sorted((store.directory.absolute() / ITEMS).glob("*")):
        try:
            found = paths_of(item)
        except Exception:  # Checks of files and parameters report the damage.
            continue
        if extra := sorted(path for path in found if (item.name, path) not in listed):
            yield f"{item.name}: holds {extra}, which the manifest does not list"
