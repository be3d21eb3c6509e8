"""One launch of a kernel: its workgroups, in batches, with the registers that hardware sets.

Source: LLVM's "User Guide for AMDGPU Backend", "Initial Kernel Execution State"; work-items' ids
are packed into one vector register on these GPUs.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from eagle3_tools.amdgpu.emulator.local_memory import LocalMemory
from eagle3_tools.amdgpu.emulator.machine import Machine
from eagle3_tools.amdgpu.emulator.memory import Fault, GlobalMemory
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves
from eagle3_tools.aot.amd.machine_code import Kernel

MOST_WAVES = 256
"""Of a batch: more don't fit in caches, fewer cost more Python for each."""
_LDS_BITS = re.compile(r"ds_\w+_[biu](8|16)\b")


@dataclass(frozen=True)
class LaunchCounts:
    """workgroups and waves that ran, and wave instructions by name.

    loads_beyond: loads of lanes that ended behind their buffer, in the block it was allocated in;
    loads_unwritten: those of bytes that nobody wrote.
    """

    workgroups: int
    waves: int
    instructions: Counter[str]
    loads_beyond: int = 0
    loads_unwritten: int = 0


def launch(
    kernel: Kernel,
    memory: GlobalMemory,
    arguments: Sequence[int],
    *,
    grid: tuple[int, int, int],
    threads: tuple[int, int, int],
    dynamic_lds: int = 0,
    groups: Sequence[tuple[int, int, int]] | None = None,
    poison: int,
) -> LaunchCounts:
    """Runs a kernel on memory.

    arguments: addresses or numbers, 8 bytes each. grid: workgroups in x, y, z; groups: only those.
    poison: what registers and local memory hold at the start. Raises Fault where the kernel does
    what it must not.
    """
    if kernel.scratch_bytes:
        raise Fault(f"{kernel.name} needs {kernel.scratch_bytes} bytes of scratch memory a lane")
    if len(arguments) != len(kernel.arguments):
        raise Fault(f"{kernel.name} takes {len(kernel.arguments)} arguments, not {len(arguments)}")
    there = [(x, y, z) for z, y, x in product(*(range(n) for n in reversed(grid)))]
    wanted = there if groups is None else list(groups)
    where = memory.place(_segment(arguments, poison), f"arguments of {kernel.name}")
    waves = -(-int(np.prod(threads)) // LANES)
    machine, batch = Machine(kernel), max(1, MOST_WAVES // waves)
    lds_bytes = kernel.lds_bytes + dynamic_lds
    memory.begin_launch(len(there))
    before = memory.loads_beyond, memory.loads_unwritten
    for first in range(0, len(wanted), batch):
        part = wanted[first : first + batch]
        ready = _waves(kernel, memory, part, grid, threads, lds_bytes, poison)
        _set_registers(ready, kernel, where, part, threads)
        machine.run(ready)
    return LaunchCounts(
        len(wanted),
        waves * len(wanted),
        machine.counts,
        memory.loads_beyond - before[0],
        memory.loads_unwritten - before[1],
    )


def _waves(
    kernel: Kernel,
    memory: GlobalMemory,
    groups: Sequence[tuple[int, int, int]],
    grid: tuple[int, int, int],
    threads: tuple[int, int, int],
    lds_bytes: int,
    poison: int,
) -> Waves:
    count = -(-int(np.prod(threads)) // LANES)
    group = np.repeat(np.arange(len(groups)), count)
    number = np.tile(np.arange(count), len(groups))
    identity = np.array([x + grid[0] * (y + grid[1] * z) for x, y, z in groups])[group]
    lds = LocalMemory(len(groups), lds_bytes, _granule(kernel), poison)
    return Waves(group, number, identity, memory, lds, kernel.arch, poison)


def _segment(arguments: Sequence[int], poison: int) -> np.ndarray:
    """The arguments as kernels load them: in blocks of 64 bytes, of which they use a part."""
    segment = np.full(-(-max(len(arguments), 1) // 8) * 16, poison, np.uint32).view(np.uint64)
    segment[: len(arguments)] = arguments
    return segment


def _granule(kernel: Kernel) -> int:
    """The smallest access of local memory: neighbours within it are no conflict."""
    found = (_LDS_BITS.match(i.name) for i in kernel.code.values())
    return min([4, *(int(bits[1]) // 8 for bits in found if bits)])


def _set_registers(
    w: Waves,
    kernel: Kernel,
    arguments: int,
    groups: Sequence[tuple[int, int, int]],
    threads: tuple[int, int, int],
) -> None:
    w.scalars[0], w.scalars[1] = arguments & 0xFFFF_FFFF, arguments >> 32
    place = kernel.user_registers
    for axis in (axis for axis in range(3) if kernel.group_ids[axis]):
        w.scalars[place] = np.array([group[axis] for group in groups], np.uint32)[w.group]
        place += 1
    thread = w.number[:, None] * LANES + np.arange(LANES)
    plane = threads[0] * threads[1]
    x, y, z = thread % threads[0], thread % plane // threads[0], thread // plane
    w.vectors[0] = x | y << 10 | z << 20
    w.set_exec(thread < np.prod(threads))
