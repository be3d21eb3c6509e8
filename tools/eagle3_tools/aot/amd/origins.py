"""Origins of addresses: the kernel arguments that an address was computed from.

A register holds the set of arguments whose addresses went into it. Values loaded from memory (page
ids, tile maps) have none, so the address pool + page * row belongs to the pool.
"""

from collections.abc import Iterator, Mapping

from eagle3_tools.aot.amd.decode import Instruction, Kind, Operand
from eagle3_tools.aot.amd.flow import Flow
from eagle3_tools.aot.amd.operations import is_load, scalar_width

Register = tuple[str, int]
Arguments = frozenset[int]
State = dict[Register, Arguments]
_NONE: Arguments = frozenset()
_TABLE = frozenset([-1])
"""The address of the arguments themselves."""
_WRITTEN = ("vdst", "sdst", "sdata", "vdata")
_POINTER = 8


def origins(flow: Flow, arguments_at: int = 0) -> Mapping[int, Arguments]:
    """Return for each global load, by its address, the arguments that it may read.

    arguments_at: first of the two scalar registers that begin with the arguments' address.
    """
    start: State = {("s", arguments_at + half): _TABLE for half in (0, 1)}
    before, to_do = {flow.entry: start}, [flow.entry]
    found: dict[int, Arguments] = {}
    while to_do:
        block = to_do.pop()
        state = dict(before[block])
        for i in flow.blocks[block]:
            if is_load(i):
                found[i.pc] = found.get(i.pc, _NONE) | _of_address(i, state)
            state.update(_written(i, state))
        for target in flow.following[block]:
            if target not in before:
                before[target] = dict(state)
                to_do.append(target)
            elif _join(before[target], state):
                to_do.append(target)
    return found


def _join(state: State, other: State) -> bool:
    """Add the state of another path and return whether it was new."""
    changed = False
    for register, arguments in other.items():
        known = state.get(register, _NONE)
        if not arguments <= known:
            state[register] = known | arguments
            changed = True
    return changed


def _of_address(i: Instruction, state: State) -> Arguments:
    if "srsrc" in i.operands:  # The descriptor's base; offsets may hold sizes, also arguments.
        base = list(_registers(i.operands["srsrc"]))[:2]
        return frozenset().union(*(state.get(register, _NONE) for register in base))
    places = ("addr", "saddr", "vaddr")
    return _union(state, *(i.operands[place] for place in places if place in i.operands))


def _written(i: Instruction, state: State) -> Iterator[tuple[Register, Arguments]]:
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
        held = _union(state, *read, *([target] if i.name.startswith("s_addk") else []))
    yield from ((register, held) for register in _registers(target))


def _loaded_arguments(
    i: Instruction, target: Operand, state: State
) -> Iterator[tuple[Register, Arguments]]:
    is_table = _union(state, i.operands["sbase"]) == _TABLE
    for number, register in enumerate(_registers(target)):
        place = (i.fields.get("offset", 0) + 4 * number) // _POINTER
        yield register, frozenset([place]) if is_table else _NONE


def _union(state: State, *operands: Operand) -> Arguments:
    registers = (register for operand in operands for register in _registers(operand))
    return frozenset().union(*(state.get(register, _NONE) for register in registers))


def _registers(operand: Operand) -> Iterator[Register]:
    if operand.kind in (Kind.VECTOR, Kind.SCALAR):
        yield from ((operand.kind.value, index) for index in operand.registers)
