"""Code objects as HIP loads them: with variables, relocations and hidden arguments.

Source: the ELF specification, and LLVM's "User Guide for AMDGPU Backend".
"""

import struct
from collections.abc import Iterator, Sequence

from eagle3_tools.aot.amd import machine_code
from eagle3_tools.aot.amd.code_object import read_metadata
from eagle3_tools.aot.amd.machine_code import Kernel
from eagle3_tools.twin.bundles import unbundled

_ABSOLUTE, _RELATIVE = 3, 13
_RELA, _DYNAMIC_SYMBOLS = 4, 11


class CodeObject:
    """A code object for gfx950. `address` is the place of its image once it was loaded."""

    def __init__(self, data: bytes):
        """Read the code object, or find it in a bundle; raise ValueError if there is none."""
        self._elf = unbundled(data)
        self.entries = {e[".name"]: e for e in read_metadata(self._elf)["amdhsa.kernels"]}
        self.image = machine_code._image(self._elf)
        self.symbols = machine_code._symbols(self._elf)
        self.address = 0
        self._kernels: dict[str, Kernel] | None = None

    def kernel(self, name: str) -> Kernel:
        """Return the decoded kernel."""
        if self._kernels is None:
            self._kernels = machine_code.read_kernels(self._elf)
        return self._kernels[name]

    def placed(self, address: int) -> bytes:
        """Return the image relocated to `address`, where its variables will be."""
        self.address, image = address, bytearray(self.image)
        for kind, at, addend, symbol in self._relocations():
            value = self._symbol_value(symbol) if kind == _ABSOLUTE else 0
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

    def _relocations(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield kind, place, addend and symbol."""
        for section in self._sections(_RELA):
            for at in range(section[4], section[4] + section[5], 24):
                place, info, addend = struct.unpack_from("<QQq", self._elf, at)
                yield info & 0xFFFF_FFFF, place, addend, info >> 32

    def _symbol_value(self, index: int) -> int:
        (table,) = self._sections(_DYNAMIC_SYMBOLS)
        return struct.unpack_from("<IBBHQQ", self._elf, table[4] + 24 * index)[4]

    def _sections(self, kind: int) -> list[tuple[int, ...]]:
        (table,) = struct.unpack_from("<Q", self._elf, 40)
        size, count = struct.unpack_from("<HH", self._elf, 58)
        found = [
            struct.unpack_from("<IIQQQQIIQQ", self._elf, table + k * size) for k in range(count)
        ]
        return [section for section in found if section[1] == kind]
