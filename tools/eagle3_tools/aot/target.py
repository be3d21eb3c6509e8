"""Interface to a vendor: its compiler, the compiler's files and their contents."""

import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax._src import xla_bridge
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

from eagle3_tools.aot.triton_calls import TritonCall
from eagle3_tools.kernel_model.facts import NOTHING, KernelFacts
from pallas_kernels.gpu import Gpu


class Kernel:
    """A compiled kernel. matrix: count of each matrix instruction in its code."""

    name: str
    matrix: dict[str, int]

    def is_called(self, name: str) -> bool:
        """Return whether this is the kernel's name, with or without XLA's number for duplicates."""
        return re.fullmatch(rf"{re.escape(name)}(__\d+)?", self.name) is not None


_LAUNCH = re.compile(r"\S* (\S+) grid: .*shared_memory: (\d+) bytes")
NARROW = 2
"""Bytes a lane of the widest narrow load, which takes as long as a load of 16 bytes."""


def launch_facts(
    name: str, arch: str, call: TritonCall, *, warps: int, registers: int, lds: int
) -> KernelFacts:
    """Return the facts of a launch, without those of the kernel's code."""
    sizes = call.stages, registers, lds, dict(call.operands), call.result_bytes
    return KernelFacts(name, arch, call.grid, warps, *sizes, (), NOTHING)


def dynamic_memory(folder: Path) -> dict[str, int]:
    """Return kernel -> bytes of local memory that its launches add, from XLA's dump."""
    launched = "\n".join(f.read_text() for f in folder.glob("*.thunk_sequence.txt"))
    return {name: int(size) for name, size in _LAUNCH.findall(launched)}


@dataclass(frozen=True)
class Column:
    """A column of the tables. worst: reduces the figures of several kernels."""

    heading: str
    value: Callable[[Any, Gpu], float]
    worst: Callable[[Iterable[float]], float] = max


class Target(ABC):
    """Compiler of one vendor.

    platform: JAX's name of the vendor; name: the vendor's own. plugins: modules in `jax_plugins`
    that contain the compiler, of which the first installed one is used. library_name: the
    compiler's file in such a module. columns: of the tables.
    """

    platform: str
    name: str
    plugins: Sequence[str]
    library_name: str
    columns: Sequence[Column]

    @property
    def not_installed(self) -> str:
        """Error message if the compiler is missing."""
        return (
            f"XLA's {self.name} compiler is not installed: pip install "
            f"'eagle3-jax[{self.platform}]' (no GPU needed)"
        )

    def is_installed(self) -> bool:
        """Return whether XLA's compiler is installed."""
        return self._package() is not None

    def library(self) -> Path:
        """Return the path of XLA's plugin. Raises RuntimeError if it is not installed."""
        found = self._package()
        if found is None:
            raise RuntimeError(self.not_installed)
        return found / self.library_name

    def _package(self) -> Path | None:
        """Return the plugin's folder, if any. Without plugins there is no package jax_plugins."""
        try:
            found = [importlib.util.find_spec(f"jax_plugins.{name}") for name in self.plugins]
        except ModuleNotFoundError:
            return None
        folders = [one.submodule_search_locations for one in found if one]
        return next((Path(folder[0]) for folder in folders if folder), None)

    def load(self) -> None:
        """Register the compiler with JAX."""
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
        """Return XLA's text description of the GPU."""

    @abstractmethod
    def kept_files(self) -> AbstractContextManager[Path]:
        """Return a context whose folder receives the compiler's files."""

    @abstractmethod
    def options(self, folder: Path) -> dict[str, str | bool]:
        """Return the compiler options that make it write these files to `folder`."""

    @abstractmethod
    def kernels_of(self, arch: str, hlo: str, folder: Path) -> list[Any]:
        """Return the kernels of a program whose files are in `folder`."""

    @abstractmethod
    def problems(self, kernel: Any, gpu: Gpu) -> list[str]:
        """List features that this GPU lacks or that are too expensive there."""

    @abstractmethod
    def narrow_loads(self, kernel: Any, call: TritonCall) -> dict[int, int]:
        """Return arguments that are loaded in pieces of one or two bytes, with the load count."""

    @abstractmethod
    def facts(self, kernel: Any, call: TritonCall, arch: str) -> KernelFacts:
        """Return facts of the kernel's code for this launch."""

    @abstractmethod
    def short_name(self, instruction: str) -> str:
        """Return the operand type of a matrix instruction."""
