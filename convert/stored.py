"""A converted checkpoint as the parameters of a model."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from convert.files.safetensors_files import read_json
from convert.store.reader import Store, open_store
from pallas_kernels import QuantFormat


@dataclass(frozen=True)
class Stored:
    """A store and its config.json, with the methods of `PublishedParameters`."""

    store: Store
    config: Mapping[str, Any]

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return self.store.directory

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of the weights it was made from, [out, in]."""
        return self.store.manifest.origin.tensors

    @property
    def formats(self) -> dict[str, QuantFormat]:
        """The parameters that stay quantised, as published."""
        given = self.store.manifest.origin.formats
        return {path: QuantFormat(**names) for path, names in given.items()}  # type: ignore[arg-type]

    def check(self, paths: Collection[str], skip: Collection[str]) -> None:
        """Raises ValueError unless the store holds exactly these parameters.

        skip: submodules whose parameters may be there and stay unused.
        """
        stored = {path for path in self.store.parameters if path.split(".")[0] not in skip}
        missing, surplus = sorted(set(paths) - stored), sorted(stored - set(paths))
        if missing or surplus:
            raise ValueError(
                f"{self.directory} does not fit its config.json: parameters missing {missing}, "
                f"parameters of no use {surplus}; convert it again"
            )

    def load(
        self, path: str, dtype: np.dtype | None, shape: tuple[int, ...], sharding: Sharding | None
    ) -> jax.Array:
        """One parameter on its devices, cast to `dtype` unless it is None; each reads what it
        holds."""
        if (stored := self.store.parameters[path].shape) != shape:
            raise ValueError(f"{path}: expected shape {shape}, {self.directory} has {stored}")
        if sharding is None:
            array = self.store.read(path)
            return jax.device_put(array.astype(dtype or array.dtype, copy=False))
        return self.store.read_sharded(path, sharding, dtype)

    def read_target_offsets(self) -> np.ndarray | None:
        """The draft's d2t, or None without one."""
        return self.store.read("d2t") if "d2t" in self.store.parameters else None


def open_stored(directory: Path) -> Stored:
    """Opens a converted checkpoint; FileNotFoundError or ValueError when it is damaged."""
    return Stored(open_store(directory), read_json(directory / "config.json"))
