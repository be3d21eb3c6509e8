"""Kernel metadata of AMDGPU code objects: registers, spills, scratch memory.

The notes are those of the AMDGPU ABI ("Code Object V3 and later" in LLVM's AMDGPU user guide): a
MessagePack map in an ELF note. XLA also writes the optimised LLVM IR, which has the matrix
instructions.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_tools.aot.target import Kernel

_NARROW = re.compile(
    r"load (?:(?:<1 x )?(?:i8|i16|bfloat|half)>?|<2 x i8>), ptr addrspace\([178]\)"
    r"|buffer\.load\.(?:i8|i16|bf16|f16)\b"
)
_NOTE_SEGMENT, _AMDGPU_METADATA = 4, 32
_LENGTHS = {0xD9: "B", 0xC4: "B", 0xDA: "H", 0xC5: "H", 0xDE: "H", 0xDF: "I", 0xDC: "H", 0xDD: "I"}
_NUMBERS = {0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}


@dataclass(frozen=True)
class GpuKernel(Kernel):
    """One compiled kernel.

    vgprs: vector registers, accumulation registers included. scratch_bytes: memory a lane needs
    because registers did not suffice. matrix: matrix instructions in the code object, by LLVM's
    name without "llvm.amdgcn.". lds_bytes: of a workgroup; a code object states only the static
    part.
    """

    name: str
    vgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    lds_bytes: int
    threads: int
    matrix: dict[str, int]
    code: bytes = field(default=b"", repr=False, compare=False)
    """The code object that contains the kernel."""
    loads_narrowly: bool = False
    """True if its IR has a load of one or two bytes a lane."""

    def waves_per_simd(self, lds_limit: int) -> int:
        """Return the waves that fit on one of a compute unit's four SIMDs; CDNA3 and CDNA4."""
        by_registers = min(8, 512 // max(8, -(-self.vgprs // 8) * 8))
        groups = lds_limit // self.lds_bytes if self.lds_bytes else 32
        return min(by_registers, max(1, groups * (self.threads // 64) // 4))


def read_code_object(path: Path) -> list[GpuKernel]:
    """Read the kernels of a .hsaco file from XLA, with the IR next to it if there is any."""
    ir = path.with_name(path.stem + "_opt.ll")
    text = ir.read_text() if ir.exists() else ""
    calls = re.findall(r"call[^\n]*@llvm\.amdgcn\.(s?mfma\w*[\w.]*)", text)
    code = path.read_bytes()
    return [
        GpuKernel(
            name=entry[".name"],
            vgprs=entry[".vgpr_count"],
            vgpr_spills=entry[".vgpr_spill_count"],
            sgpr_spills=entry[".sgpr_spill_count"],
            scratch_bytes=entry[".private_segment_fixed_size"],
            lds_bytes=entry[".group_segment_fixed_size"],
            threads=entry[".max_flat_workgroup_size"],
            matrix=dict(Counter(calls)),
            code=code,
            loads_narrowly=_NARROW.search(text) is not None,
        )
        for entry in read_metadata(code)["amdhsa.kernels"]
    ]


def read_metadata(elf: bytes) -> dict[str, Any]:
    """Read the metadata of a code object. Raises ValueError if `elf` is none."""
    for start, end in _note_segments(elf):
        while start < end:
            name_size, size, kind = struct.unpack_from("<III", elf, start)
            name = elf[start + 12 : start + 12 + name_size]
            start += 12 + -(-name_size // 4) * 4
            if kind == _AMDGPU_METADATA and name.startswith(b"AMDGPU"):
                return _unpack(elf, start)[0]
            start += -(-size // 4) * 4
    raise ValueError("no AMDGPU metadata: this is no code object")


def _note_segments(elf: bytes) -> Iterator[tuple[int, int]]:
    (table,) = struct.unpack_from("<Q", elf, 32)
    entry_size, count = struct.unpack_from("<HH", elf, 54)
    for index in range(count):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", elf, table + index * entry_size)
        if kind == _NOTE_SEGMENT:
            yield offset, offset + size


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    """Decode one MessagePack value; return it and the position of the next one."""
    tag, at = data[at], at + 1
    if tag <= 0x7F or tag >= 0xE0:
        return (tag if tag <= 0x7F else tag - 256), at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    if tag in _NUMBERS:
        code = ">" + _NUMBERS[tag]
        return struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)
    if tag in _LENGTHS:
        code = ">" + _LENGTHS[tag]
        length, at = struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)
    else:
        length = tag & (0x1F if 0xA0 <= tag <= 0xBF else 0x0F)
    is_map = 0x80 <= tag <= 0x8F or tag in (0xDE, 0xDF)
    if not is_map and not (0x90 <= tag <= 0x9F or tag in (0xDC, 0xDD)):
        return data[at : at + length].decode(errors="replace"), at + length
    found = []
    for _ in range(2 * length if is_map else length):
        value, at = _unpack(data, at)
        found.append(value)
    return (dict(zip(found[::2], found[1::2], strict=True)) if is_map else found), at
