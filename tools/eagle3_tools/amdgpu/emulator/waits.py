"""Prove, for every path through a kernel, that no register is used before its load completes.

Loads complete at any time; `s_waitcnt` waits until at most a given number of later ones are in
flight. The emulator completes loads at once, so this is checked in the code: a loaded register is
pending until a wait covers it on every path. Source: CDNA3 ISA, "Data Dependency Resolution",
"S_WAITCNT"; vector memory and LDS complete in order, scalar loads in any order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eagle3_tools.aot.amd.decode import Instruction, Register
from eagle3_tools.aot.amd.flow import read_flow
from eagle3_tools.aot.amd.operations import wait_limits

LDS: Register = ("lds", 0)
"""Stands for local memory accesses, which must complete before a barrier."""
_SCALAR_LOAD = -1
"""Scalar loads complete in any order, so the number of later ones is irrelevant."""


@dataclass(frozen=True)
class MissingWait:
    """An instruction that uses a register (or LDS at a barrier) while its load is in flight."""

    pc: int
    name: str
    register: Register


@dataclass
class _Pending:
    """Register -> least number of later operations with the same counter."""

    vector: dict[Register, int] = field(default_factory=dict)
    scalar: dict[Register, int] = field(default_factory=dict)

    def copy(self) -> "_Pending":
        return _Pending(dict(self.vector), dict(self.scalar))

    def join(self, other: "_Pending") -> bool:
        """Add what may be pending on another path; return whether anything changed."""
        changed = False
        for mine, theirs in ((self.vector, other.vector), (self.scalar, other.scalar)):
            for register, later in theirs.items():
                if mine.get(register, later + 1) > later:
                    mine[register] = later
                    changed = True
        return changed


def missing_waits(code: Mapping[int, Instruction]) -> list[MissingWait]:
    """Find every use of a register whose load may be in flight on some path, by address."""
    found: set[MissingWait] = set()

    def run(i: Instruction, state: _Pending) -> None:
        found.update(MissingWait(i.pc, i.name, register) for register in _step(i, state))

    read_flow(code).settle(_Pending(), run)
    return sorted(found, key=lambda wait: wait.pc)


def _step(i: Instruction, state: _Pending) -> list[Register]:
    """Return the registers that `i` uses too early; update `state` to what is pending after it."""
    if limits := wait_limits(i):
        _wait(*limits, state)
        return []
    if i.name == "s_barrier":
        return [LDS] if LDS in state.scalar or LDS in state.vector else []
    vector_memory = i.name.startswith(("global_", "buffer_"))
    loaded = {LDS} if i.fields.get("lds") else _loaded(i)
    # Loads of one kind complete in order, so one may overwrite the register of another.
    safe = loaded if vector_memory else set()
    early = [
        register
        for register in _used(i)
        if register in state.scalar or (register in state.vector and register not in safe)
    ]
    if i.name.startswith("ds_read") and LDS in state.vector:
        early.append(LDS)
    if vector_memory:
        _begin(state.vector, loaded)
    elif i.name.startswith("s_load"):
        state.scalar.update(dict.fromkeys(loaded, _SCALAR_LOAD))
    elif i.name.startswith("ds_"):
        moves_lanes = i.name in ("ds_bpermute_b32", "ds_swizzle_b32")
        _begin(state.scalar, loaded if moves_lanes else loaded | {LDS})
    return early


def _begin(pending: dict[Register, int], loaded: Iterable[Register]) -> None:
    for register, later in pending.items():
        if later != _SCALAR_LOAD:
            pending[register] = later + 1
    pending.update(dict.fromkeys(loaded, 0))


def _wait(vector: int, scalar: int, state: _Pending) -> None:
    state.vector = {r: later for r, later in state.vector.items() if later < vector}
    if scalar == 0:
        state.scalar = {}
    elif _SCALAR_LOAD not in state.scalar.values():
        state.scalar = {r: later for r, later in state.scalar.items() if later < scalar}


def _loaded(i: Instruction) -> set[Register]:
    """Return the registers that a memory operation fills."""
    filled = [name for name in ("vdst", "sdata", "vdata") if "store" not in i.name]
    return {r for name in filled if name in i.operands for r in i.operands[name].places}


def _used(i: Instruction) -> set[Register]:
    return {register for operand in i.operands.values() for register in operand.places}
