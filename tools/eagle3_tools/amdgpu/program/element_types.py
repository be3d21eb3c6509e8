"""Element types by the numbers that XLA's PrimitiveType gives them ("xla/xla_data.proto")."""

import ml_dtypes
import numpy as np

from eagle3_tools.amdgpu.program.protobuf import Message

_DTYPES = {
    1: np.bool_,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.uint8,
    7: np.uint16,
    8: np.uint32,
    9: np.uint64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    16: ml_dtypes.bfloat16,
    19: ml_dtypes.float8_e5m2,
    20: ml_dtypes.float8_e4m3fn,
    24: ml_dtypes.float8_e5m2fnuz,
    25: ml_dtypes.float8_e4m3fnuz,
    33: ml_dtypes.float8_e8m0fnu,
}
_VARINTS = {1: 2, 4: 4, 5: 5, 8: 6, 9: 7}
_RAW = {11: 8, 12: 9, 2: 15, 6: 3, 10: 11, 16: 13, 7: 16, 3: 17, 19: 19, 20: 20, 25: 25, 24: 24}
"""Element type -> field of a LiteralProto: numbers one by one, or bytes as they lie in memory."""


def dtype_of(number: int) -> np.dtype:
    """Raises ValueError for a type that no array in memory has here, as those of four bits."""
    if number not in _DTYPES:
        raise ValueError(f"element type {number} of XLA's PrimitiveType is not known")
    return np.dtype(_DTYPES[number])


def literal(proto: Message) -> np.ndarray:
    """The elements of a LiteralProto in the order in which they lie in memory, flat."""
    number = proto.one(1).number(2)
    dtype = dtype_of(number)
    if number in _VARINTS:
        elements = np.array(proto.numbers(_VARINTS[number]), np.uint64)
        return elements.astype(dtype)
    return np.frombuffer(proto.data(_RAW[number]), dtype)
