"""Launch a kernel: run its workgroups in batches, with registers initialised as hardware does.

Source: LLVM's "User Guide for AMDGPU Backend", "Initial Kernel Execution State". These GPUs pack
work-item ids into one vector register.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from eagle3_tools.amdgpu.emulator.local_memory import LocalMemory
from eagle3_tools.amdgpu.emulator.machine import Machine
from eagle3_tools.amdgpu.emulator.memory import Fault, GlobalMemory
from eagle3_tools.amdgpu.emulator.native.machine import NativeMachine
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves
from eagle3_tools.aot.amd.machine_code import Kernel

MOST_WAVES = 256
"""Waves of a batch. More do not fit in caches; fewer have more Python overhead."""


@dataclass(frozen=True)
class LaunchCounts:
    """Workgroups and waves that ran, and wave instructions by name.

    `loads_beyond` counts loads that ended beyond their buffer but within its allocation block,
    `loads_unwritten` loads of unwritten bytes.
    """

    workgroups: int
    waves: int
    instructions: Counter[str]
    loads_beyond: int = 0
    loads_unwritten: int = 0


def launch(
    machine: Machine | NativeMachine,
    memory: GlobalMemory,
    arguments: Sequence[int],
    *,
    grid: tuple[int, int, int],
    threads: tuple[int, int, int],
    dynamic_lds: int = 0,
    poison: int,
) -> LaunchCounts:
    """Run a machine's kernel on memory; raise Fault if it does something invalid.

    `arguments` are addresses or numbers, 8 bytes each. `grid` is in workgroups. `poison` fills
    registers and local memory at the start. The machine keeps what it translated for the next
    launch; `machine_of` makes the fast one.
    """
    kernel = machine.kernel
    if kernel.scratch_bytes:
        raise Fault(f"{kernel.name} needs {kernel.scratch_bytes} bytes of scratch memory a lane")
    if len(arguments) != len(kernel.arguments):
        raise Fault(f"{kernel.name} takes {len(kernel.arguments)} arguments, not {len(arguments)}")
    wanted = [(x, y, z) for z, y, x in product(*(range(n) for n in reversed(grid)))]
    where = memory.place(_segment(arguments, poison), f"arguments of {kernel.name}")
    waves = -(-int(np.prod(threads)) // LANES)
    counted = machine.counts
    memory.begin_launch(len(wanted))
    before = memory.loads_beyond, memory.loads_unwritten

    def ready(part: Sequence[tuple[int, int, int]]) -> Waves:
        group = np.repeat(np.arange(len(part)), waves)
        places = np.array(part)[group]
        identity = places @ np.array([1, grid[0], grid[0] * grid[1]])
        number = np.tile(np.arange(waves), len(part))
        lds = LocalMemory(len(part), kernel.lds_bytes + dynamic_lds, machine.granule, poison)
        w = Waves(group, number, identity, memory, lds, kernel.arch, poison)
        _set_registers(w, kernel, where, places, threads)
        return w

    if isinstance(machine, NativeMachine):
        machine.run(ready(wanted[:1]), wanted, grid)
    else:
        batch = max(1, MOST_WAVES // waves)
        for first in range(0, len(wanted), batch):
            machine.run(ready(wanted[first : first + batch]))
    return LaunchCounts(
        len(wanted),
        waves * len(wanted),
        machine.counts - counted,
        memory.loads_beyond - before[0],
        memory.loads_unwritten - before[1],
    )


def _segment(arguments: Sequence[int], poison: int) -> np.ndarray:
    """Pad the arguments to blocks of 64 bytes, which kernels load whole."""
    segment = np.full(-(-max(len(arguments), 1) // 8) * 16, poison, np.uint32).view(np.uint64)
    segment[: len(arguments)] = arguments
    return segment


def _set_registers(
    w: Waves, kernel: Kernel, arguments: int, places: np.ndarray, threads: tuple[int, int, int]
) -> None:
    w.scalars[0], w.scalars[1] = arguments & 0xFFFF_FFFF, arguments >> 32
    axes = [axis for axis in range(3) if kernel.group_ids[axis]]
    for register, axis in enumerate(axes, kernel.user_registers):
        w.scalars[register] = places[:, axis]
    thread = w.number[:, None] * LANES + np.arange(LANES)
    plane = threads[0] * threads[1]
    x, y, z = thread % threads[0], thread % plane // threads[0], thread // plane
    w.vectors[0] = x | y << 10 | z << 20
    w.set_exec(thread < np.prod(threads))
