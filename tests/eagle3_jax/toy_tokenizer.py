"""A tokenizer of byte strings, with everything that makes streaming text hard."""

from collections.abc import Sequence

PIECES = (
    *(b"a", b"b", b"ab", b"ba", b"c", b" ", b"", b"bab", b"aa"),
    *(b"\xc3", b"\xa9", b"\xe4\xb8", b"\xad", b"\xe4", b"\xb8\xad", "é".encode(), "中a".encode()),
)
"""Overlapping letters, an empty piece, and characters split over two or three tokens."""


class ToyTokenizer:
    """Token i stands for PIECES[i], counted around."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return b"".join(PIECES[i % len(PIECES)] for i in ids).decode("utf-8", errors="replace")
