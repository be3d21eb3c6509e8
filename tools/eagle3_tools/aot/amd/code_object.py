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

from flax.serialization import msgpack_restore

from eagle3_tools.aot.target import Kernel

_NARROW = re.compile(
    r"load (?:(?:<1 x )?(?:i8|i16|bfloat|half)>?|<2 x i8>), ptr addrspace\([178]\)"
    r"|buffer\.load\.(?:i8|i16|bf16|f16)\b"
)
_LOADED, _NOTE_SEGMENT = 1, 4
_DYNAMIC_SYMBOLS, _AMDGPU_METADATA = 11, 32


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


class Elf:
    """Headers of segments and sections of a 64-bit ELF file, with the numbers of its format."""

    def __init__(self, data: bytes):
        self.data = data
        self.segments = self._table(32, 54, "<IIQQQQQQ")
        self.sections = self._table(40, 58, "<IIQQQQIIQQ")

    def _table(self, at: int, sizes_at: int, form: str) -> list[tuple[int, ...]]:
        (start,) = struct.unpack_from("<Q", self.data, at)
        size, count = struct.unpack_from("<HH", self.data, sizes_at)
        return [struct.unpack_from(form, self.data, start + k * size) for k in range(count)]

    def image(self) -> bytes:
        """Return the loadable segments at their memory addresses."""
        loaded = [(s[3], self.data[s[2] : s[2] + s[5]]) for s in self.segments if s[0] == _LOADED]
        image = bytearray(max(start + len(data) for start, data in loaded))
        for start, data in loaded:
            image[start : start + len(data)] = data
        return bytes(image)

    def entries(self, kind: int, form: str) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield each section of a kind with each of its entries."""
        for section in (s for s in self.sections if s[1] == kind):
            end = section[4] + section[5]
            for at in range(section[4], end, struct.calcsize(form)):
                yield section, struct.unpack_from(form, self.data, at)

    def symbols(self) -> list[tuple[str, int, int]]:
        """Return name, address and size of the exported symbols, in their order."""
        found = []
        for section, (name, _, _, _, value, size) in self.entries(_DYNAMIC_SYMBOLS, "<IBBHQQ"):
            start = self.sections[section[6]][4] + name
            end = self.data.index(b"\0", start)
            found.append((self.data[start:end].decode(), value, size))
        return found


def read_metadata(elf: bytes) -> dict[str, Any]:
    """Read the metadata of a code object. Raises ValueError if `elf` is none."""
    for _, _, start, _, _, length, _, _ in (s for s in Elf(elf).segments if s[0] == _NOTE_SEGMENT):
        end = start + length
        while start < end:
            name_size, size, kind = struct.unpack_from("<III", elf, start)
            name = elf[start + 12 : start + 12 + name_size]
            start += 12 + -(-name_size // 4) * 4
            if kind == _AMDGPU_METADATA and name.startswith(b"AMDGPU"):
                found: Any = msgpack_restore(elf[start : start + size])
                return found
            start += -(-size // 4) * 4
    raise ValueError("no AMDGPU metadata: this is no code object")


def taken_arguments(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments of a kernel's metadata that a launch is given; others are hidden."""
    return [a for a in entry[".args"] if not a[".value_kind"].startswith("hidden")]
