"""Four-bit values in bytes and words: the orders in use, and the one we keep.

In memory a byte holds element 2k in its low nibble and 2k+1 in its high one. On a little-endian
machine that is a linear int32 word read as bytes, so the linear order needs no work at all. AWQ's
order, which Quark writes for progressive INT4 and for in-memory exports, shuffles each word.
"""

from typing import Literal

import numpy as np

Int4Order = Literal["linear", "awq"]

_AWQ_NIBBLE_OF_ELEMENT = (0, 4, 1, 5, 2, 6, 3, 7)
_OFFSET_BINARY = np.uint8(0x88)


def pack_pairs(values: np.ndarray) -> np.ndarray:
    """Integers [..., n] of which the low four bits count -> uint8 [..., n // 2], low first."""
    nibbles = values.astype(np.uint8) & 0xF
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)


def unpack_pairs(pairs: np.ndarray) -> np.ndarray:
    """uint8 [..., n] -> uint8 nibbles 0..15 [..., 2n]; the inverse of `pack_pairs`."""
    return np.stack([pairs & 0xF, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], -1)


def signed(nibbles: np.ndarray) -> np.ndarray:
    """Two's complement: nibbles 0..15 -> int8 -8..7."""
    return ((nibbles.astype(np.int8) ^ 8) - 8).astype(np.int8)


def words_to_pairs(words: np.ndarray, order: Int4Order) -> np.ndarray:
    """int32 [..., n] of eight nibbles each -> uint8 [..., 4n], low nibble first."""
    pairs = np.ascontiguousarray(words).view(np.uint8)
    if order == "linear":
        return pairs
    elements = unpack_pairs(pairs).reshape(*pairs.shape[:-1], -1, 8)[..., _AWQ_NIBBLE_OF_ELEMENT]
    return pack_pairs(elements.reshape(*pairs.shape[:-1], -1))


def pairs_to_words(pairs: np.ndarray) -> np.ndarray:
    """uint8 [..., 4n], low nibble first -> int32 [..., n] in the linear order."""
    return np.ascontiguousarray(pairs).view(np.int32)


def flip_offset_binary(pairs: np.ndarray) -> np.ndarray:
    """Offset binary (value + 8) to two's complement and back."""
    return pairs ^ _OFFSET_BINARY
