"""Values that pseudocode computes with, once it is Python: AMD's operators, views and memory."""

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from eagle3_tools.amdgpu.witness import floats
from eagle3_tools.amdgpu.witness.bits import (
    Bits,
    PseudocodeError,
    Type,
    as_type,
    bit_slice,
    flag,
    integer,
    type_named,
    with_slice,
)
from eagle3_tools.amdgpu.witness.functions import convert

_FLOAT: dict[Any, Callable[[Bits, Bits], Bits]] = {
    operator.add: floats.add,
    operator.sub: lambda a, b: floats.add(a, b if floats.is_nan(b) else floats.negate(b)),
    operator.mul: floats.multiply,
    operator.truediv: floats.divide,
}


def _arithmetic(operate: Callable[[Any, Any], Any]) -> Callable[[Bits, Bits], "Value"]:
    """Operate on both values in their common type."""
    whole = operator.floordiv if operate is operator.truediv else operate

    def apply(left: Bits, right: Bits) -> "Value":
        a, b = _alike(left, right)
        if a.type.is_float:
            return Value(_FLOAT[operate](a, b))
        return Value(integer(a.type.kind, a.type.width, whole(a.number, b.number)))

    return apply


def _comparison(test: Callable[[int, int], bool]) -> Any:
    """Compare by C's rules, floats by IEEE's: false with a NaN except for !=."""

    def apply(left: Bits, right: Bits) -> "Value":
        a, b = _alike(left, right)
        if not a.type.is_float:
            return Value(flag(test(a.number, b.number)))
        if floats.is_nan(a) or floats.is_nan(b):
            return Value(flag(test is operator.ne))
        return Value(flag(test(floats.ordered(a), floats.ordered(b))))

    return apply


def _alike(left: Bits, right: Bits) -> tuple[Bits, Bits]:
    """Convert to the float type or the wider one; of one width to unsigned, as in C."""
    a, b = left.type, right.type
    if a.is_float != b.is_float:
        common = a if a.is_float else b
    elif a.width != b.width:
        common = a if a.width > b.width else b
    else:
        common = b if a.kind == "i" else a
    return convert(left, common), convert(right, common)


class Value(Bits):
    """A value, or with `write` a place: `write` replaces its content.

    `.u32` and `[31 : 16]` are views of a value; an assignment to one changes these bits of the
    place.
    """

    write: Callable[[Bits], Any]

    def __init__(self, bits: Bits, write: Callable[[Bits], Any] | None = None) -> None:
        vars(self).update(type=bits.type, pattern=bits.pattern, write=write)

    def __getattr__(self, name: str) -> "Value":
        type_ = type_named(name)
        return Value(as_type(self, type_), lambda new: self._change(type_.width - 1, 0, new))

    def __setattr__(self, name: str, new: Bits) -> None:
        type_ = type_named(name)
        self._change(type_.width - 1, 0, stored_as(new, type_))

    def __getitem__(self, index: Any) -> "Value":
        first, last = _bounds(index)
        return Value(bit_slice(self, first, last), lambda new: self._change(first, last, new))

    def __setitem__(self, index: Any, new: Bits | bool) -> None:
        self._change(*_bounds(index), bits_of(new))

    def _change(self, first: int, last: int, part: Bits) -> None:
        self.write(with_slice(self, first, last, part))

    __add__, __sub__ = _arithmetic(operator.add), _arithmetic(operator.sub)
    __mul__, __mod__ = _arithmetic(operator.mul), _arithmetic(operator.mod)
    __truediv__ = _arithmetic(operator.truediv)
    __and__, __or__ = _arithmetic(operator.and_), _arithmetic(operator.or_)
    __xor__ = _arithmetic(operator.xor)
    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)

    def __lshift__(self, by: Bits) -> "Value":
        return self._of(self.number << by.number)

    def __rshift__(self, by: Bits) -> "Value":
        """Shift; by the width or more, no bit remains, or only the sign."""
        return self._of(self.number >> by.number)

    def __invert__(self) -> "Value":
        return self._of(~self.number)

    def __neg__(self) -> "Value":
        return Value(floats.negate(self)) if self.type.is_float else self._of(-self.number)

    def __pos__(self) -> "Value":
        return self

    def _of(self, number: int) -> "Value":
        return Value(integer(self.type.kind, self.type.width, number))


def _bounds(index: Any) -> tuple[int, int]:
    if isinstance(index, slice):
        return index.start.number, index.stop.number
    return index.number, index.number


def bits_of(value: Bits | bool) -> Bits:
    """Return a value as bits; `not` gives Python's booleans."""
    return flag(value) if isinstance(value, bool) else value


def stored_as(value: Bits | bool, type_: Type) -> Bits:
    """Convert `value` for an assignment, within floats or within integers.

    Between floats and integers the bits are copied without conversion, so widths must agree.
    """
    value = bits_of(value)
    if value.type.is_float == type_.is_float:
        return convert(value, type_)
    if value.type.width != type_.width and value.type.kind != "b":
        raise PseudocodeError(f"expected a value of {type_.width} bits, got {value.type}")
    return as_type(value, type_)


def join(*parts: Value) -> Value:
    """Concatenate { high, ..., low }; what is written is divided among the parts."""
    pattern = width = 0
    for part in parts:
        pattern, width = pattern << part.type.width | part.pattern, width + part.type.width

    def write(new: Bits) -> None:
        at = 0
        for part in reversed(parts):
            part.write(bit_slice(new, at + part.type.width - 1, at))
            at += part.type.width

    return Value(Bits(Type("b", width), pattern), write)


def between(first: Bits, last: Bits) -> Iterator[Value]:
    """Count from `first` to `last`, both included."""
    return (Value(integer("i", 32, n)) for n in range(first.number, last.number + 1))


class Array:
    """A declared array of values of one type."""

    def __init__(self, type_: Type, length: int) -> None:
        self._type, self._items = type_, [Value(Bits(type_, 0))] * length

    def __getitem__(self, index: Bits) -> Value:
        return self._items[index.number]

    def __setitem__(self, index: Bits, new: Bits) -> None:
        self._items[index.number] = Value(stored_as(new, self._type))


class File:
    """Registers of the state by their keys, of 32 bits each; `written` has the changed ones."""

    def __init__(self, before: Mapping[Any, int]) -> None:
        self._before, self.written = before, dict[Any, int]()

    def read(self, key: Any) -> int:
        """Return a pattern; raise PseudocodeError if the state has none."""
        if key not in self.written and key not in self._before:
            raise PseudocodeError(f"expected a state with {key}, got one without")
        return self.written.get(key, self._before.get(key, 0))

    def __getitem__(self, index: Any) -> Any:
        return Value(integer("b", 32, self.read(_key(index))))

    def __setitem__(self, index: Any, new: Bits) -> None:
        self.written[_key(index)] = new.pattern & 0xFFFF_FFFF


def _key(index: Any) -> Any:
    return tuple(part.number for part in index) if isinstance(index, tuple) else index.number


class Memory(File):
    """Bytes by their addresses, little-endian; MEM[address].u32 is a place of four bytes."""

    def __getitem__(self, index: Any) -> Any:
        return _Cell(self, index.number)


class _Cell:
    memory: Memory
    address: int

    def __init__(self, memory: Memory, address: int) -> None:
        vars(self).update(memory=memory, address=address)

    def __getattr__(self, name: str) -> Value:
        type_ = type_named(name)
        content = bytes(self.memory.read(self.address + k) for k in range(type_.width // 8))
        return Value(Bits(type_, int.from_bytes(content, "little")))

    def __setattr__(self, name: str, new: Bits) -> None:
        type_ = type_named(name)
        content = stored_as(new, type_).pattern.to_bytes(type_.width // 8, "little")
        self.memory.written.update((self.address + k, byte) for k, byte in enumerate(content))
