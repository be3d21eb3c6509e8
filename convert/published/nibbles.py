"""Convert four-bit values between the nibble orders of files and our own.

In memory a byte holds element 2k in its low nibble and 2k+1 in its high nibble. On a little-endian
machine this equals a linear int32 word read as bytes, so the linear order needs no conversion.
AWQ's order, which Quark writes for progressive INT4 and in-memory exports, shuffles each word.
"""

from typing import Literal

import numpy as np

Int4Order = Literal["linear", "awq"]

_AWQ_NIBBLE_OF_ELEMENT = (0, 4, 1, 5, 2, 6, 3, 7)
_OFFSET_BINARY = np.uint8(0x88)


def pack_pairs(values: np.ndarray) -> np.ndarray:
    """Pack the low four bits of integers [..., n] into uint8 [..., n // 2], low nibble first."""
    nibbles = values.astype(np.uint8) & 0xF
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)


def unpack_pairs(pairs: np.ndarray) -> np.ndarray:
    """Unpack uint8 [..., n] into uint8 nibbles 0..15 [..., 2n]; inverse of `pack_pairs`."""
    return np.stack([pairs & 0xF, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], -1)


def words_to_pairs(words: np.ndarray, order: Int4Order) -> np.ndarray:
    """Convert int32 [..., n] of eight nibbles each to uint8 [..., 4n], low nibble first."""
    pairs = np.ascontiguousarray(words).view(np.uint8)
    if order == "linear":
        return pairs
    elements = unpack_pairs(pairs).reshape(*pairs.shape[:-1], -1, 8)[..., _AWQ_NIBBLE_OF_ELEMENT]
    return pack_pairs(elements.reshape(*pairs.shape[:-1], -1))


def pairs_to_words(pairs: np.ndarray) -> np.ndarray:
    """Convert uint8 [..., 4n], low nibble first, to int32 [..., n] in linear order."""
    return np.ascontiguousarray(pairs).view(np.int32)


def flip_offset_binary(pairs: np.ndarray) -> np.ndarray:
    """Convert offset binary (value + 8) to two's complement, or back."""
    return pairs ^ _OFFSET_BINARY
