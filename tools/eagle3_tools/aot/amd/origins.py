"""Origins of addresses: the kernel arguments that an address was computed from.

A register holds the set of arguments whose addresses went into it. Values loaded from memory (page
ids, tile maps) have none, so the address pool + page * row belongs to the pool.
"""

from collections.abc import Iterator, Mapping
from typing import Self

from eagle3_tools.aot.amd.decode import Instruction, Operand, Register
from eagle3_tools.aot.amd.flow import Flow
from eagle3_tools.aot.amd.operations import is_load, scalar_width

Arguments = frozenset[int]
_NONE: Arguments = frozenset()
_TABLE = frozenset([-1])
"""The address of the arguments themselves."""
_WRITTEN = ("vdst", "sdst", "sdata", "vdata")
_POINTER = 8


class _Held(dict[Register, Arguments]):
    """Arguments that went into each register."""

    def copy(self) -> Self:
        return type(self)(self)

    def join(self, other: Self) -> bool:
        new = {r: self.get(r, _NONE) | held for r, held in other.items()}
        changed = any(held != self.get(r, _NONE) for r, held in new.items())
        self.update(new)
        return changed

    def of(self, *operands: Operand) -> Arguments:
        """Return the arguments in these operands' registers."""
        return _NONE.union(*(self.get(r, _NONE) for operand in operands for r in operand.places))


def origins(flow: Flow, arguments_at: int = 0) -> Mapping[int, Arguments]:
    """Return for each global load, by its address, the arguments that it may read.

    arguments_at: first of the two scalar registers that begin with the arguments' address.
    """
    found: dict[int, Arguments] = {}

    def run(i: Instruction, state: _Held) -> None:
        if is_load(i):
            found[i.pc] = found.get(i.pc, _NONE) | _of_address(i, state)
        state.update(_written(i, state))

    flow.settle(_Held({("s", arguments_at + half): _TABLE for half in (0, 1)}), run)
    return found


def _of_address(i: Instruction, state: _Held) -> Arguments:
    if "srsrc" in i.operands:  # The descriptor's base; offsets may hold sizes, also arguments.
        base = i.operands["srsrc"].places[:2]
        return _NONE.union(*(state.get(register, _NONE) for register in base))
    places = ("addr", "saddr", "vaddr")
    return state.of(*(i.operands[place] for place in places if place in i.operands))


def _written(i: Instruction, state: _Held) -> Iterator[tuple[Register, Arguments]]:
    """Yield the registers that the instruction writes, with their new contents."""
    if i.name.startswith(("s_cmp", "s_bitcmp")):
        return
    target = next((i.operands[name] for name in _WRITTEN if name in i.operands), None)
    if target is None or "store" in i.name:
        return
    if scalar_width(i):
        yield from _loaded_arguments(i, target, state)
        return
    held = _NONE
    if not is_load(i) and not i.name.startswith("ds_"):
        read = [o for name, o in i.operands.items() if name not in _WRITTEN]
        held = state.of(*read, *([target] if i.name.startswith("s_addk") else []))
    yield from ((register, held) for register in target.places)


def _loaded_arguments(
    i: Instruction, target: Operand, state: _Held
) -> Iterator[tuple[Register, Arguments]]:
    is_table = state.of(i.operands["sbase"]) == _TABLE
    for number, register in enumerate(target.places):
        place = (i.fields.get("offset", 0) + 4 * number) // _POINTER
        yield register, frozenset([place]) if is_table else _NONE
