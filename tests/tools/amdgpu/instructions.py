"""Encode single instructions with tinygrad's constructors, and decode them with the emulator.

Vector sources are in v[16], v[24] and v[32], scalar sources in s[16], s[24] and s[32], results in
v[8] and s[8], unless stated otherwise.
"""

import importlib
from functools import partial
from typing import Any

from eagle3_tools.aot.amd.decode import Instruction, decode

_PLACES = {
    **{"vdst": 8, "sdst": 8, "sdata": 8, "addr": 40, "data": 16, "vdata": 16},
    **{"data0": 16, "data1": 24, "src0": 16, "src1": 24, "src2": 32, "ssrc0": 16, "ssrc1": 24},
    **{"vsrc0": 16, "vsrc1": 24, "sbase": 40, "srsrc": 40},
}
_SCALAR = ("OPR_SREG", "OPR_SDST", "OPR_SSRC")
"""AMD's names for operands in scalar registers only."""
_MARKS = {"DPP16": 250, "SDWA": 249, "SDWA_SDST": 249}
"""Values of src0 that announce DPP and SDWA encodings."""


def _tables() -> Any:
    return importlib.import_module("tinygrad.runtime.autogen.amd.cdna.ins")


def has_form(mnemonic: str, form: str) -> bool:
    """Return whether an opcode has an encoding: "e32" or "e64"."""
    return hasattr(_tables(), f"{mnemonic}_{form}")


def v(first: int, count: int = 1) -> Any:
    """Return vector registers as constructors take them."""
    return s(256 + first, count)


def s(first: int, count: int = 1) -> Any:
    """Return scalar registers as constructors take them; VCC begins at 106."""
    codes = _tables().src
    return codes[first] if count == 1 else codes[first : first + count - 1]


def encode(mnemonic: str, form: str = "", **fields: Any) -> Instruction:
    """Encode one instruction at address 0.

    `form` is "e32", "e64", "DPP16", "SDWA", "SDWA_SDST", or "" for the only or shortest one.
    `fields` are registers, constants and others by AMD's names.
    """
    kind, op = _class_of(mnemonic, form)
    known, operands = dict(kind._fields), _operands(op)
    chosen = {
        name: _place(known[name], operands.get(name) or operands[_unaliased(name)], place)
        for name, place in _PLACES.items()
        if name in known and (name in operands or _unaliased(name) in operands)
    }
    if form in _MARKS:
        chosen["vsrc0"] = chosen["src0"]
        chosen["src0"] = s(_MARKS[form])
    raw = kind(op, **chosen | fields)
    (instruction,) = decode(raw.to_bytes()).values()
    return instruction


def _class_of(mnemonic: str, form: str) -> tuple[Any, Any]:
    tables, suffix = _tables(), f"_{form}" if form in ("e32", "e64") else ""
    short, long = f"{mnemonic}_e32", f"{mnemonic}_e64"
    names = [short] if form in _MARKS else [mnemonic + suffix, short, long]
    names.append(mnemonic.removesuffix("_b32"))  # v_accvgpr_read_b32
    found: partial[Any] = next(getattr(tables, n) for n in names if hasattr(tables, n))
    kind = found.func
    return getattr(tables, f"{kind.__name__}_{form}") if form in _MARKS else kind, found.args[0]


def _operands(op: Any) -> dict[str, Any]:
    return importlib.import_module("tinygrad.runtime.autogen.amd.cdna.operands").OPERANDS[op]


def _unaliased(name: str) -> str:
    """Return a source's name in the operand tables, which DPP and SDWA rename."""
    return name.removeprefix("v")


def _place(field: Any, operand: Any, first: int) -> Any:
    _, bits, kind = operand
    count, takes = max(1, bits // 32), type(field).__name__
    scalar = takes.startswith("S") and takes != "SrcField"
    if takes == "SrcField":
        scalar = kind.name.startswith(_SCALAR)
    return s(first, count) if scalar else v(first, count)
