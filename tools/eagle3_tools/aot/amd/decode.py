"""Decoder of CDNA3 and CDNA4 machine code into instructions with typed operands.

Encodings, names and operand types are AMD's, from tinygrad's tables of its machine readable ISA.
This is the only module of the emulator that depends on that package. The package does not specify
which registers are accumulation registers or what constants mean; the ISA documents do, in chapter
"Microcode Formats".
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tinygrad.renderer.amd import decode_inst  # pyright: ignore[reportMissingImports]

VCC, EXEC = 106, 126
"""Scalar registers with names; both are pairs."""
ACCUMULATORS = 256
"""First accumulation register in this module's numbering of vector registers."""
_LITERAL, _FIRST_VECTOR = 255, 256
_FLOATS = {
    **{240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0},
    248: 0.15915494309189532,
}
_FLAGS = {251: "vccz", 252: "execz", 253: "scc"}
_SELECTIONS = ((0, 8), (8, 8), (16, 8), (24, 8), (0, 16), (16, 16), (0, 32))
"""SDWA's src0_sel and dst_sel: (first bit, bits)."""
_SOURCES = ("ssrc0", "ssrc1", "src0", "src1", "src2")
_ALIASES = {"vsrc1": "src1"}
_READ_VCC = {"v_cndmask_b32", "v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32"}
_NO_ADDRESS = 127
_SCALED = 0xD3AC
"""First bits of the encoding of an MFMA with scales."""


Register = tuple[str, int]
"""File ("v" or "s") and number of a register."""


class Kind(Enum):
    """Location of an operand."""

    VECTOR = "v"
    SCALAR = "s"
    CONSTANT = "constant"
    FLAG = "flag"


@dataclass(frozen=True)
class Operand:
    """An operand of an instruction.

    index: of the first register. bits, type: what the operation reads there, by AMD's name. value:
    a constant's bits, or a flag's name. negate, absolute: applied to the sign bit. high: the upper
    half of a register. selected: the (first bit, bits) that SDWA takes, extended as `signed` says.
    """

    kind: Kind
    index: int = 0
    bits: int = 32
    type: str = "B32"
    value: Any = 0
    negate: bool = False
    absolute: bool = False
    high: bool = False
    selected: tuple[int, int] | None = None
    signed: bool = False

    @property
    def registers(self) -> range:
        """Registers that the operand occupies, in the file of its kind."""
        return range(self.index, self.index + max(1, self.bits // 32))

    @property
    def places(self) -> list[Register]:
        """The registers with their files; a constant or flag has none."""
        if self.kind not in (Kind.VECTOR, Kind.SCALAR):
            return []
        return [(self.kind.value, register) for register in self.registers]


@dataclass(frozen=True)
class Instruction:
    """One decoded instruction. name: LLVM's, in lower case, without the encoding's suffix.

    operands: by AMD's field names (`vdst`, `src0`, `addr`, ...); fields: all other bits.
    """

    name: str
    encoding: str
    pc: int
    size: int
    operands: Mapping[str, Operand] = field(repr=False)
    fields: Mapping[str, int] = field(repr=False)

    @property
    def sources(self) -> tuple[Operand, ...]:
        """Operands that the arithmetic reads, in order."""
        return tuple(self.operands[name] for name in _SOURCES if name in self.operands)

    @property
    def dpp(self) -> bool:
        """True if the first source comes from other lanes."""
        return self.encoding.endswith("DPP16")

    @property
    def target(self) -> int:
        """Target address of a branch."""
        return self.pc + 4 + 4 * signed(self.fields["simm16"], 16)

    @property
    def following(self) -> tuple[int, ...]:
        """Addresses at which a wave may go on, the target of a branch last."""
        if self.name == "s_endpgm":
            return ()
        if self.name == "s_branch":
            return (self.target,)
        is_branch = self.name.startswith("s_cbranch")
        return (self.pc + self.size, *([self.target] if is_branch else []))


def signed(value: int, bits: int) -> int:
    """Interpret the low `bits` as two's complement."""
    return value - ((value >> (bits - 1)) << bits)


def decode(code: bytes) -> dict[int, Instruction]:
    """Return the instructions of a kernel by their distance from the first.

    Raises ValueError if bytes are no CDNA instruction.
    """
    found, at = {}, 0
    while at < len(code):
        # Only a scaled MFMA has 16 bytes; the package takes any bytes before an MFMA for one.
        size = 16 if struct.unpack_from("<H", code, at + 2)[0] == _SCALED else 8
        raw = decode_inst(code[at : at + size], "cdna")
        found[at] = instruction = _instruction(raw, at)
        at += instruction.size
    return found


def _instruction(raw: Any, pc: int) -> Instruction:
    encoding, name = type(raw).__name__, re.sub(r"_e(32|64)$", "", raw.op_name.lower())
    values = {key: getattr(raw, key) for key, _ in raw._fields if key not in ("encoding", "op")}
    numbers = {key: int(v) for key, v in values.items() if not hasattr(v, "offset")}
    codes = {key: v.offset for key, v in values.items() if hasattr(v, "offset")}
    codes |= {key: numbers.pop(key) for key in ("scale_src0", "scale_src1") if key in numbers}
    if name.startswith("v_read"):  # One lane's value, or the first lane's, into a scalar register.
        codes["vdst"] -= _FIRST_VECTOR
    if "vsrc0" in codes:  # src0 only says that DPP or SDWA follows.
        codes["src0"] = codes.pop("vsrc0")
    if encoding.endswith(("SDWA", "SDWA_SDST")):  # Vector registers, unless s0 and s1 say no.
        codes |= {
            k: codes[k] - _FIRST_VECTOR * numbers[s]
            for k, s in (("src0", "s0"), ("vsrc1", "s1"))
            if k in codes
        }
    operands = {
        _ALIASES.get(key, key): _operand(raw, key, code, numbers)
        for key, code in codes.items()
        if (name.startswith("v_accvgpr") and key in ("vdst", "src0")) or _form(raw, key)
    }
    return Instruction(name, encoding, pc, raw.size(), operands | _implied(raw, name), numbers)


def _form(raw: Any, key: str) -> tuple[str, int] | None:
    """Return type and bits of an operand, or None if the operation does not have it."""
    known = raw.operands
    found = known.get(key) or known.get(_ALIASES.get(key, key))
    if found is None or _is_off(raw, key):
        return None
    bits = raw.op_bits.get(key) or found[1]
    if key == "addr" and _is_off(raw, "saddr"):
        bits = 64
    return found[0].name.removeprefix("FMT_").removeprefix("NUM_"), bits


def _is_off(raw: Any, key: str) -> bool:
    """Return whether an address lacks this part."""
    if key == "saddr" and hasattr(raw, "saddr"):
        return raw.saddr.offset == _NO_ADDRESS
    if key == "vaddr":
        return not (raw.offen or raw.idxen)
    return key == "soffset" and hasattr(raw, "soffset_en") and not raw.soffset_en


def _implied(raw: Any, name: str) -> dict[str, Operand]:
    """Return the implicit VCC operands of encodings without a field for them."""
    encoding = type(raw).__name__
    vcc = Operand(Kind.SCALAR, VCC, 64, "M64")
    if encoding.startswith("VOPC"):
        chosen = raw.sdst.offset if getattr(raw, "sd", 0) else VCC
        return {"vdst": Operand(Kind.SCALAR, chosen, 64, "M64")}
    if not encoding.startswith("VOP2"):
        return {}
    carries = {"sdst": vcc} if "_co_u32" in name else {}
    return carries | ({"src2": vcc} if name in _READ_VCC else {})


def _operand(raw: Any, key: str, code: int, numbers: dict[str, int]) -> Operand:
    form, bits = _form(raw, key) or ("B32", 32)
    changed = _modifiers(type(raw).__name__, _ALIASES.get(key, key), numbers)
    if bits == 16 and key != "vdst" and "selected" in changed:
        changed |= _half(changed["selected"], form, changed["signed"])
    if code >= _FIRST_VECTOR:
        first = ACCUMULATORS * _accumulates(raw, key)
        return Operand(Kind.VECTOR, code - _FIRST_VECTOR + first, bits, form, **changed)
    if code in _FLAGS:
        return Operand(Kind.FLAG, 0, bits, form, _FLAGS[code])
    if code < 128:
        return Operand(Kind.SCALAR, code, bits, form, **changed)
    return Operand(Kind.CONSTANT, 0, bits, form, _constant(code, bits, form, numbers), **changed)


def _accumulates(raw: Any, key: str) -> bool:
    """Return whether this field names an accumulation register."""
    name = raw.op_name.lower()
    if name.startswith("v_accvgpr"):
        return "mov" in name or ("write" in name) == (key == "vdst")
    if type(raw).__name__ in ("DS", "GLOBAL", "MUBUF", "SCRATCH", "FLAT"):
        return bool(raw.acc) and key not in ("addr", "vaddr")
    if key in ("src0", "src1"):
        return bool(getattr(raw, "acc", 0) >> int(key[-1]) & 1)
    return bool(getattr(raw, "acc_cd", 0)) and key in ("vdst", "src2")


def _modifiers(encoding: str, key: str, numbers: dict[str, int]) -> dict[str, Any]:
    """Return the encoding's modifications of an operand, before or after the operation."""
    sdwa, place = "SDWA" in encoding, {"src0": 0, "src1": 1, "src2": 2, "vdst": 3}.get(key)
    if place is None:
        return {}
    if key == "vdst" and "dst_sel" in numbers:
        return {"selected": _SELECTIONS[numbers["dst_sel"]]}
    if key + "_neg" in numbers:
        chosen: dict[str, Any] = {
            "negate": bool(numbers[f"{key}_neg"]),
            "absolute": bool(numbers[f"{key}_abs"]),
        }
        if sdwa:
            chosen["selected"] = _SELECTIONS[numbers[f"{key}_sel"]]
            chosen["signed"] = bool(numbers[f"{key}_sext"])
        return chosen
    if encoding not in ("VOP3", "VOP3_SDST", "VOP3SD"):
        return {}
    bits = {"negate": "neg", "absolute": "abs", "high": "opsel"}
    return {what: bool(numbers.get(bit, 0) >> place & 1) for what, bit in bits.items()}


def _half(selected: tuple[int, int], form: str, extends: bool) -> dict[str, Any]:
    """Return the bits of SDWA's selection that a 16-bit operation sees."""
    first, bits = selected
    return {"selected": (first, min(bits, 16)), "signed": form == "I16" if bits > 8 else extends}


def _constant(code: int, bits: int, form: str, numbers: dict[str, int]) -> int:
    """Return the bits of a constant that an operation sees."""
    mask = (1 << max(bits, 32)) - 1
    if code == _LITERAL:
        literal = numbers["literal"]
        return signed(literal, 32) & mask if form.startswith("I") else literal
    if code in _FLOATS:
        shape = {"F64": "<d", "F16": "<e"}.get(form, "<f")
        if bits != 8 * struct.calcsize(shape) and form != "PK2_F32":
            raise ValueError(f"a float constant where {bits} bits of {form} are read")
        return int.from_bytes(struct.pack(shape, _FLOATS[code]), "little")
    if not 128 <= code <= 208:
        raise ValueError(f"no operand has the code {code}")
    return (code - 128 if code <= 192 else 192 - code) & mask
