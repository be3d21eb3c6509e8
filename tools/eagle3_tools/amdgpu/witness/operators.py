"""Operators of the pseudocode on typed values: C's rules for integers, IEEE's for floats."""

from collections.abc import Callable

from eagle3_tools.amdgpu.witness import floats
from eagle3_tools.amdgpu.witness.bits import Bits, Type, flag, integer
from eagle3_tools.amdgpu.witness.functions import convert
from eagle3_tools.amdgpu.witness.tokens import PseudocodeError

_COMPARISONS = ("==", "!=", "<>", "<", "<=", ">", ">=")
_INTEGER: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<>": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
}
_FLOAT: dict[str, Callable[[Bits, Bits], Bits]] = {
    "+": floats.add,
    "-": lambda a, b: floats.add(a, b if floats.is_nan(b) else floats.negate(b)),
    "*": floats.multiply,
    "/": floats.divide,
}


def unary(operator: str, operand: Bits) -> Bits:
    if operator == "!":
        return flag(not operand)
    if operator == "+":
        return operand
    if operator == "-" and operand.type.is_float:
        return floats.negate(operand)
    number = ~operand.number if operator == "~" else -operand.number
    return integer(operand.type.kind, operand.type.width, number)


def binary(operator: str, left: Bits, right: Bits) -> Bits:
    """Combine operands after conversion to the wider type; of one width unsigned, as in C."""
    if operator in ("<<", ">>"):
        return _shift(operator, left, right.number)
    type_ = _common(left.type, right.type)
    left, right = convert(left, type_), convert(right, type_)
    if type_.is_float:
        if operator in _COMPARISONS:
            return floats.compare(operator, left, right)
        if operator not in _FLOAT:
            raise PseudocodeError(f"expected arithmetic of {type_}, got {operator}")
        return _FLOAT[operator](left, right)
    number = _INTEGER[operator](left.number, right.number)
    if operator in _COMPARISONS:
        return flag(number != 0)
    return integer(type_.kind, type_.width, number)


def _shift(operator: str, value: Bits, amount: int) -> Bits:
    """Shift; by the width or more, no bit remains, or only the sign."""
    number = value.number << amount if operator == "<<" else value.number >> amount
    return integer(value.type.kind, value.type.width, number)


def _common(left: Type, right: Type) -> Type:
    if left.is_float != right.is_float:
        return left if left.is_float else right
    if left.width != right.width:
        return left if left.width > right.width else right
    return right if left.kind == "i" else left
