"""Split AMD's instruction pseudocode into tokens, and read its literals."""

import re
from dataclasses import dataclass
from fractions import Fraction

from eagle3_tools.amdgpu.witness.bits import Bits, Type, integer, type_named
from eagle3_tools.amdgpu.witness.floats import F32, F64, rounded

_TOKEN = re.compile(
    r"""(?P<cast>\d+'(?:BF|[UIBF])\b)
      | (?P<sized>\d+'(?:0[xX][0-9a-fA-F]+|\d+\.\d+|\d+U?))
      | (?P<float>\d+\.\d+F?)
      | (?P<int>(?:0[xX][0-9a-fA-F]+|\d+)(?:ULL|LL|U|L)?\b)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<mark><<|>>|<=|>=|==|!=|<>|&&|\|\||\*\*|[-+*/|&^]=|[-+*/%&|^~!<>=?:;,.(){}\[\]])""",
    re.VERBOSE,
)
_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_SUFFIX_TYPE = {"U": ("u", 32), "L": ("i", 64), "LL": ("i", 64), "ULL": ("u", 64)}


class PseudocodeError(Exception):
    """The text is not pseudocode, or the state is not sufficient to run it."""


@dataclass(frozen=True)
class Token:
    kind: str
    text: str


def tokens(text: str) -> list[Token]:
    """Split a text into tokens; raise PseudocodeError at an invalid character."""
    found: list[Token] = []
    at = _after_space(text, 0)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            line = text[at:].splitlines()[0]
            raise PseudocodeError(f"expected a token of the pseudocode, got {line!r}")
        found.append(Token(match.lastgroup, match[0]))
        at = _after_space(text, match.end())
    return found


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def cast_type(text: str) -> Type:
    """Return the type of "32'U" or "16'BF"."""
    width, kind = text.split("'")
    type_ = type_named(kind.lower() + width)
    if type_ is None:
        raise PseudocodeError(f"expected a type such as 32'U, got {text}")
    return type_


def literal(token: Token) -> Bits:
    """Return the value of a number.

    1.0F is f32, 1.0 f64, 16'1.0 f16, 16'0U u16, 4U u32, 4LL i64, 4 i32 and 0x4 b32.
    """
    if token.kind == "float":
        return rounded(F32 if token.text.endswith("F") else F64, Fraction(token.text.rstrip("F")))
    if token.kind == "sized":
        width, digits = token.text.split("'")
        if "." in digits:
            return rounded(Type("f", int(width)), Fraction(digits))
        return integer("u", int(width), int(digits.rstrip("U"), 0))
    digits = token.text.rstrip("UL")
    suffix, number = token.text[len(digits) :], int(digits, 0)
    if suffix:
        kind, width = _SUFFIX_TYPE[suffix]
        return integer(kind, width, number)
    return integer("b" if digits[:2] in ("0x", "0X") else "i", 32, number)
