"""Run the waves of several workgroups in lockstep until all have ended.

Of the waves that are not at a barrier, those with the smallest program counter run, so that waves
that diverged at a branch meet again.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.local_memory import granule_of
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.operations import translate
from eagle3_tools.amdgpu.emulator.waves import Waves
from eagle3_tools.aot.amd.decode import Instruction
from eagle3_tools.aot.amd.machine_code import Kernel

_NOWHERE = 1 << 62


class Machine:
    """Executes one kernel. `granule` is the unit of conflicts in its local memory, in bytes."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.granule = granule_of(i.name for i in kernel.code.values())
        self._runs: dict[int, tuple[Instruction, Callable[[Waves], Any]]] = {}
        self._executed: Counter[int] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """Executed wave instructions, by name."""
        total: Counter[str] = Counter()
        for pc, times in self._executed.items():
            total[self.kernel.code[pc].name] += times
        return total

    def run(self, w: Waves) -> None:
        """Run every wave to its end; raise Fault with the instruction."""
        w.pc[:] = 0
        ended, waiting = np.zeros(w.count, bool), np.zeros(w.count, bool)
        with np.errstate(all="ignore"):  # Hardware raises no exceptions either.
            while not ended.all():
                running = ~(ended | waiting)
                if running.any():
                    self._run_on(w, running, ended, waiting)
                else:
                    self._release(w, ended, waiting)

    def _release(self, w: Waves, ended: np.ndarray, waiting: np.ndarray) -> None:
        """Release the workgroups whose waves have all reached the barrier."""
        released = False
        for group in np.unique(w.group[waiting]):
            members = w.group == group
            if (waiting | ended)[members].all():
                w.lds.barrier(int(group))
                waiting[members] = False
                released = True
        if not released:
            raise Fault(f"{self.kernel.name}: waves wait for each other at barriers for ever")

    def _run_on(
        self, w: Waves, running: np.ndarray, ended: np.ndarray, waiting: np.ndarray
    ) -> None:
        """Run the waves with the smallest pc until they branch, wait, end or meet others."""
        pc = int(w.pc[running].min())
        front = running & (w.pc == pc)
        others = w.pc[running & ~front]
        stop = int(others.min()) if others.size else _NOWHERE
        w.chosen = slice(None) if front.all() else np.flatnonzero(front)
        w.all_active = bool(w.exec[w.chosen].all())
        count = int(front.sum())
        while True:
            instruction, execute = self._runs.get(pc) or self._translated(pc)
            self._executed[pc] += count
            if instruction.name == "s_endpgm":
                ended[w.chosen] = True
                return
            try:
                target = execute(w)
            except Fault as fault:
                where = f"{self.kernel.name}, {instruction.name} at {pc:#x}"
                raise Fault(f"{where}: {fault}") from fault
            if target is not None:
                w.pc[w.chosen] = target
                return
            pc += instruction.size
            if instruction.name == "s_barrier":
                waiting[w.chosen] = True
                w.pc[w.chosen] = pc
                return
            if pc == stop:
                w.pc[w.chosen] = pc
                return

    def _translated(self, pc: int) -> tuple[Instruction, Callable[[Waves], Any]]:
        instruction = self.kernel.code.get(pc)
        if instruction is None:
            raise Fault(f"{self.kernel.name} runs on to {pc:#x}, where it has no instruction")
        self._runs[pc] = instruction, translate(instruction)
        return self._runs[pc]
