"""Registers of the waves that run in lockstep, and the reading and writing of operands.

Vector registers are uint32 [512, waves, 64] (accumulation registers behind the first 256), scalar
ones uint32 [128, waves]. What is read has the shape [waves, 64], [waves, 1] or [1, 1], in the
operand's type; `Waves.chosen` says which waves execute the present instruction.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.local_memory import LocalMemory
from eagle3_tools.amdgpu.emulator.memory import Fault, GlobalMemory
from eagle3_tools.aot.amd.decode import EXEC, VCC, Instruction, Kind, Operand

LANES = 64
TYPES: dict[str, Any] = {
    **{"F32": np.float32, "I32": np.int32, "F64": np.float64, "I64": np.int64},
    **{"I16": np.int32, "I24": np.int32},
}
"""How numbers are looked at that are no plain unsigned ones."""
Read = Callable[["Waves"], np.ndarray]
Write = Callable[["Waves", Any], None]


class Waves:
    """`count` waves of some workgroups: registers, flags, what runs and what memory they see.

    group, number [count]: which workgroup of the batch, and which wave of that. identity [count]:
    the workgroup among all of the launch.
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
        """The lanes [waves, 64] that execute."""
        return self.exec[self.chosen]

    def set_exec(self, lanes: np.ndarray) -> None:
        """Lanes [waves, 64] that execute from now on."""
        self.exec[self.chosen] = lanes
        low, high = pack_lanes(lanes)
        self.scalars[EXEC, self.chosen], self.scalars[EXEC + 1, self.chosen] = low, high
        self.all_active = bool(self.exec.all())

    def scalar(self, index: int, value: Any) -> None:
        """Writes one scalar register of each chosen wave; EXEC's follow at once."""
        if index >= 102 and index not in (VCC, VCC + 1, 124, EXEC, EXEC + 1):
            raise Fault(f"write of the scalar register {index}, which the emulator doesn't know")
        self.scalars[index, self.chosen] = value
        if index in (EXEC, EXEC + 1):
            both = self.scalars[EXEC : EXEC + 2, self.chosen]
            self.exec[self.chosen] = lanes_of(both[0], both[1])
            self.all_active = bool(self.exec.all())

    def vector(self, index: int, value: Any, lanes: np.ndarray | None = None) -> None:
        """Writes uint32 to one vector register, in the lanes given or those that execute."""
        target = self.vectors[index]
        if lanes is None and self.all_active:
            target[self.chosen] = value
        elif isinstance(self.chosen, slice):
            np.copyto(target, value, where=self.exec if lanes is None else lanes)
        else:
            where = self.exec[self.chosen] if lanes is None else lanes
            target[self.chosen] = np.where(where, value, target[self.chosen])


def pack_lanes(lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bool [waves, 64] as the two words of a lane mask."""
    words = np.packbits(lanes, axis=1, bitorder="little").view("<u4")
    return words[:, 0], words[:, 1]


def lanes_of(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The two words of a lane mask as bool [waves, 64]."""
    raw = np.ascontiguousarray(np.stack([low, high], 1).astype("<u4")).view(np.uint8)
    return np.unpackbits(raw, axis=1, bitorder="little").astype(bool)


def words(operand: Operand, offset: int = 0) -> Read:
    """Reads register `offset` of an operand, as bits and without modifiers."""
    index = operand.index + offset
    if operand.kind is Kind.VECTOR:
        return lambda w: w.vectors[index, w.chosen]
    if operand.kind is Kind.SCALAR:
        return lambda w: w.scalars[index, w.chosen][:, None]
    if operand.kind is Kind.FLAG:
        return _flag(operand.value)
    shift = 0 if operand.type.startswith("PK") else 32 * offset
    constant = np.full((1, 1), operand.value >> shift & 0xFFFF_FFFF, np.uint32)
    return lambda w: constant


def _flag(name: str) -> Read:
    if name == "scc":
        return lambda w: w.scc[w.chosen][:, None].astype(np.uint32)
    first = VCC if name == "vccz" else EXEC
    return lambda w: ((w.scalars[first, w.chosen] | w.scalars[first + 1, w.chosen]) == 0)[
        :, None
    ].astype(np.uint32)


def source(operand: Operand) -> Read:
    """Reads an operand in its type, with what the encoding does to it before the operation."""
    if operand.bits == 64:
        return _double(operand)
    read, view = words(operand), TYPES.get(operand.type)
    read = _selected(read, operand)
    if operand.absolute or operand.negate:
        read = _signs(read, operand)
    return read if view is None else lambda w: read(w).view(view)


def _double(operand: Operand) -> Read:
    if operand.absolute or operand.negate or operand.selected:
        raise Fault("modifiers of a source of 64 bits")
    view = TYPES.get(operand.type, np.uint64)
    if operand.kind is Kind.CONSTANT:
        constant = np.full((1, 1), operand.value, np.uint64).view(view)
        return lambda w: constant
    low, high = words(operand), words(operand, 1)
    return lambda w: join(low(w), high(w)).view(view)


def join(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two words as uint64."""
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def _selected(read: Read, operand: Operand) -> Read:
    """The bits of a source that count, for SDWA and operands of 16 bits."""
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
    """Modifiers act on the sign bit, whatever the bits mean."""
    keep = np.uint32(0x7FFF_FFFF if operand.absolute else 0xFFFF_FFFF)
    flip = np.uint32(0x8000_0000 if operand.negate else 0)
    if operand.bits != 32:
        raise Fault(f"a sign modifier of a source of {operand.bits} bits")
    return lambda w: read(w) & keep ^ flip


def bits_of(value: Any) -> np.ndarray:
    """Results of 32 bits as uint32; booleans as 0 and 1."""
    value = np.asarray(value)
    if value.dtype == np.uint32:
        return value
    if value.dtype in (np.float32, np.int32):
        return value.view(np.uint32)
    return value.astype(np.uint32)


def result(instruction: Instruction, name: str = "vdst") -> Write:
    """Writes a result to the lanes that execute, as the encoding says."""
    operand, fields = instruction.operands[name], instruction.fields
    if fields.get("omod"):
        raise Fault(f"output modifier of {instruction.name}")
    if operand.kind is Kind.SCALAR:
        return scalar_result(operand)
    index = operand.index
    if operand.bits == 64:
        return lambda w, value: _write_double(w, index, np.asarray(value))
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


def _clamped(value: np.ndarray) -> np.ndarray:
    return np.clip(np.where(np.isnan(value), np.float32(0), value), 0, 1).astype(np.float32)


def scalar_result(operand: Operand) -> Write:
    """Writes to scalar registers: uint32 or uint64 [waves, 1] or [1, 1]."""
    index = operand.index
    if operand.bits != 64:
        return lambda w, value: w.scalar(index, bits_of(value).reshape(-1))

    def write(w: Waves, value: Any) -> None:
        value = np.asarray(value).view(np.uint64).reshape(-1)
        w.scalar(index, value.astype(np.uint32))
        w.scalar(index + 1, (value >> np.uint64(32)).astype(np.uint32))

    return write


def _write_double(w: Waves, index: int, value: np.ndarray) -> None:
    value = value.view(np.uint64)
    w.vector(index, value.astype(np.uint32))
    w.vector(index + 1, (value >> np.uint64(32)).astype(np.uint32))


def _half_result(operand: Operand) -> Write:
    """16 bits: the other half becomes zero, but for results that VOP3 puts into the upper half."""
    index, low = operand.index, np.uint32(0xFFFF)
    if operand.high:
        return lambda w, value: w.vector(
            index, w.vectors[index, w.chosen] & low | bits_of(value) << np.uint32(16)
        )
    return lambda w, value: w.vector(index, bits_of(value) & low)


def _selected_result(operand: Operand, unused: int) -> Write:
    """SDWA: a part of the register is written; the rest is zero (0), the sign (1) or kept (2)."""
    first, bits = operand.selected or (0, 32)
    mask, shift, index = np.uint32(((1 << bits) - 1) << first), np.uint32(first), operand.index
    if unused == 1:
        raise Fault("SDWA that extends the sign of its result")

    def write(w: Waves, value: Any) -> None:
        value = bits_of(value) << shift & mask
        w.vector(index, value | w.vectors[index, w.chosen] & ~mask if unused == 2 else value)

    return write


def lane_mask(operand: Operand) -> Read:
    """Reads a lane mask, as bool [waves, 64]."""
    if operand.kind is Kind.CONSTANT:
        constant = np.unpackbits(
            np.array([[operand.value]], "<u8").view(np.uint8), axis=1, bitorder="little"
        ).astype(bool)
        return lambda w: constant
    index = operand.index
    if index == EXEC:
        return lambda w: w.exec[w.chosen]
    return lambda w: lanes_of(w.scalars[index, w.chosen], w.scalars[index + 1, w.chosen])


def lane_mask_result(operand: Operand) -> Write:
    """Writes a lane mask: what lanes that do not execute say counts as 0."""
    index = operand.index

    def write(w: Waves, value: Any) -> None:
        lanes = np.broadcast_to(value, w.active().shape) & w.active()
        low, high = pack_lanes(lanes)
        w.scalar(index, low)
        w.scalar(index + 1, high)

    return write
