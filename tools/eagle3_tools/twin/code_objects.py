"""Code objects as HIP loads them: with variables, relocations and hidden arguments.

Source: the ELF specification, and LLVM's "User Guide for AMDGPU Backend".
"""

import struct
from collections.abc import Sequence
from functools import cached_property

from eagle3_tools.aot.amd.code_object import Elf, read_metadata
from eagle3_tools.aot.amd.machine_code import Kernel, read_kernels
from eagle3_tools.twin.bundles import unbundled

_ABSOLUTE, _RELATIVE = 3, 13
_RELA = 4


class CodeObject:
    """A code object for gfx950. `address` is the place of its image once it was loaded."""

    def __init__(self, data: bytes):
        """Read the code object, or find it in a bundle; raise ValueError if there is none."""
        self._elf = Elf(unbundled(data))
        self.entries = {e[".name"]: e for e in read_metadata(self._elf.data)["amdhsa.kernels"]}
        self.image = self._elf.image()
        self._symbols = self._elf.symbols()
        self.symbols = {name: (value, size) for name, value, size in self._symbols}
        self.address = 0

    @cached_property
    def kernels(self) -> dict[str, Kernel]:
        """Kernels by name."""
        return read_kernels(self._elf.data)

    def placed(self, address: int) -> bytes:
        """Return the image relocated to `address`, where its variables will be."""
        self.address, image = address, bytearray(self.image)
        for _, (at, info, addend) in self._elf.entries(_RELA, "<QQq"):
            kind, symbol = info & 0xFFFF_FFFF, info >> 32
            value = self._symbols[symbol][1] if kind == _ABSOLUTE else 0
            if kind not in (_ABSOLUTE, _RELATIVE):
                raise ValueError(f"relocation of kind {kind}, which the twin does not know")
            struct.pack_into("<Q", image, at, address + value + addend)
        return bytes(image)

    def fill_hidden(
        self, name: str, segment: bytearray, grid: Sequence[int], threads: Sequence[int]
    ) -> None:
        """Write the hidden arguments of a launch: its sizes; all others are 0."""
        for argument in self.entries[name][".args"]:
            kind = argument[".value_kind"]
            if not kind.startswith("hidden_"):
                continue
            value, start = 0, kind.removeprefix("hidden_")
            if start[:-1] in ("block_count_", "group_size_"):
                sizes = grid if start.startswith("block") else threads
                value = sizes["xyz".index(start[-1])]
            elif start == "grid_dims":
                value = 3
            offset, size = argument[".offset"], argument[".size"]
            segment[offset : offset + size] = value.to_bytes(size, "little")
