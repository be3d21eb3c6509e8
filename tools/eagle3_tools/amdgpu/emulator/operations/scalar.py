"""Operations of the scalar unit: results and SCC.

Sources are uint32, int32 or uint64 of shape [waves, 1] or [1, 1]. Source: CDNA3 ISA, chapter
"Scalar ALU Operations".
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.operations.vector_float import COMPARE
from eagle3_tools.amdgpu.emulator.operations.vector_integer import INTEGER, amount
from eagle3_tools.amdgpu.emulator.waves import Waves, constant, scalar_result, source, sources
from eagle3_tools.aot.amd.decode import EXEC, VCC, Instruction, Kind, Operand, signed

U32, U64, I64 = np.uint32, np.uint64, np.int64
Run = Callable[[Waves], Any]
_reverse, _extract, _extract_signed = (
    INTEGER[f"v_{name}"] for name in ("bfrev_b32", "bfe_u32", "bfe_i32")
)


def _wide(value: Any) -> Any:
    return value.astype(I64)


def _extend(bits: int) -> Callable[[Any], Any]:
    left = U32(32 - bits)
    return lambda a: (a.view(U32) << left).view(np.int32) >> np.int32(32 - bits)


def _field(extract: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Extract bits; one source has the first bit and the width, which must be below 32."""

    def apply(value: Any, where: Any) -> Any:
        width = where >> U32(16) & U32(127)
        if (width > 31).any():
            raise Fault("a scalar bit field of more than 31 bits")
        return extract(value, where & U32(31), width)

    return apply


_LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
PLAIN: dict[str, Callable[..., Any]] = {
    "s_mov_b32": lambda a: a,
    "s_mov_b64": lambda a: a,
    "s_brev_b32": _reverse,
    "s_sext_i32_i16": _extend(16),
    "s_sext_i32_i8": _extend(8),
    "s_pack_ll_b32_b16": lambda a, b: a & U32(0xFFFF) | b << U32(16),
    "s_mul_i32": np.multiply,
    "s_mul_hi_u32": INTEGER["v_mul_hi_u32"],
    "s_mul_hi_i32": INTEGER["v_mul_hi_i32"],
}
"""Operations that leave SCC unchanged."""
NONZERO: dict[str, Callable[..., Any]] = {
    f"s_{name}_b{bits}": function for name, function in _LOGIC.items() for bits in (32, 64)
} | {
    "s_not_b32": lambda a: ~a,
    "s_not_b64": lambda a: ~a,
    "s_lshl_b32": lambda a, b: a << amount(b),
    "s_lshr_b32": lambda a, b: a >> amount(b),
    "s_ashr_i32": lambda a, b: a >> amount(b).view(np.int32),
    "s_lshl_b64": lambda a, b: a << amount(b, 63).astype(U64),
    "s_lshr_b64": lambda a, b: a >> amount(b, 63).astype(U64),
    "s_ashr_i64": lambda a, b: a >> amount(b, 63).astype(I64),
    "s_bfe_u32": _field(_extract),
    "s_bfe_i32": _field(_extract_signed),
    "s_abs_i32": np.abs,
}
"""Operations that set SCC if the result is not zero."""
CHOOSING: dict[str, Callable[..., Any]] = {
    f"s_{name}_{kind}": function
    for name, function in (("max", np.maximum), ("min", np.minimum))
    for kind in ("i32", "u32")
}
"""Operations that set SCC if they take the first source (for equal ones, only a maximum does)."""


def _sum(name: str) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Return result and SCC of a sum: carry if unsigned, overflow if signed."""
    sign, carries = (-1 if "sub" in name else 1), name in ("s_addc_u32", "s_subb_u32")
    low, high = (-(2**31), 2**31 - 1) if "i32" in name else (0, 2**32 - 1)

    def apply(a: Any, b: Any, scc: Any) -> tuple[Any, Any]:
        total = _wide(a) + sign * (_wide(b) + (scc if carries else 0))
        return (total & 0xFFFF_FFFF).astype(U32), (total < low) | (total > high)

    return apply


def _shifted_sum(shift: int) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    def apply(a: Any, b: Any, scc: Any) -> tuple[Any, Any]:
        total = (_wide(a) << shift) + _wide(b)
        return (total & 0xFFFF_FFFF).astype(U32), total > 0xFFFF_FFFF

    return apply


SUMS = {
    name: _sum(name)
    for name in ("s_add_u32", "s_addc_u32", "s_sub_u32", "s_subb_u32", "s_add_i32", "s_sub_i32")
} | {f"s_lshl{k}_add_u32": _shifted_sum(k) for k in (1, 2, 3, 4)}
BRANCHES: dict[str, Callable[[Waves], Any]] = {
    "s_cbranch_scc0": lambda w: ~w.scc[w.chosen],
    "s_cbranch_scc1": lambda w: w.scc[w.chosen],
    "s_cbranch_vccz": lambda w: _pair(w, VCC) == 0,
    "s_cbranch_vccnz": lambda w: _pair(w, VCC) != 0,
    "s_cbranch_execz": lambda w: _pair(w, EXEC) == 0,
    "s_cbranch_execnz": lambda w: _pair(w, EXEC) != 0,
}


def _pair(w: Waves, first: int) -> Any:
    return w.scalars[first, w.chosen] | w.scalars[first + 1, w.chosen]


def scalar(i: Instruction) -> Run | None:
    """Translate a scalar instruction; return None if it is not scalar arithmetic."""
    if i.name == "s_branch":
        return lambda w: i.target
    if i.name in BRANCHES:
        taken = BRANCHES[i.name]
        return lambda w: np.where(taken(w), i.target, i.pc + i.size)
    if i.encoding.startswith("SOPC"):
        return _compare(i, sources(i))
    if i.encoding.startswith("SOPK"):
        return _with_immediate(i)
    if not i.encoding.startswith(("SOP1", "SOP2")):
        return None
    reads = sources(i)
    if i.name.endswith("_saveexec_b64"):
        return _save_exec(i, reads[0])
    if i.name in ("s_bitset0_b32", "s_bitset1_b32"):
        return _set_bit(i, reads[0])
    write = scalar_result(i.operands["sdst"])
    if i.name in ("s_cselect_b32", "s_cselect_b64"):
        return lambda w: write(w, np.where(w.scc[w.chosen][:, None], reads[0](w), reads[1](w)))
    if i.name in SUMS:
        return _adding(SUMS[i.name], reads, write)
    if i.name in PLAIN:
        function = PLAIN[i.name]
        return lambda w: write(w, function(*(read(w) for read in reads)))
    return _with_flag(i, reads, write)


def _adding(function: Any, reads: Any, write: Any) -> Run:
    def run(w: Waves) -> None:
        value, scc = function(reads[0](w), reads[1](w), w.scc[w.chosen][:, None])
        write(w, value)
        w.scc[w.chosen] = scc.reshape(-1)

    return run


def _with_flag(i: Instruction, reads: Any, write: Any) -> Run | None:
    function = NONZERO.get(i.name) or CHOOSING.get(i.name)
    taken = np.greater_equal if i.name.startswith("s_max") else np.less
    if function is None:
        return None

    def run(w: Waves) -> None:
        values = [read(w) for read in reads]
        value = function(*values)
        flag = taken(*values) if i.name in CHOOSING else value != 0
        write(w, value)
        w.scc[w.chosen] = flag.reshape(-1)

    return run


def _compare(i: Instruction, reads: Any) -> Run:
    if i.name.startswith("s_bitcmp"):
        wanted = int(i.name[len("s_bitcmp")])
        return lambda w: _set_scc(w, (reads[0](w) >> amount(reads[1](w)) & U32(1)) == wanted)
    test = COMPARE[i.name.split("_")[2]]
    return lambda w: _set_scc(w, test(reads[0](w), reads[1](w)))


def _set_scc(w: Waves, flag: Any) -> None:
    w.scc[w.chosen] = flag.reshape(-1)


def _save_exec(i: Instruction, read: Any) -> Run:
    """Translate *_saveexec: save EXEC to the destination, then EXEC = source `operation` EXEC."""
    operation = _LOGIC[i.name.split("_")[1]]
    old = source(Operand(Kind.SCALAR, EXEC, 64, "U64"))
    save, replace = (
        scalar_result(i.operands["sdst"]),
        scalar_result(Operand(Kind.SCALAR, EXEC, 64, "U64")),
    )

    def run(w: Waves) -> None:
        before = old(w)
        after = operation(read(w), before)
        save(w, before)
        replace(w, after)
        _set_scc(w, after != 0)

    return run


def _set_bit(i: Instruction, read: Any) -> Run:
    target, sets = i.operands["sdst"], i.name == "s_bitset1_b32"
    write, old = scalar_result(target), source(target)

    def run(w: Waves) -> None:
        bit = U32(1) << amount(read(w))
        write(w, old(w) | bit if sets else old(w) & ~bit)

    return run


def _with_immediate(i: Instruction) -> Run | None:
    """Translate SOPK: a 16-bit immediate, and one register as source and destination."""
    bits = i.fields["simm16"]
    if i.name == "s_setreg_imm32_b32":
        return _set_mode(i)
    target = i.operands["sdst"]
    old, write, value = source(target), scalar_result(target), signed(bits, 16)
    if i.name == "s_movk_i32":
        return lambda w: write(w, constant(value, np.int32))
    if i.name == "s_mulk_i32":
        return lambda w: write(w, old(w) * np.int32(value))
    if i.name == "s_addk_i32":
        return _adding(_sum("s_add_i32"), [old, lambda w: constant(value, np.int32)], write)
    if found := re.fullmatch(r"s_cmpk_(\w+)_([iu])32", i.name):
        kind, number = (np.int32, value) if found[2] == "i" else (U32, bits)
        test, given = COMPARE[found[1]], constant(number, kind)
        return lambda w: _set_scc(w, test(old(w), given))
    return None


def _set_mode(i: Instruction) -> Run:
    """Translate s_setreg_imm32 for one MODE bit, FP16_OVFL, which makes float8 saturate.

    Divisions turn denormal float32 on and off around themselves: they are always on here.
    """
    where = i.fields["simm16"]
    register, first, width = where & 63, where >> 6 & 31, (where >> 11) + 1
    if (register, first, width) == (1, 4, 2):
        return lambda w: None
    if (register, first, width) != (1, 23, 1):
        raise Fault(f"a write of hardware register {register}, bits {first} to {first + width - 1}")

    def run(w: Waves) -> None:
        w.saturates = bool(i.fields["literal"] & 1)

    return run
