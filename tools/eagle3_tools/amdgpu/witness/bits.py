"""Values of the pseudocode: a bit pattern and its type, such as u32 or bf16."""

import re
from dataclasses import dataclass
from functools import cache

_TYPE = re.compile(r"(bf|fp|[ufib])(\d+)")


class PseudocodeError(Exception):
    """The text is not pseudocode, or the state is not sufficient to run it."""


@dataclass(frozen=True)
class Type:
    """A type; `kind` is u (unsigned), i (signed), b (bits), f (IEEE), bf (bf16), fp (fp8)."""

    kind: str
    width: int

    @property
    def is_float(self) -> bool:
        return self.kind in ("f", "bf", "fp")

    def __str__(self) -> str:
        return f"{self.kind}{self.width}"


@dataclass(frozen=True)
class Bits:
    """A value; `pattern` is unsigned and fits in the type's width."""

    type: Type
    pattern: int

    @property
    def number(self) -> int:
        """The integer value: signed for kind i, else unsigned."""
        negative = self.type.kind == "i" and self.pattern >> (self.type.width - 1)
        return self.pattern - (1 << self.type.width) if negative else self.pattern

    def __bool__(self) -> bool:
        return self.pattern != 0


@cache
def type_named(name: str) -> Type:
    """Return the type that a suffix such as "u32" or "bf16" names."""
    match = _TYPE.fullmatch(name)
    if match is None:
        raise PseudocodeError(f"expected a type such as u32, got {name}")
    return Type(match[1], int(match[2]))


def integer(kind: str, width: int, number: int) -> Bits:
    """Wrap `number` to `width` bits, as integer arithmetic does."""
    return Bits(Type(kind, width), number & ((1 << width) - 1))


def flag(condition: bool) -> Bits:
    """Return the result of a comparison: one unsigned bit."""
    return integer("u", 1, int(condition))


def as_type(value: Bits, type_: Type) -> Bits:
    """Reinterpret the low bits of `value` as another type; zero-extend a narrower pattern."""
    return Bits(type_, value.pattern & ((1 << type_.width) - 1))


def bit_slice(value: Bits, first: int, last: int) -> Bits:
    """Return bits [first : last], highest first; [lowest : highest] reverses their order."""
    low, width = min(first, last), abs(first - last) + 1
    pattern = (value.pattern >> low) & ((1 << width) - 1)
    if first < last:
        pattern = int(f"{pattern:0{width}b}"[::-1], 2)
    return Bits(Type("b", width), pattern)


def with_slice(value: Bits, first: int, last: int, part: Bits) -> Bits:
    """Replace bits [first : last] of `value` by the low bits of `part`."""
    mask = (1 << (first - last + 1)) - 1
    pattern = (value.pattern & ~(mask << last)) | ((part.pattern & mask) << last)
    return Bits(Type(value.type.kind, max(value.type.width, first + 1)), pattern)
