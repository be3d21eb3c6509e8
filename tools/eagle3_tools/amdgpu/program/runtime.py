"""Run the steps of a compiled program in order on emulated memory, as XLA's GPU runtime does.

Streams are not modelled: an asynchronous step runs where it starts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.launch import LaunchCounts, launch
from eagle3_tools.amdgpu.emulator.machine import Machine
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.native.machine import NativeMachine, machine_of
from eagle3_tools.amdgpu.program import executable
from eagle3_tools.amdgpu.program.executable import KernelLaunch, Slice, Thunk
from eagle3_tools.amdgpu.program.library_product import multiply
from eagle3_tools.amdgpu.program.program_memory import ProgramMemory
from eagle3_tools.aot.amd.machine_code import Kernel, read_kernels

Launcher = Callable[[KernelLaunch, ProgramMemory, list[int]], LaunchCounts]
"""Runs a kernel on memory, given the addresses of its arguments."""


class EmulatedLauncher:
    """Launches on the emulator; each kernel is read once. For `poison` see `launch`.

    `machine` makes what executes a kernel: `machine_of` is fast, `Machine` is NumPy.
    """

    def __init__(
        self, poison: int, machine: Callable[[Kernel], Machine | NativeMachine] = machine_of
    ) -> None:
        self._poison, self._machine = poison, machine
        self._machines: dict[tuple[str, bytes], Machine | NativeMachine] = {}

    def __call__(
        self, thunk: KernelLaunch, memory: ProgramMemory, addresses: list[int]
    ) -> LaunchCounts:
        key = thunk.kernel, thunk.code
        if key not in self._machines:
            self._machines[key] = self._machine(self.read(*key))
        return launch(
            self._machines[key],
            memory,
            addresses,
            grid=thunk.grid,
            threads=thunk.threads,
            dynamic_lds=thunk.dynamic_lds,
            poison=self._poison,
        )

    def read(self, name: str, code: bytes) -> Kernel:
        """Read the kernel of this name from a code object."""
        return read_kernels(code)[name]


@dataclass
class Runtime:
    """A run of steps, which are added to `launches` and `library`."""

    memory: ProgramMemory
    launcher: Launcher
    launches: list[tuple[str, LaunchCounts]] = field(default_factory=list)
    library: list[tuple[str, int]] = field(default_factory=list)

    def run(self, thunks: Sequence[Thunk]) -> None:
        """Run steps; raise Fault if one does something invalid or has an unknown kind."""
        before = None
        for thunk in thunks:
            if isinstance(thunk, KernelLaunch):
                self._launch(thunk, begins=thunk.name != before)
            else:
                self._step(thunk)
            before = thunk.name

    def _step(self, thunk: Thunk) -> None:
        match thunk:
            case executable.Copy(source=source, target=target):
                places = self.memory.address(target), self.memory.address(source)
                self.memory.copy(*places, source.size)
            case executable.Fill(target=target, pattern=pattern):
                self._fill(target, pattern)
            case executable.LibraryProduct():
                multiply(thunk, self.memory)
                self.library.append((thunk.name, thunk.flops))
            case executable.Sequence(thunks=thunks):
                self.run(thunks)
            case executable.While():
                self._loop(thunk)
            case executable.Conditional():
                self._branch(thunk)
            case executable.Unknown(what=what):
                raise Fault(f"{thunk.name}: {what} is not known")
            case _:
                raise TypeError(f"expected a step of a program, got {thunk}")

    def _launch(self, thunk: KernelLaunch, begins: bool) -> None:
        """Launch; the results of the first step of an instruction (`begins`) are unwritten."""
        named = [
            (where, f"argument {k} of {thunk.kernel}") for k, where in enumerate(thunk.arguments)
        ]
        if begins:
            for where in thunk.results:
                self.memory.forget(where)
        for place in thunk.zeroed:
            self._fill(thunk.arguments[place], 0)
        addresses = [self.memory.address(where) for where in thunk.arguments]
        with self.memory.only(named):
            counts = self.launcher(thunk, self.memory, addresses)
        for where in thunk.operands:
            self.memory.check_kept(where, f"an operand of {thunk.kernel}")
        self.launches.append((thunk.kernel, counts))

    def _fill(self, where: Slice, pattern: int) -> None:
        words = np.full(-(-where.size // 4), pattern, np.uint32)
        self.memory.write(self.memory.address(where), words.view(np.uint8)[: where.size])

    def _loop(self, thunk: executable.While) -> None:
        if thunk.trip_count is not None:
            for _ in range(thunk.trip_count):
                self.run(thunk.body)
            return
        while True:
            self.run(thunk.condition)
            if not self._value(thunk.holds, np.bool_):
                return
            self.run(thunk.body)

    def _branch(self, thunk: executable.Conditional) -> None:
        """Run a branch; an index out of range selects the last one, as HLO specifies."""
        if thunk.index.size == 1:
            chosen = 0 if self._value(thunk.index, np.bool_) else 1
        else:
            chosen = int(self._value(thunk.index, np.int32))
        last = len(thunk.branches) - 1
        self.run(thunk.branches[chosen if 0 <= chosen <= last else last])

    def _value(self, where: Slice, dtype: Any) -> Any:
        return self.memory.read(self.memory.address(where), (), dtype)[()]
