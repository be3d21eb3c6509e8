"""Read a converted checkpoint as the parameters of a model."""

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
    """A converted checkpoint and its config.json, with the methods of `PublishedParameters`."""

    store: Store
    config: Mapping[str, Any]

    @property
    def directory(self) -> Path:
        """Directory of the checkpoint."""
        return self.store.directory

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Names and [out, in] shapes of the published weights that it was converted from."""
        return self.store.manifest.origin.tensors

    @property
    def formats(self) -> dict[str, QuantFormat]:
        """Formats of the parameters that stay quantised, as published."""
        given = self.store.manifest.origin.formats
        return {path: QuantFormat(**names) for path, names in given.items()}  # type: ignore[arg-type]

    def check(self, paths: Collection[str], skip: Collection[str]) -> None:
        """Raise ValueError unless the checkpoint holds exactly these parameters.

        Parameters of the submodules in `skip` may be present and stay unused.
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
        """Load one parameter, cast to `dtype` unless None; each device reads only its slices."""
        if (stored := self.store.parameters[path].shape) != shape:
            raise ValueError(f"{path}: expected shape {shape}, {self.directory} has {stored}")
        if sharding is None:
            array = self.store.read(path)
            return jax.device_put(array.astype(dtype or array.dtype, copy=False))
        return self.store.read_sharded(path, sharding, dtype)

    def read_target_offsets(self) -> np.ndarray | None:
        """Return the draft's d2t table, or None if there is none."""
        return self.store.read("d2t") if "d2t" in self.store.parameters else None


def open_stored(directory: Path) -> Stored:
    """Open a converted checkpoint; FileNotFoundError or ValueError if it is damaged."""
    return Stored(open_store(directory), read_json(directory / "config.json"))
