"""Run a kernel's workgroups one after another, from its C form."""

import ctypes
from collections import Counter
from collections.abc import Sequence

import numpy as np

from eagle3_tools.amdgpu.emulator.local_memory import granule_of
from eagle3_tools.amdgpu.emulator.machine import Machine
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.native.compiled import native_form
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves
from eagle3_tools.aot.amd.machine_code import Kernel


class _Launch(ctypes.Structure):
    """`struct launch` of runtime.h."""

    _fields_ = [
        *(("memory", ctypes.c_void_p), ("base", ctypes.c_uint64)),
        *(("regions", ctypes.c_void_p), ("region_count", ctypes.c_uint64)),
        *(("writers", ctypes.c_void_p), ("number", ctypes.c_int32), ("group", ctypes.c_int32)),
        *(("allow_unwritten", ctypes.c_uint32), ("granule", ctypes.c_uint32)),
        *(("loads_beyond", ctypes.c_uint64), ("loads_unwritten", ctypes.c_uint64)),
        *(("lds_bytes", ctypes.c_uint64), ("start", ctypes.c_int64)),
        ("counts", ctypes.c_void_p),
        *(("fault", ctypes.c_char_p), ("address", ctypes.c_uint64), ("size", ctypes.c_uint64)),
        *(("pc", ctypes.c_uint64), ("last", ctypes.c_void_p)),
        ("escape", ctypes.c_void_p),
        *(("lds_readers", ctypes.c_void_p), ("lds_writers", ctypes.c_void_p)),
        *(("epoch", ctypes.c_int32), ("other", ctypes.c_int32)),
    ]


class NativeMachine:
    """Executes one kernel like `Machine`, from C; raises Fault if an instruction has no C form."""

    def __init__(self, kernel: Kernel, entries: Sequence[int] = ()):
        self.kernel = kernel
        form = native_form(kernel, entries)
        self._registers = form.registers
        self._library = ctypes.CDLL(form.library)
        self._executed = np.zeros(len(form.blocks), np.uint64)
        self._names = sorted({name for block in form.blocks for name in block})
        self.granule = granule_of(self._names)
        self._counts = np.array(
            [[block.get(name, 0) for name in self._names] for block in form.blocks], np.uint64
        )

    @property
    def counts(self) -> Counter[str]:
        """Executed wave instructions, by name."""
        total = (self._executed @ self._counts).tolist()
        return Counter(dict(zip(self._names, total, strict=True)))

    def run(self, w: Waves, groups: Sequence[tuple[int, int, int]], grid: Sequence[int]) -> None:
        """Run workgroups, each of which starts with the registers of `w`, the waves of one.

        Raises Fault with the instruction if one does something invalid.
        """
        kernel = self.kernel
        axes = [axis for axis in range(3) if kernel.group_ids[axis]]
        places = np.array(groups, np.uint32).reshape(-1, 3)
        ids = np.ascontiguousarray(places[:, axes])
        identity = places @ np.array([1, grid[0], grid[0] * grid[1]])
        self._launch(w, ids, identity.astype(np.int32))

    def run_once(self, w: Waves, start: int = 0) -> None:
        """Run one workgroup from an entry's number, and leave its registers at the end in `w`."""
        self._launch(w, None, np.zeros(1, np.int32), start)

    def _launch(
        self, w: Waves, ids: np.ndarray | None, identity: np.ndarray, start: int = 0
    ) -> None:
        memory, registers = w.memory, self._registers
        vectors = np.ascontiguousarray(w.vectors[:registers].transpose(1, 0, 2))
        scalars = np.ascontiguousarray(w.scalars.T)
        flags = np.ascontiguousarray(
            np.stack([w.scc, np.full(w.count, w.saturates)], 1).astype(np.uint32)
        )
        bounds = np.ascontiguousarray(memory.bounds, np.uint64)
        state = _Launch(
            memory=memory.bytes.ctypes.data,
            base=memory.base,
            regions=bounds.ctypes.data,
            region_count=len(bounds),
            writers=None if memory.writers is None else memory.writers.ctypes.data,
            number=memory.launch,
            allow_unwritten=memory.allow_unwritten,
            granule=w.lds.granule,
            lds_bytes=w.lds.limit,
            counts=self._executed.ctypes.data,
            start=start,
        )
        failed = self._library.launch(
            *(ctypes.byref(state), *map(_pointer, (vectors, scalars, flags))),
            *map(ctypes.c_uint64, (w.count, registers)),
            ids if ids is None else _pointer(ids),
            ctypes.c_uint64(self.kernel.user_registers),
            ctypes.c_uint64(0 if ids is None else ids.shape[1]),
            *(_pointer(identity), ctypes.c_uint64(len(identity))),
            *(_pointer(w.lds.bytes), ctypes.c_uint64(w.lds.size)),
        )
        memory.loads_beyond += state.loads_beyond
        memory.loads_unwritten += state.loads_unwritten
        if failed:
            raise self._fault(w, state)
        if ids is None:
            w.vectors[:registers] = vectors.transpose(1, 0, 2)
            w.scalars[:] = scalars.T
            w.scc[:], w.saturates = flags[:, 0], bool(flags[:, 1].any())
            w.reload_exec()

    def _fault(self, w: Waves, state: _Launch) -> Fault:
        text = state.fault.decode().format(
            address=state.address,
            size=state.size,
            limit=w.lds.limit,
            other="several" if state.other == LANES - 1 else state.other,
            buffer=w.memory.describe(state.address) if "{buffer}" in state.fault.decode() else "",
        )
        name = self.kernel.code[state.pc].name
        return Fault(f"{self.kernel.name}, {name} at {state.pc:#x}: {text}")


def machine_of(kernel: Kernel) -> Machine | NativeMachine:
    """Return the machine that runs the kernel from C, else print why not and use NumPy."""
    try:
        return NativeMachine(kernel)
    except Fault as fault:
        print(f"{kernel.name} is emulated by NumPy: {fault}")
        return Machine(kernel)


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
