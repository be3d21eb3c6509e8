"""Reads the thunks of a serialised executable: XLA's "backends/gpu/runtime/thunk.proto".

The numbers are those of the fields in ThunkProto and in the message of each kind of thunk.
"""

import struct
from collections.abc import Callable
from dataclasses import replace

from eagle3_tools.amdgpu.program.element_types import dtype_of
from eagle3_tools.amdgpu.program.executable import (
    Conditional,
    Copy,
    Dimensions,
    Fill,
    KernelLaunch,
    LibraryProduct,
    Matrix,
    Sequence,
    Slice,
    Thunk,
    Unknown,
    While,
)
from eagle3_tools.amdgpu.program.protobuf import Message

_INFO, _CUSTOM_CALL = 1, 30
_COLUMN_MAJOR = 2
_EPILOGUE, _BIAS = 2, 9
_OF_BIAS, _OF_BIAS_AND_GELU = 2, 8
"""Epilogues."""
_SCALES_AND_MORE = {
    **{10: "auxiliary", 11: "scale of a", 12: "scale of b", 13: "scale of c"},
    **{14: "scale of d", 15: "largest of d", 19: "groups"},
}


def read_thunks(thunks: list[Message]) -> tuple[Thunk, ...]:
    """Of a repeated field of ThunkProto."""
    return tuple(map(_thunk, thunks))


def _thunk(proto: Message) -> Thunk:
    name = proto.one(_INFO).text(1)
    kind = next((field for field in proto.fields if field != _INFO), 0)
    if kind in _READERS:
        return _READERS[kind](name, proto.one(kind))
    if kind == _CUSTOM_CALL:
        return Unknown(name, f"custom call {proto.one(kind).text(1)}")
    return Unknown(name, f"field {kind} of XLA's ThunkProto")


def _sequence(name: str, proto: Message) -> Thunk:
    return Sequence(name, read_thunks(proto.all(1)))


def _async_start(name: str, proto: Message) -> Thunk:
    return Sequence(name, read_thunks(proto.one(3).all(1)))


def _async_done(name: str, proto: Message) -> Thunk:
    return Sequence(name, ())


def _copy(name: str, proto: Message) -> Thunk:
    return Copy(name, _slice(proto.one(1, 1)), _slice(proto.one(2, 1)))


def _device_copy(name: str, proto: Message) -> Thunk:
    return _copy(name, proto.one(1))


def _conditional(name: str, proto: Message) -> Thunk:
    branches = tuple(read_thunks(branch.all(1)) for branch in proto.all(2))
    return Conditional(name, _slice(proto.one(1, 1)), branches)


def _while(name: str, proto: Message) -> Thunk:
    condition, body = (read_thunks(proto.one(field).all(1)) for field in (2, 3))
    trip_count = proto.number(4) if 4 in proto else None
    return While(name, _slice(proto.one(1)), condition, body, trip_count)


def _zero(name: str, proto: Message) -> Thunk:
    return Fill(name, _slice(proto.one(1, 1)), 0)


def _memset(name: str, proto: Message) -> Thunk:
    return Fill(name, _slice(proto.one(1)), proto.number(2))


def _kernel(name: str, proto: Message) -> Thunk:
    kernel = proto.one(3)
    loaded = kernel.one(2)
    packed = [[r.number(2) for r in a.all(1)] for a in loaded.one(5).all(1)]
    arguments = tuple(_slice(a.one(1)) for a in proto.all(1))
    if packed != [[index] for index in range(len(arguments))]:
        raise ValueError(f"{name}: expected addresses of all arguments in order, got {packed}")
    return KernelLaunch(
        name,
        kernel=loaded.text(4),
        code=loaded.one(2).data(1),
        arguments=arguments,
        written=tuple(map(bool, proto.numbers(2))),
        zeroed=proto.numbers(5),
        grid=_dimensions(kernel.one(3, 2)),
        threads=_dimensions(kernel.one(4, 1)),
        dynamic_lds=kernel.number(6),
    )


def _blas_lt(name: str, proto: Message) -> Thunk:
    unknown = [said for field, said in _SCALES_AND_MORE.items() if field in proto]
    epilogue = proto.number(_EPILOGUE)
    if epilogue not in (0, _OF_BIAS, _OF_BIAS_AND_GELU):
        unknown.append(f"epilogue {epilogue}")
    slices = [_slice(proto.one(field, 1)) for field in (5, 6, 7, 8)]
    product = _product(name, proto.one(1), slices, ", ".join(unknown))
    if not epilogue:
        return product
    where, dtype = _slice(proto.one(_BIAS, 1)), dtype_of(proto.one(_BIAS, 2).number(2))
    columns = where.size // dtype.itemsize
    bias = Matrix(where, dtype, (1, 1, columns), (0, 0, 1))
    return replace(product, bias=bias, gelu=epilogue == _OF_BIAS_AND_GELU)


def _blas(name: str, proto: Message) -> Thunk:
    slices = [_slice(proto.one(field)) for field in (2, 3, 4, 4)]
    return _product(name, proto.one(1), slices, "")


def _product(name: str, config: Message, slices: list[Slice], unknown: str) -> LibraryProduct:
    left, right, added, result = (
        _matrix(config.one(field), where) for field, where in enumerate(slices, start=1)
    )
    alpha, beta = (_double(config.data(field)) for field in (5, 7))
    return LibraryProduct(name, left, right, added, result, alpha, beta, unknown)


def _matrix(layout: Message, where: Slice) -> Matrix:
    """Batches of matrices; leading: what lies between rows, or columns in column-major order."""
    rows, columns, batches, leading = (layout.number(field) for field in (2, 3, 4, 5))
    by_column = layout.number(1) == _COLUMN_MAJOR
    stride = (layout.number(6), 1, leading) if by_column else (layout.number(6), leading, 1)
    return Matrix(where, dtype_of(layout.number(8)), (batches, rows, columns), stride)


def _slice(proto: Message) -> Slice:
    return Slice(buffer=proto.number(3), offset=proto.number(1), size=proto.number(2))


def _dimensions(proto: Message) -> Dimensions:
    return proto.number(1), proto.number(2), proto.number(3)


def _double(data: bytes) -> float:
    return struct.unpack("<d", data)[0] if data else 0.0


_READERS: dict[int, Callable[[str, Message], Thunk]] = {
    2: _sequence,
    3: _copy,
    6: _conditional,
    7: _while,
    9: _blas,
    13: _device_copy,
    19: _zero,
    22: _blas_lt,
    28: _memset,
    36: _kernel,
    57: _async_start,
    58: _async_done,
}
