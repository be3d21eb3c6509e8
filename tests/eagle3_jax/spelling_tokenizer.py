"""A tokenizer of 96 tokens that can spell JSON, for grammars over the tiny pair."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiny import VOCAB

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-_{}[]\",:. '!?+*/()=<>"
MERGED = ('{"', '":', '","', '"}', '":"', "true", "false", "null", "ab", "the", "in", "er", "00")
PIECES = (*LETTERS, *MERGED)
EOS = VOCAB - 1


@dataclass(frozen=True)
class Special:
    """A token that text can't spell."""

    token_id: int


class SpellingTokenizer:
    """Token i stands for PIECES[i], the last one is EOS, those between stand for nothing."""

    special_tokens = (Special(EOS),)

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == EOS:
            return b"<eos>"
        return PIECES[token_id].encode() if token_id < len(PIECES) else b""

    def encode(self, text: str) -> list[int]:
        """The longest piece first, from left to right."""
        ids: list[int] = []
        while text:
            piece = max((p for p in PIECES if text.startswith(p)), key=len)
            ids.append(PIECES.index(piece))
            text = text[len(piece) :]
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        kept = [i for i in ids if i != EOS or not skip_special]
        return b"".join(self.token_bytes(i) for i in kept).decode()
