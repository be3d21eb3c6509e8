"""Trace NumPy expressions into C.

The operations of `emulator.operations` are NumPy functions of registers. Called with the values of
this module, they write the C statements of one instruction. A value belongs to the wave or to each
of its 64 lanes; consecutive statements of lanes share a loop, which gcc vectorises.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from eagle3_tools.amdgpu.emulator.memory import Fault

LANES = 64
BOOL = np.dtype(bool)
_TYPES = {"bool": "uint32_t", "float16": "_Float16", "float32": "float", "float64": "double"}
_INFIX = {
    **{"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "left_shift": "<<"},
    **{"right_shift": ">>", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"},
    **{"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="},
    **{"equal": "==", "not_equal": "!="},
}
_FORMS = {
    "negative": "-{0}",
    "absolute": "({0} < 0 ? -{0} : {0})",
    "maximum": "({0} > {1} ? {0} : {1})",
    "minimum": "({0} < {1} ? {0} : {1})",
    "fmax": "({0} >= {1} || {1} != {1} ? {0} : {1})",
    "isnan": "({0} != {0})",
    "isinf": "(fabs({0}) == INFINITY)",
    "isfinite": "(fabs({0}) < INFINITY)",
    "log2": "({0} < 0 ? NAN : log2({0}))",  # glibc's NaN is negative, NumPy's is not.
    "signbit": "signbit_({0})",
    "bitwise_count": "__builtin_popcount({0})",
    "ldexp": "ldexp_({0}, {1})",
}
"""C expressions of ufuncs. `maximum` and `minimum` are for integers only: NaN differs."""
_CALLS = {"trunc", "floor", "ceil", "rint", "exp2", "sqrt", "sin", "cos"} | {
    "copysign",
    "nextafter",
}


@cache
def c_type(dtype: Any) -> str:
    """Return the C type of a NumPy type; a boolean is a word that is 0 or 1."""
    name = np.dtype(dtype).name
    return _TYPES.get(name, f"{name}_t")


@dataclass
class Trace:
    """The C function of one instruction.

    `parameters` are pairs of a C type and the argument in a call. `segments` are groups of
    statements: those of the wave at even places, those of lanes at odd ones.
    """

    parameters: list[tuple[str, str]] = field(default_factory=list)
    segments: list[list[str]] = field(default_factory=lambda: [[]])
    lane_values: dict[str, str] = field(default_factory=dict)
    names: int = 0

    def parameter(self, kind: str, argument: str) -> str:
        """Add a parameter and return its name."""
        self.parameters.append((kind, argument))
        return f"p{len(self.parameters) - 1}"

    def value(self, text: str, dtype: Any, *, of_lanes: bool) -> "Traced":
        """Name the value of a C expression without effects."""
        name = f"t{self.names}"
        self.names += 1
        if of_lanes:
            self.lane_values[name] = c_type(dtype)
            self.lane_statement(f"{name} = {text};")
        else:  # Before the lanes' open loop, which does not change what belongs to the wave.
            self.segments[(len(self.segments) - 1) & ~1].append(f"{c_type(dtype)} {name} = {text};")
        return Traced(self, name, np.dtype(dtype), of_lanes)

    def array(self, dtype: Any, count: int = 1) -> str:
        """Name an array of `count` numbers of each lane."""
        name = f"a{self.names}"
        self.names += 1
        self.segments[0].append(f"{c_type(dtype)} {name}[{count * LANES}];")
        return name

    def statement(self, text: str) -> None:
        """Add a statement of the wave after all others."""
        if len(self.segments) % 2 == 0:
            self.segments.append([])
        self.segments[-1].append(text)

    def lane_statement(self, text: str) -> None:
        """Add a statement of each lane after all others; `l` is the lane."""
        if len(self.segments) % 2:
            self.segments.append([])
        self.segments[-1].append(text)

    def end_loop(self) -> None:
        """Make what follows see the values of all lanes."""
        self.statement("")

    def of(self, value: Any, dtype: Any = None) -> "Traced":
        """Return a constant or value as a value, in this type if one is given."""
        if isinstance(value, Traced):
            return value if dtype is None else value.astype(dtype)
        constant = np.asarray(value, dtype)
        if constant.ndim and constant.size == 1:  # A constant of the instruction, not of its name.
            literal = _literal(constant.reshape(-1)[0])
            name = self.parameter(c_type(constant.dtype), literal)
            return Traced(self, name, constant.dtype, False)
        if constant.size == 1:
            return Traced(self, _literal(constant[()]), constant.dtype, False)
        numbers = np.broadcast_to(constant, (1, LANES)).reshape(-1)
        return self.value(f"{self.table(numbers)}[l]", constant.dtype, of_lanes=True)

    def table(self, numbers: np.ndarray) -> str:
        """Name a constant array."""
        name = f"k{self.names}"
        self.names += 1
        kind = numbers.dtype
        if kind.kind == "f":  # As bits, because a NaN is no constant in C.
            numbers = numbers.view(f"u{kind.itemsize}")
        end = "ull" if numbers.dtype.kind == "u" else "ll"
        text = ", ".join([f"{number:d}{end}" for number in numbers.tolist()])
        word = f"static const {c_type(numbers.dtype)} {name}[] = {{{text}}};"
        self.segments[0].append(word)
        if kind != numbers.dtype:
            self.segments[0].append(f"const {c_type(kind)} *{name}_ = (const void *){name};")
            name += "_"
        return name

    def body(self) -> str:
        """Return the statements, with the lanes' loops. Values of several loops become arrays."""
        declared, texts = [], []
        used = {name: set[int]() for name in self.lane_values}
        for place, segment in enumerate(self.segments):
            for name in re.findall(r"\bt\d+\b", " ".join(segment)):
                if name in used:
                    used[name].add(place)
        shared = {name for name, places in used.items() if len(places) > 1}
        for name in shared:
            declared.append(f"{self.lane_values[name]} {name}[{LANES}];")
        for place, segment in enumerate(self.segments):
            if place % 2 == 0:
                texts += [f"  {line}" for line in segment if line]
            elif segment:
                texts += _loop(segment, self.lane_values, shared)
        return "\n".join([*(f"  {line}" for line in declared), *texts])


def _loop(segment: Sequence[str], types: dict[str, str], shared: set[str]) -> list[str]:
    lines = ["  #pragma GCC ivdep", f"  for (int l = 0; l < {LANES}; l++) {{"]
    for line in segment:
        name = line.partition(" ")[0]
        begin = f"{types[name]} " if name in types and name not in shared else ""

        def indexed(found: re.Match[str]) -> str:
            return found[0] + "[l]" if found[0] in shared else found[0]

        lines.append("    " + begin + re.sub(r"\bt\d+\b(?!\[)", indexed, line))
    return [*lines, "  }"]


def _literal(value: Any) -> str:
    value = np.asarray(value)[()]
    if value.dtype == BOOL:
        return str(int(value))
    if value.dtype.kind == "f":
        bits = value.view(f"u{value.itemsize}")
        if np.isfinite(value):
            return f"({c_type(value.dtype)}){float(value).hex()}"
        return f"as_{value.dtype.name}_uint{8 * value.itemsize}({int(bits):#x}u)"
    return f"({c_type(value.dtype)}){int(value)}{'ull' if value.dtype.kind == 'u' else 'll'}"


def _kind(value: Any) -> Any:
    """Return the type as NumPy's rules of promotion take it: `int` and `float` adapt themselves."""
    if isinstance(value, Traced):
        return value.dtype
    return type(value) if type(value) in (int, float) else np.asarray(value).dtype


class Traced(NDArrayOperatorsMixin):
    """A value in C; NumPy's functions of it are traced."""

    def __init__(self, trace: Trace, name: str, dtype: Any, of_lanes: bool):
        self.trace, self.name, self.dtype, self.of_lanes = trace, name, np.dtype(dtype), of_lanes

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the value of one wave."""
        return 1, LANES if self.of_lanes else 1

    def __len__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        raise Fault("the translator cannot decide by a register's value")

    def any(self) -> bool:
        """Return True: what is only done for speed if a value needs it is done always."""
        return True

    def view(self, dtype: Any) -> "Traced":
        """Return the same bits in another type."""
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self
        if "f" not in (dtype.kind, self.dtype.kind):
            return self.astype(dtype)
        text = f"as_{dtype.name}_{self.dtype.name}({self.name})"
        return self.trace.value(text, dtype, of_lanes=self.of_lanes)

    def astype(self, dtype: Any) -> "Traced":
        """Convert as C does."""
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self
        test = "(%s != 0)" if dtype == BOOL else f"({c_type(dtype)})%s"
        return self.trace.value(test % self.name, dtype, of_lanes=self.of_lanes)

    def reshape(self, *shape: Any) -> "Traced":
        """Return itself: shapes are of the waves, and here is one."""
        return self

    copy = reshape

    def __getitem__(self, key: Any) -> "Traced":
        """Return itself for [:, None], else the values of other lanes: [:, lanes]."""
        _, lanes = key
        return self if lanes is None else self.from_lanes(lanes)

    def from_lanes(self, lanes: Any) -> "Traced":
        """Return what the given lanes have, which are a constant [64] or a value."""
        if not self.of_lanes:
            return self
        lanes = self.trace.of(lanes)
        self.trace.end_loop()
        text = f"{self.name}[({lanes.name})]"
        return self.trace.value(text, self.dtype, of_lanes=lanes.of_lanes)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, dtype: Any = None) -> Any:
        if method != "__call__":
            return NotImplemented
        kinds = (*map(_kind, inputs), *[None] * ufunc.nout)
        *takes, gives = ufunc.resolve_dtypes(kinds)[: ufunc.nin + 1]
        if dtype is not None:
            takes, gives = [np.dtype(dtype)] * ufunc.nin, np.dtype(dtype)
        name = ufunc.__name__
        if name == "frexp":
            x = self.trace.of(inputs[0], takes[0])
            return tuple(
                self.trace.value(f"{part}_({x.name})", kind, of_lanes=x.of_lanes)
                for part, kind in (("mantissa", takes[0]), ("exponent", np.int32))
            )
        values = [self.trace.of(i, kind) for i, kind in zip(inputs, takes, strict=True)]
        return self.trace.value(
            _expression(name, values), gives, of_lanes=any(v.of_lanes for v in values)
        )

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in _FUNCTIONS:
            raise Fault(f"the translator has no C for {function.__name__}")
        return _FUNCTIONS[function](self.trace, *args, **kwargs)

    def primitive(self, function: Any, arguments: Sequence[Any]) -> "Traced":
        """Call the runtime's C function of float32 instead of tracing an operation."""
        if function.__name__ == "look_up":
            table, index = arguments
            text = f"{self.trace.table(table)}[{index.name}]"
            return self.trace.value(text, table.dtype, of_lanes=index.of_lanes)
        values = [self.trace.of(a) for a in arguments]
        if any(v.dtype != np.float32 for v in values):
            return function(*arguments)
        name = function.__name__
        text = f"{name}_float32({', '.join(v.name for v in values)})"
        return self.trace.value(text, PRIMITIVES[name], of_lanes=any(v.of_lanes for v in values))


PRIMITIVES = {"fma": np.float32, "to_bfloat16": np.uint32}
"""Functions with a C form of their own, for speed, and their results' types."""


def _expression(name: str, values: Sequence[Traced]) -> str:
    names = [v.name for v in values]
    if name in _INFIX:
        return f"({names[0]} {_INFIX[name]} {names[1]})"
    if name in ("invert", "logical_not"):
        return f"!{names[0]}" if values[0].dtype == BOOL else f"~{names[0]}"
    if name in _FORMS:
        return _FORMS[name].format(*names)
    if name in _CALLS:
        return f"{name}({', '.join(names)})"
    raise Fault(f"the translator has no C for {name}")


def _common(*values: Any) -> np.dtype:
    return np.result_type(*(v.dtype if isinstance(v, Traced) else v for v in values))


def _where(trace: Trace, condition: Any, yes: Any, no: Any) -> Traced:
    dtype = _common(yes, no)
    values = [trace.of(condition), trace.of(yes, dtype), trace.of(no, dtype)]
    text = "({} ? {} : {})".format(*(v.name for v in values))
    return trace.value(text, dtype, of_lanes=any(v.of_lanes for v in values))


def _select(trace: Trace, conditions: Any, choices: Any, default: Any = 0) -> Any:
    total = trace.of(default, _common(*choices, default))
    for condition, choice in reversed(list(zip(conditions, choices, strict=True))):
        total = _where(trace, condition, trace.of(choice, total.dtype), total)
    return total


def _clip(trace: Trace, x: Any, low: Any, high: Any) -> Any:
    kind = x.dtype
    x, low, high = (trace.of(v, kind) for v in (x, low, high))
    text = "({0} > {1} ? {0} : {1})"
    above = trace.value(text.format(x.name, low.name), kind, of_lanes=x.of_lanes)
    text = "({0} < {1} ? {0} : {1})"
    return trace.value(text.format(above.name, high.name), kind, of_lanes=x.of_lanes)


def _searched(trace: Trace, table: np.ndarray, x: Traced, side: str) -> Traced:
    name = trace.table(table)
    text = f"searched({name}, {len(table)}, {x.name})"
    return trace.value(text, np.int64, of_lanes=x.of_lanes)


_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.where: _where,
    np.select: _select,
    np.clip: _clip,
    np.searchsorted: _searched,
    np.broadcast_arrays: lambda trace, *arrays: arrays,
    np.broadcast_to: lambda trace, array, shape: array,
    np.full_like: lambda trace, like, value: trace.of(value, like.dtype),
    np.take_along_axis: lambda trace, values, lanes, axis: values.from_lanes(lanes),
}
