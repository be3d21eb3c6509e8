"""What differs between vendors: the compiler, the files it leaves, and what is read in them."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax._src import xla_bridge
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

from eagle3_tools.aot.triton_calls import TritonCall
from eagle3_tools.kernel_model.facts import KernelFacts
from pallas_kernels.gpu import Gpu

NARROW = 2
"""Bytes a lane up to which a load is narrow: it takes as long as one of 16."""


@dataclass(frozen=True)
class Column:
    """A figure of kernels in the tables. worst: of several kernels' figures."""

    heading: str
    value: Callable[[Any, Gpu], float]
    worst: Callable[[Iterable[float]], float] = max


class Target(ABC):
    """One vendor's compiler.

    platform: JAX's name of it; name: the vendor's. plugin: the module in `jax_plugins` that holds
    the compiler, and the name of its library. columns: of the tables.
    """

    platform: str
    name: str
    plugin: tuple[str, str]
    columns: Sequence[Column]

    @property
    def not_installed(self) -> str:
        """What to say where it is missing."""
        return (
            f"XLA's {self.name} compiler is not installed: pip install "
            f"'eagle3-jax[{self.platform}]' (no GPU needed)"
        )

    def is_installed(self) -> bool:
        """Whether XLA's compiler is there."""
        return self._package() is not None

    def library(self) -> Path:
        """XLA's plugin. Raises RuntimeError where it is not installed."""
        found = self._package()
        if found is None:
            raise RuntimeError(self.not_installed)
        return found / self.plugin[1]

    def _package(self) -> Path | None:
        """Without any plugin there is no package jax_plugins."""
        try:
            found = importlib.util.find_spec(f"jax_plugins.{self.plugin[0]}")
        except ModuleNotFoundError:
            return None
        locations = found.submodule_search_locations if found else None
        return Path(locations[0]) if locations else None

    def load(self) -> None:
        """Makes the compiler known to JAX."""
        options = {
            **xla_client.generate_pjrt_gpu_plugin_options(),
            "platform_name": self.platform.upper(),
        }
        library = str(self.library())
        xla_bridge.register_plugin(
            self.platform, priority=500, library_path=library, options=options
        )

    @abstractmethod
    def description(self, gpu: Gpu) -> str:
        """XLA's description of the GPU, as text."""

    @abstractmethod
    def kept_files(self) -> AbstractContextManager[Path]:
        """Where the compiler leaves its files meanwhile."""

    @abstractmethod
    def options(self, folder: Path) -> dict[str, str | bool]:
        """Of the compiler, so that it does."""

    @abstractmethod
    def kernels_of(self, arch: str, hlo: str, folder: Path) -> list[Any]:
        """The kernels of a program whose files are in `folder`."""

    @abstractmethod
    def problems(self, kernel: Any, gpu: Gpu) -> list[str]:
        """What this GPU does not have, or what costs too much there."""

    @abstractmethod
    def narrow_loads(self, kernel: Any, call: TritonCall) -> dict[int, int]:
        """Arguments that its code loads in pieces of one or two bytes, with how many loads."""

    @abstractmethod
    def facts(self, kernel: Any, call: TritonCall, arch: str) -> KernelFacts:
        """What the code of a kernel does that this call launches."""

    @abstractmethod
    def short_name(self, instruction: str) -> str:
        """Of a matrix instruction: what it multiplies."""
