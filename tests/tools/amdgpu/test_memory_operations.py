"""Loads and stores move the bytes that AMD's text specifies."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad")

from amdgpu.instructions import encode, s, v
from amdgpu.single import copied, fill, fill_descriptor, held, make_waves, run
from eagle3_tools.amdgpu.emulator.local_memory import LocalMemory
from eagle3_tools.amdgpu.emulator.memory import GlobalMemory
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves
from eagle3_tools.amdgpu.witness.pseudocode import evaluate
from eagle3_tools.amdgpu.witness.table import LOCAL_MEMORY, SCALAR_MEMORY, VECTOR_MEMORY
from eagle3_tools.aot.amd.decode import Instruction, Kind, Operand

_WAVES, _SLOT = 2, 32
_NO_ADDRESS = 127
"""Value of saddr without a scalar base (CDNA3 ISA, "Flat, Scratch, Global Address")."""
_BYTES = _WAVES * LANES * _SLOT
_RNG = np.random.default_rng(0)


def _wide(w: Waves, operand: Operand, wave: int, lane: int) -> int:
    """Return all of an operand's registers as one number."""
    file = w.vectors[:, wave, lane] if operand.kind is Kind.VECTOR else w.scalars[:, wave]
    return sum(int(file[r]) << 32 * k for k, r in enumerate(operand.registers))


def _ready(i: Instruction, memory: GlobalMemory | None = None, lds: Any = None) -> Waves:
    """Make waves with random vector registers and some active lanes."""
    w = make_waves(_WAVES, memory, lds)
    w.vectors[:64] = _RNG.integers(0, 1 << 32, (64, _WAVES, LANES))
    lanes = _RNG.random((_WAVES, LANES)) < 0.7
    lanes[0] = True
    w.set_exec(lanes)
    return w


def _slots() -> np.ndarray:
    """Return each lane's byte offset, in its own 32 bytes and in random order."""
    order = _RNG.permutation(_WAVES * LANES).reshape(_WAVES, LANES)
    return order * _SLOT + 4 * _RNG.integers(0, 4, (_WAVES, LANES))


def _contents(raw: np.ndarray, base: int, first: int, count: int = 16) -> dict[int, int]:
    """Return the bytes around an access, by address."""
    last = min(first + count, len(raw))
    return {base + k: int(raw[k]) for k in range(max(first, 0), last)}


def _check_lane(
    i: Instruction, before: Waves, after: Waves, wave: int, lane: int, said: dict[str, Any]
) -> None:
    """Check a lane's result registers; bits that the text does not write must be unchanged."""
    name = "vdst" if "vdst" in i.operands else "vdata"
    if not any(what in i.name for what in ("load", "read", "atomic")):
        return
    got = _wide(after, i.operands[name], wave, lane)
    if not before.exec[wave, lane]:
        assert got == _wide(before, i.operands[name], wave, lane)
    else:
        assert got == said.get("VDATA", said.get("RETURN_DATA")), f"wave {wave}, lane {lane}"


def _data(i: Instruction, w: Waves, wave: int, lane: int) -> dict[str, int]:
    names = {"data": "VDATA", "vdata": "VDATA", "data0": "DATA", "data1": "DATA2"}
    if "atomic" in i.name:
        names["data"] = "DATA"
    if "load" in i.name or "read" in i.name:
        return {}
    return {
        text: _wide(w, i.operands[name], wave, lane)
        for name, text in names.items()
        if name in i.operands
    }


def _check_vector_access(
    i: Instruction, w: Waves, base: int, where: np.ndarray, inside: np.ndarray
) -> None:
    """Check an access whose first bytes are `where` [waves, lanes]; `inside` is in the buffer."""
    raw = w.memory.read(base, (_BYTES,), np.uint8)
    done = copied(w)
    run(i, done)
    expected = raw.copy()
    for wave in range(_WAVES):
        for lane in range(LANES):
            first = int(where[wave, lane])
            state = {"address": base + first, "MEM": _contents(raw, base, first)}
            said: dict[str, Any] = {"VDATA": 0}
            if inside[wave, lane]:
                said = evaluate(i.name, state | _data(i, w, wave, lane))
            _check_lane(i, w, done, wave, lane, said)
            if w.exec[wave, lane]:
                for address, byte in said.get("MEM", {}).items():
                    expected[address - base] = byte
    assert (w.memory.read(base, (_BYTES,), np.uint8) == expected).all()


def _buffer() -> tuple[GlobalMemory, int]:
    memory = GlobalMemory(1 << 16)
    base = memory.place(_RNG.integers(0, 256, _BYTES).astype(np.uint8), "bytes")
    memory.begin_launch(_WAVES)
    return memory, base


@pytest.mark.parametrize("mnemonic", [m for m in VECTOR_MEMORY if m.startswith("global")])
@pytest.mark.parametrize("offset", [0, 2047, -4096])
@pytest.mark.parametrize("scalar_base", [False, True])
def test_a_global_access_is_amds(mnemonic: str, offset: int, scalar_base: bool):
    memory, base = _buffer()
    base_register = s(40, 2) if scalar_base else s(_NO_ADDRESS)
    returns: dict[str, Any] = {"sc0": 1} if "atomic" in mnemonic else {}
    i = encode(mnemonic, offset=offset & 0x1FFF, saddr=base_register, addr=v(40), **returns)
    w, where = _ready(i, memory), _slots()
    if returns:  # Half of the lanes find the value they compare with.
        words = memory.read(base, (_BYTES // 4,), np.uint32)
        w.vectors[17, :, ::2] = words[where[:, ::2] // 4]
    if scalar_base:
        fill(w, Operand(Kind.SCALAR, 40, 64), np.full((_WAVES, LANES), base - 5000, np.uint64))
        fill(w, i.operands["addr"], (where + 5000 - offset).astype(np.uint64))
    else:
        fill(w, i.operands["addr"], (base + where - offset).astype(np.uint64))
    _check_vector_access(i, w, base, where, np.ones((_WAVES, LANES), bool))


@pytest.mark.parametrize("mnemonic", [m for m in VECTOR_MEMORY if m.startswith("buffer")])
@pytest.mark.parametrize("offset", [0, 100])
def test_a_buffer_access_is_amds_and_stops_at_the_buffers_end(mnemonic: str, offset: int):
    """Loads beyond the descriptor's size give zeros, stores nothing; soffset is not checked.

    Source: CDNA3 ISA, "Buffer Addressing", range checking.
    """
    memory, base = _buffer()
    i = encode(mnemonic, offset=offset, offen=1, vaddr=v(40), srsrc=s(40, 4), soffset=s(50))
    w, where = _ready(i, memory), _slots()
    records, scalar_offset = _BYTES // 2, 48
    fill_descriptor(w, 40, base, records)
    w.scalars[50] = scalar_offset
    where = np.maximum(where, offset + scalar_offset)
    fill(w, i.operands["vaddr"], (where - offset - scalar_offset).astype(np.uint64))
    name = i.operands["vdata"]
    size = {"ushort": 2, "short": 2, "byte": 1}.get(mnemonic.split("_")[2], name.bits // 8)
    _check_vector_access(i, w, base, where, where - scalar_offset + size <= records)


@pytest.mark.parametrize("mnemonic", SCALAR_MEMORY)
@pytest.mark.parametrize("offset", [0, 64, -32])
def test_a_scalar_load_is_amds(mnemonic: str, offset: int):
    memory, base = _buffer()
    i = encode(mnemonic, offset=offset & 0x1FFFFF, imm=1, sbase=s(40, 2))
    w = _ready(i, memory)
    where = np.array([[256], [512]])
    fill(
        w,
        Operand(Kind.SCALAR, 40, 64),
        np.broadcast_to(base + where - offset, (_WAVES, LANES)).astype(np.uint64),
    )
    done = copied(w)
    run(i, done)
    raw = memory.read(base, (_BYTES,), np.uint8)
    for wave in range(_WAVES):
        first = int(where[wave, 0])
        said = evaluate(mnemonic, {"address": base + first, "MEM": _contents(raw, base, first, 64)})
        assert _wide(done, i.operands["sdata"], wave, 0) == said["SDATA"]


_TWO = "ds_read2", "ds_write2"


def _offsets(mnemonic: str) -> list[tuple[int, int]]:
    """Return pairs of offset0 and offset1: one number, or one for each of two accesses."""
    return [(0, 1), (2, 3)] if mnemonic.startswith(_TWO) else [(0, 0), (44, 2)]


@pytest.mark.parametrize("mnemonic", LOCAL_MEMORY)
def test_an_access_of_local_memory_is_amds(mnemonic: str):
    for offsets in _offsets(mnemonic):
        _check_local_access(encode(mnemonic, offset0=offsets[0], offset1=offsets[1]), offsets)


def _check_local_access(i: Instruction, offsets: tuple[int, int]) -> None:
    # The two accesses of a lane do not overlap with another lane's.
    apart = 1024 if "st64" in i.name else 32
    size = apart * (LANES + 2) + 1024
    lds = LocalMemory(_WAVES, size, 1, 0)
    lds.bytes[:] = _RNG.integers(0, 256, len(lds.bytes))
    w = _ready(i, lds=lds)
    order = np.stack([_RNG.permutation(LANES) for _ in range(_WAVES)])
    fill(w, i.operands["addr"], (order * apart).astype(np.uint64))
    raw = lds.bytes.reshape(_WAVES, size).copy()
    done = copied(w)
    run(i, done)
    whole = offsets[0] | offsets[1] << 8
    for wave in range(_WAVES):
        expected, before = raw[wave].copy(), dict(enumerate(raw[wave].tolist()))
        for lane in range(LANES):
            address = int(held(w, i.operands["addr"])[wave, lane])
            adds = i.name.endswith(("b8", "u8", "i8", "b16", "u16", "_hi"))
            state = {
                **{"ADDR": address + whole * adds, "address": address, "OFFSET": whole},
                **{"OFFSET0": offsets[0], "OFFSET1": offsets[1], "MEM": before},
            }
            said = evaluate(i.name, state | _data(i, w, wave, lane))
            _check_lane(i, w, done, wave, lane, said)
            if w.exec[wave, lane]:
                for place, byte in said.get("MEM", {}).items():
                    expected[place] = byte
        assert (lds.bytes.reshape(_WAVES, size)[wave] == expected).all()


@pytest.mark.parametrize("words", [1, 3, 4])
def test_a_load_into_local_memory_puts_lanes_one_after_another(words: int) -> None:
    """Beyond the buffer they are zeros; 12 bytes take the room of 16 (CDNA4 ISA, 9.1.9)."""
    memory, base = _buffer()
    mnemonic, offset, start = "buffer_load_dword" + (f"x{words}" if words > 1 else ""), 64, 256
    i = encode(mnemonic, lds=1, offset=offset, offen=1, vaddr=v(40), srsrc=s(44, 4), soffset=s(50))
    w, where = _ready(i, memory, LocalMemory(_WAVES, 2048, 4, 0xA5A5A5A5)), _slots()
    records = _BYTES // 2
    fill_descriptor(w, 44, base, records)
    w.scalars[50], w.scalars[124] = 0, start
    where = np.maximum(where, offset)
    fill(w, i.operands["vaddr"], (where - offset).astype(np.uint64))
    before = w.vectors.copy()
    run(i, w)
    raw = memory.read(base, (_BYTES,), np.uint8)
    expected = np.full((_WAVES, 2048), 0xA5, np.uint8)
    for wave, lane in np.argwhere(w.exec):
        first, size = where[wave, lane], 4 * words
        place = start + offset + (4 if words == 1 else 16) * lane
        loaded = raw[first : first + size] if first + size <= records else 0
        expected[wave, place : place + size] = loaded
    assert (w.lds.bytes.reshape(_WAVES, 2048) == expected).all()
    assert (w.vectors == before).all()
