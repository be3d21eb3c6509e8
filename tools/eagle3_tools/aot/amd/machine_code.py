"""Kernels in AMD code objects: their code, and their state before the first instruction.

Source: LLVM's "User Guide for AMDGPU Backend", "Code Object" and "Kernel Descriptor".
"""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eagle3_tools.aot.amd.code_object import Elf, read_metadata, taken_arguments
from eagle3_tools.aot.amd.decode import Instruction, decode

_ARGUMENTS = 8
"""Kernel property: user registers hold the address of the arguments."""
_BEFORE = {1: 4, 2: 2, 4: 2}
"""Properties whose user registers come before that address: a buffer for scratch memory, the
launch's packet, its queue."""


class Code(Mapping[int, Instruction]):
    """Instructions by their distance from the first, decoded when the first one is asked for.

    `raw` is the machine code. Raises ValueError if its bytes are no CDNA instructions.
    """

    def __init__(self, raw: bytes):
        self.raw = raw

    @cached_property
    def _decoded(self) -> dict[int, Instruction]:
        return decode(self.raw)

    def __getitem__(self, pc: int) -> Instruction:
        return self._decoded[pc]

    def __iter__(self) -> Iterator[int]:
        return iter(self._decoded)

    def __len__(self) -> int:
        return len(self._decoded)


@dataclass(frozen=True)
class Kernel:
    """A kernel in a code object.

    code: instructions by their distance from the first. lds_bytes: without the dynamic part.
    user_registers: scalar registers set before the start; group_ids: which of x, y and z follow
    them. arguments_at: the first of two scalar registers with the arguments' address. arguments:
    metadata of each.
    """

    name: str
    arch: str
    code: Mapping[int, Instruction]
    lds_bytes: int
    scratch_bytes: int
    user_registers: int
    group_ids: tuple[bool, bool, bool]
    arguments_at: int
    arguments: tuple[dict[str, Any], ...]


def read_kernels(elf: bytes) -> dict[str, Kernel]:
    """Return the kernels of a code object by name. Raises ValueError if `elf` is none."""
    metadata = read_metadata(elf)
    arch = re.search(r"gfx\w+", metadata["amdhsa.target"])[0]  # pyright: ignore
    image, symbols = Elf(elf).image(), {name: place for name, *place in Elf(elf).symbols()}
    return {
        entry[".name"]: _read_kernel(entry, arch, image, symbols)
        for entry in metadata["amdhsa.kernels"]
    }


def _read_kernel(entry: Any, arch: str, image: bytes, symbols: dict[str, list[int]]) -> Kernel:
    name = entry[".name"]
    descriptor, _ = symbols[entry[".symbol"]]
    lds, scratch = struct.unpack_from("<II", image, descriptor)
    (offset,) = struct.unpack_from("<q", image, descriptor + 16)
    (resources,) = struct.unpack_from("<I", image, descriptor + 52)
    (properties,) = struct.unpack_from("<H", image, descriptor + 56)
    if not properties & _ARGUMENTS:
        raise ValueError(f"{name} wants no register set to its arguments: {properties:#x}")
    start, (_, size) = descriptor + offset, symbols[name]
    return Kernel(
        name=name,
        arch=arch,
        code=Code(image[start : start + size]),
        lds_bytes=lds,
        scratch_bytes=scratch,
        user_registers=resources >> 1 & 31,
        group_ids=tuple(bool(resources >> bit & 1) for bit in (7, 8, 9)),  # pyright: ignore
        arguments_at=sum(size for bit, size in _BEFORE.items() if properties & bit),
        arguments=tuple(taken_arguments(entry)),
    )
