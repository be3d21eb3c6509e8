"""Registers of the waves that run in lockstep, and access to operands.

Vector registers are uint32 [512, waves, 64] (accumulation registers after the first 256), scalar
registers uint32 [128, waves]. Values read have the shape [waves, 64], [waves, 1] or [1, 1] and the
operand's type. `Waves.chosen` selects the waves that execute the current instruction.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.dpp import LANES, dpp_lanes, dpp_writes
from eagle3_tools.amdgpu.emulator.local_memory import LocalMemory
from eagle3_tools.amdgpu.emulator.memory import Fault, GlobalMemory
from eagle3_tools.aot.amd.decode import EXEC, VCC, Instruction, Kind, Operand

TYPES: dict[str, Any] = {
    **{"F32": np.float32, "I32": np.int32, "F64": np.float64, "I64": np.int64},
    **{"I16": np.int32, "I24": np.int32},
}
"""NumPy types of operands that are not plain unsigned integers."""
Read = Callable[["Waves"], np.ndarray]
Write = Callable[["Waves", Any], None]


class Waves:
    """Registers, flags and memories of `count` waves of several workgroups.

    `group` and `number` [count] are the workgroup in the batch and the wave in it, `identity`
    [count] is the workgroup in the launch.
    """

    def __init__(
        self,
        group: np.ndarray,
        number: np.ndarray,
        identity: np.ndarray,
        memory: GlobalMemory,
        lds: LocalMemory,
        arch: str,
        poison: int,
    ):
        count = len(group)
        self.group, self.number, self.identity = group, number, identity
        self.memory, self.lds, self.arch = memory, lds, arch
        self.vectors = np.full((512, count, LANES), poison, np.uint32)
        self.scalars = np.full((128, count), poison, np.uint32)
        self.scc = np.zeros(count, bool)
        self.exec = np.ones((count, LANES), bool)
        self.pc = np.zeros(count, np.int64)
        self.saturates = False
        self.chosen: Any = slice(None)
        self.count = count
        self.set_exec(self.exec)

    def active(self) -> np.ndarray:
        """Return the active lanes [waves, 64]."""
        return self.exec[self.chosen]

    def set_exec(self, lanes: np.ndarray) -> None:
        """Set the active lanes [waves, 64]."""
        self.exec[self.chosen] = lanes
        low, high = pack_lanes(lanes)
        self.scalars[EXEC, self.chosen], self.scalars[EXEC + 1, self.chosen] = low, high
        self.all_active = bool(self.exec.all())

    def scalar(self, index: int, value: Any) -> None:
        """Write a scalar register of each chosen wave; a write to EXEC takes effect at once."""
        refuse_unknown(index)
        self.scalars[index, self.chosen] = value
        if index in (EXEC, EXEC + 1):
            self.reload_exec()

    def reload_exec(self) -> None:
        """Make the active lanes those of EXEC's registers."""
        both = self.scalars[EXEC : EXEC + 2, self.chosen]
        self.exec[self.chosen] = lanes_of(both[0], both[1])
        self.all_active = bool(self.exec.all())

    def vector(self, index: int, value: Any, lanes: np.ndarray | None = None) -> None:
        """Write uint32 to a vector register, in the given lanes or the active ones."""
        target = self.vectors[index]
        if lanes is None and self.all_active:
            target[self.chosen] = value
        elif isinstance(self.chosen, slice):
            np.copyto(target, value, where=self.exec if lanes is None else lanes)
        else:
            where = self.exec[self.chosen] if lanes is None else lanes
            target[self.chosen] = np.where(where, value, target[self.chosen])

    def mask(self, index: int) -> np.ndarray:
        """Read a lane mask as bool [waves, 64]."""
        if index == EXEC:
            return self.active()
        return lanes_of(self.scalars[index, self.chosen], self.scalars[index + 1, self.chosen])

    def set_mask(self, index: int, lanes: Any) -> None:
        """Write a lane mask, with 0 for inactive lanes."""
        low, high = pack_lanes(np.broadcast_to(lanes, self.active().shape) & self.active())
        self.scalar(index, low)
        self.scalar(index + 1, high)

    def first_active(self) -> np.ndarray:
        """Return the first active lane of each wave, or 0: int64 [waves, 1]."""
        return self.active().argmax(1)[:, None]

    def refuse(self, wrong: Any, what: str) -> None:
        """Raise Fault if a wave or lane has the condition."""
        if np.any(wrong):
            raise Fault(what)

    def load(
        self, address: np.ndarray, lanes: np.ndarray, size: int, count: int
    ) -> list[np.ndarray]:
        """Load `count` elements of `size` bytes from uint64 addresses in the given lanes.

        Returns uint32 [waves, 64] for each element, with 0 in other lanes.
        """
        waves, lane = np.nonzero(lanes)
        values: Any = np.zeros((count, *lanes.shape), np.uint32)
        if len(waves):
            group = self.identity[self.chosen][waves]
            values[:, waves, lane] = self.memory.load(address[waves, lane], size, count, group)
        return list(values)

    def load_words(self, address: np.ndarray, count: int) -> list[np.ndarray]:
        """Load `count` words from one address of each wave: uint32 [waves, 1] each."""
        words = self.memory.load(address.reshape(-1), 4, count, self.identity[self.chosen])
        return [word[:, None] for word in words]

    def store(
        self, address: np.ndarray, lanes: np.ndarray, values: Sequence[np.ndarray], size: int
    ) -> None:
        """Store the low `size` bytes of each value, one after another, in the given lanes."""
        waves, lane = np.nonzero(lanes)
        if len(waves):
            held = np.stack([value[waves, lane] for value in values])
            group = self.identity[self.chosen][waves]
            self.memory.store(address[waves, lane], held, size, group)

    def exchange(
        self, address: np.ndarray, lanes: np.ndarray, new: np.ndarray, expected: np.ndarray | None
    ) -> np.ndarray:
        """Compare and swap words, lane after lane, or add if `expected` is None.

        Return the old ones, 0 in other lanes.
        """
        waves, lane = np.nonzero(lanes)
        where, new = address[waves, lane], new[waves, lane]
        expected = expected if expected is None else expected[waves, lane]
        group = self.identity[self.chosen][waves]
        old = np.zeros(lanes.shape, np.uint32)
        old[waves, lane] = self.memory.exchange(where, new, expected, group)
        return old

    def load_local(self, place: np.ndarray, size: int, count: int) -> list[np.ndarray]:
        """Load from local memory like `load`, in the active lanes, from uint32 byte addresses."""
        waves, lane = np.nonzero(self.active())
        values: Any = np.zeros((count, *place.shape), np.uint32)
        members = self.group[self.chosen][waves], self.number[self.chosen][waves]
        values[:, waves, lane] = self.lds.load(place[waves, lane], size, count, *members)
        return list(values)

    def store_local(self, place: np.ndarray, values: Sequence[np.ndarray], size: int) -> None:
        """Store to local memory like `store`, in the active lanes."""
        waves, lane = np.nonzero(self.active())
        held = np.stack([value[waves, lane] for value in values])
        members = self.group[self.chosen][waves], self.number[self.chosen][waves]
        self.lds.store(place[waves, lane], held, size, *members)


def refuse_unknown(register: int) -> None:
    """Raise Fault if a write of the scalar register has an effect that is not emulated."""
    if register >= 102 and register not in (VCC, VCC + 1, 124, EXEC, EXEC + 1):
        raise Fault(f"write of the scalar register {register}, which the emulator doesn't know")


def constant(value: int, dtype: Any = np.uint32) -> np.ndarray:
    """Return a constant of an instruction as an operation reads it: [1, 1]."""
    return np.full((1, 1), value, dtype)


def pack_lanes(lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pack bool [waves, 64] into the two words of a lane mask."""
    words = np.packbits(lanes, axis=1, bitorder="little").view("<u4")
    return words[:, 0], words[:, 1]


def lanes_of(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Unpack the two words of a lane mask to bool [waves, 64]."""
    raw = np.ascontiguousarray(np.stack([low, high], 1).astype("<u4")).view(np.uint8)
    return np.unpackbits(raw, axis=1, bitorder="little").astype(bool)


def words(operand: Operand, offset: int = 0) -> Read:
    """Read register `offset` of an operand, as bits and without modifiers."""
    index = operand.index + offset
    if operand.kind is Kind.VECTOR:
        return lambda w: w.vectors[index, w.chosen]
    if operand.kind is Kind.SCALAR:
        return lambda w: w.scalars[index, w.chosen][:, None]
    if operand.kind is Kind.FLAG:
        return _flag(operand.value)
    shift = 0 if operand.type.startswith("PK") else 32 * offset
    word = constant(operand.value >> shift & 0xFFFF_FFFF)
    return lambda w: word


def _flag(name: str) -> Read:
    if name == "scc":
        return lambda w: w.scc[w.chosen][:, None].astype(np.uint32)
    first = VCC if name == "vccz" else EXEC
    return lambda w: ((w.scalars[first, w.chosen] | w.scalars[first + 1, w.chosen]) == 0)[
        :, None
    ].astype(np.uint32)


def source(operand: Operand) -> Read:
    """Read an operand in its type, with the encoding's modifiers applied."""
    if operand.bits == 64:
        return _double(operand)
    read, view = words(operand), TYPES.get(operand.type)
    read = _selected(read, operand)
    if operand.absolute or operand.negate:
        read = _signs(read, operand)
    return read if view is None else lambda w: read(w).view(view)


def sources(instruction: Instruction) -> list[Read]:
    """Read all sources; DPP moves the first between lanes, and gives zeros where none is read."""
    reads = [source(operand) for operand in instruction.sources]
    if instruction.dpp:
        reads[0] = _moved(reads[0], instruction.fields["dpp"])
    return reads


def _moved(read: Read, control: int) -> Read:
    lanes, there = dpp_lanes(control)

    def moved(w: Waves) -> np.ndarray:
        value = read(w)[:, lanes]
        valid = there & w.active()[:, lanes]
        return np.where(valid, value.view(np.uint32), np.uint32(0)).view(value.dtype)

    return moved


def _double(operand: Operand) -> Read:
    if operand.absolute or operand.negate or operand.selected:
        raise Fault("modifiers of a source of 64 bits")
    view = TYPES.get(operand.type, np.uint64)
    if operand.kind is Kind.CONSTANT:
        number = constant(operand.value, np.uint64).view(view)
        return lambda w: number
    low, high = words(operand), words(operand, 1)
    return lambda w: join(low(w), high(w)).view(view)


def join(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Join two words to uint64."""
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def _selected(read: Read, operand: Operand) -> Read:
    """Select the bits of a source for SDWA and 16-bit operands."""
    first, bits = operand.selected or (16 * operand.high, min(operand.bits, 32))
    if bits == 24:
        bits = 32
    if bits == 32:
        return read
    extends = operand.signed or (operand.type == "I16" and operand.selected in (None, (0, 32)))
    if operand.bits == 16 and operand.selected == (0, 32):
        bits = 16
    if not extends:
        mask = np.uint32((1 << bits) - 1)
        return lambda w: read(w) >> np.uint32(first) & mask
    left, right = np.uint32(32 - bits - first), np.int32(32 - bits)
    unsigned = operand.bits == 16 and operand.type != "I16"
    seen = np.uint32(0xFFFF if unsigned else 0xFFFF_FFFF)
    return lambda w: ((read(w) << left).view(np.int32) >> right).view(np.uint32) & seen


def _signs(read: Read, operand: Operand) -> Read:
    """Apply modifiers to the sign bit, whatever the type."""
    keep = np.uint32(0x7FFF_FFFF if operand.absolute else 0xFFFF_FFFF)
    flip = np.uint32(0x8000_0000 if operand.negate else 0)
    if operand.bits != 32:
        raise Fault(f"a sign modifier of a source of {operand.bits} bits")
    return lambda w: read(w) & keep ^ flip


def bits_of(value: Any) -> np.ndarray:
    """View 32-bit results as uint32; booleans become 0 and 1."""
    if value.dtype == np.uint32:
        return value
    if value.dtype in (np.float32, np.int32):
        return value.view(np.uint32)
    return value.astype(np.uint32)


def result(instruction: Instruction, name: str = "vdst") -> Write:
    """Return a function that writes a result to the active lanes, as the encoding specifies."""
    operand, fields = instruction.operands[name], instruction.fields
    if fields.get("omod"):
        raise Fault(f"output modifier of {instruction.name}")
    if operand.kind is Kind.SCALAR:
        return scalar_result(operand)
    index = operand.index
    if instruction.dpp:
        return _dpp_result(index, fields)
    if operand.bits == 64:
        return lambda w, value: _write_double(w, index, value)
    clamps = bool(fields.get("clmp"))
    if clamps and operand.type != "F32":
        raise Fault(f"clamping of {instruction.name}")
    if operand.selected not in (None, (0, 32)):
        return _selected_result(operand, fields["dst_unused"])
    if operand.bits == 16:
        return _half_result(operand)
    if clamps:
        return lambda w, value: w.vector(index, bits_of(_clamped(value)))
    return lambda w, value: w.vector(index, bits_of(value))


def _dpp_result(index: int, fields: Mapping[str, int]) -> Write:
    """Write where the row and bank masks allow; without bound_ctrl only where a lane was read."""
    allowed = dpp_writes(fields)
    lanes, there = dpp_lanes(fields["dpp"])

    def write(w: Waves, value: Any) -> None:
        active = w.active()
        where = active & allowed
        if not fields["bc"]:
            where = where & there & active[:, lanes]
        w.vector(index, bits_of(value), where)

    return write


def _clamped(value: np.ndarray) -> np.ndarray:
    return np.clip(np.where(np.isnan(value), np.float32(0), value), 0, 1).astype(np.float32)


def scalar_result(operand: Operand) -> Write:
    """Return a function that writes uint32 or uint64 [waves, 1] or [1, 1] to scalar registers."""
    index = operand.index
    if operand.bits != 64:
        return lambda w, value: w.scalar(index, bits_of(value).reshape(-1))

    def write(w: Waves, value: Any) -> None:
        value = value.view(np.uint64).reshape(-1)
        w.scalar(index, value.astype(np.uint32))
        w.scalar(index + 1, (value >> np.uint64(32)).astype(np.uint32))

    return write


def _write_double(w: Waves, index: int, value: np.ndarray) -> None:
    value = value.view(np.uint64)
    w.vector(index, value.astype(np.uint32))
    w.vector(index + 1, (value >> np.uint64(32)).astype(np.uint32))


def _half_result(operand: Operand) -> Write:
    """Write 16 bits and clear the other half, unless VOP3 writes to the upper half."""
    index, low = operand.index, np.uint32(0xFFFF)
    if operand.high:
        return lambda w, value: w.vector(
            index, w.vectors[index, w.chosen] & low | bits_of(value) << np.uint32(16)
        )
    return lambda w, value: w.vector(index, bits_of(value) & low)


def _selected_result(operand: Operand, unused: int) -> Write:
    """Write part of a register (SDWA). The rest is zero (0), the sign (1) or unchanged (2)."""
    first, bits = operand.selected or (0, 32)
    mask, shift, index = np.uint32(((1 << bits) - 1) << first), np.uint32(first), operand.index
    if unused == 1:
        raise Fault("SDWA that extends the sign of its result")

    def write(w: Waves, value: Any) -> None:
        value = bits_of(value) << shift & mask
        w.vector(index, value | w.vectors[index, w.chosen] & ~mask if unused == 2 else value)

    return write


def lane_mask(operand: Operand) -> Read:
    """Read a lane mask as bool [waves, 64]."""
    if operand.kind is Kind.CONSTANT:
        lanes = np.unpackbits(
            np.array([[operand.value]], "<u8").view(np.uint8), axis=1, bitorder="little"
        ).astype(bool)
        return lambda w: lanes
    return lambda w: w.mask(operand.index)


def lane_mask_result(operand: Operand) -> Write:
    """Return a function that writes a lane mask, with 0 for inactive lanes."""
    return lambda w, value: w.set_mask(operand.index, value)
