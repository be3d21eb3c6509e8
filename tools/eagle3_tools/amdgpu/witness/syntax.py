"""The syntax tree of AMD's instruction pseudocode."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_tools.amdgpu.witness.bits import Bits, Type


@dataclass(frozen=True)
class Number:
    value: Bits


@dataclass(frozen=True)
class Name:
    """A register, a local variable or a field such as WAVE_MODE.IEEE."""

    text: str


@dataclass(frozen=True)
class Unary:
    operator: str
    operand: Expression


@dataclass(frozen=True)
class Binary:
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Choice:
    """condition ? yes : no"""

    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True)
class Typed:
    """inner.u32: the same bits read, or written, with a type."""

    inner: Expression
    type: Type


@dataclass(frozen=True)
class Slice:
    """inner[first : last]"""

    inner: Expression
    first: Expression
    last: Expression


@dataclass(frozen=True)
class Index:
    """inner[index]: a bit of a value, an element of an array, VGPR[lane] or MEM[address]."""

    inner: Expression
    index: Expression


@dataclass(frozen=True)
class Cast:
    """32'I(inner): a conversion."""

    type: Type
    inner: Expression


@dataclass(frozen=True)
class Concatenation:
    """{ high, ..., low }"""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Call:
    function: str
    arguments: tuple[Expression, ...]


Expression = (
    Number | Name | Unary | Binary | Choice | Typed | Slice | Index | Cast | Concatenation | Call
)


@dataclass(frozen=True)
class Assign:
    """target = target = value; target += value is written out as target = target + value."""

    targets: tuple[Expression, ...]
    value: Expression


@dataclass(frozen=True)
class Declare:
    """declare name : type; or, with a length, declare name : type[length];"""

    name: str
    type: Type
    length: int | None


@dataclass(frozen=True)
class If:
    """if and its elsif branches in order, then else (empty where there is none)."""

    branches: tuple[tuple[Expression, Body], ...]
    otherwise: Body


@dataclass(frozen=True)
class For:
    """for variable in first : last do ... endfor, with `last` included."""

    variable: str
    first: Expression
    last: Expression
    body: Body


@dataclass(frozen=True)
class Lambda:
    """name = lambda(parameters) ( body );"""

    name: str
    parameters: tuple[str, ...]
    body: Body


@dataclass(frozen=True)
class Return:
    value: Expression


@dataclass(frozen=True)
class Break:
    pass


@dataclass(frozen=True)
class Perform:
    """A call for its effect alone, such as nop()."""

    call: Expression


Statement = Assign | Declare | If | For | Lambda | Return | Break | Perform
Body = tuple[Statement, ...]
