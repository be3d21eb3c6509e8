"""Code objects as HIP gets them: bundled, compressed, with variables and relocations.

Source: LLVM's "Clang Offload Bundler" for bundles, the ELF specification for the rest.
"""

import ctypes
import struct
from collections.abc import Iterator, Sequence

from eagle3_tools.aot.amd import machine_code
from eagle3_tools.aot.amd.code_object import read_metadata
from eagle3_tools.aot.amd.machine_code import Kernel

_TARGET = "gfx950"
_ABSOLUTE, _RELATIVE = 3, 13
_RELA, _DYNAMIC_SYMBOLS = 4, 11
_ZSTD = 1


class CodeObject:
    """A code object for gfx950. `address` is the place of its image once it was loaded."""

    def __init__(self, data: bytes):
        """Read the code object, or find it in a bundle; raise ValueError if there is none."""
        self._elf = _unbundled(data)
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


def _unbundled(data: bytes) -> bytes:
    if data[:4] == b"CCOB":
        data = _decompressed(data)
    if not data.startswith(b"__CLANG_OFFLOAD_BUNDLE__"):
        return data
    (count,) = struct.unpack_from("<Q", data, 24)
    at, found = 32, []
    for _ in range(count):
        offset, size, length = struct.unpack_from("<QQQ", data, at)
        found.append(data[at + 24 : at + 24 + length].decode())
        at += 24 + length
        if _TARGET in found[-1]:
            return data[offset : offset + size]
    raise ValueError(f"no code for {_TARGET} in a bundle of {found}")


def _decompressed(data: bytes) -> bytes:
    """Unpack a compressed bundle; the header's sizes have 32 bits before version 3."""
    version, method = struct.unpack_from("<HH", data, 4)
    header, where = {1: (20, 8), 2: (24, 12)}.get(version, (32, 16))
    (size,) = struct.unpack_from("<Q" if version >= 3 else "<I", data, where)
    if method != _ZSTD:
        raise ValueError(f"bundle compressed by method {method}, expected zstd ({_ZSTD})")
    zstd = ctypes.CDLL("libzstd.so.1")
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    zstd.ZSTD_decompress.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    ]
    out = ctypes.create_string_buffer(size)
    done = zstd.ZSTD_decompress(out, size, data[header:], len(data) - header)
    if done != size:
        raise ValueError(f"bundle of version {version}: {done} bytes instead of {size}")
    return out.raw
