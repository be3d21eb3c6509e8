"""Write tokenizer.json from Kimi's tiktoken files, so that plain AutoTokenizer loads them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convert.text.tiktoken_file import (
    RANKS_FILE,
    SPLIT_PATTERN,
    SpecialToken,
    read_ranks,
    read_special_tokens,
)
from eagle3_jax.replace_file import replaced

TOKENIZER_FILE = "tokenizer.json"


def write_tokenizer_json(directory: str | Path) -> Path:
    """Write a tokenizer.json that encodes and decodes like the directory's tiktoken.model."""
    directory = Path(directory)
    ranks = read_ranks(directory / RANKS_FILE)
    content = tokenizer_json(ranks, read_special_tokens(directory, len(ranks)))
    path = directory / TOKENIZER_FILE
    with replaced(path) as file:
        file.write(json.dumps(content, ensure_ascii=False, indent=1).encode())
    return path


def tokenizer_json(ranks: Mapping[bytes, int], special: tuple[SpecialToken, ...]) -> dict[str, Any]:
    """Return the file's content: byte-level BPE whose merges have tiktoken's priorities."""
    split = {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token) for token in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{**split, "invert": False}, {**byte_level, "trim_offsets": True}],
        },
        "post_processor": None,
        "decoder": {**byte_level, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # tiktoken emits a piece that is a token without merging, reachable by merges or not.
            "ignore_merges": True,
            "vocab": {_printable(token): rank for token, rank in ranks.items()},
            "merges": _merges(ranks),
        },
    }


def bytes_of(printable: str) -> bytes:
    """Return the bytes of a byte-level token's printable form."""
    return bytes(_BYTE_OF_CHAR[char] for char in printable)


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """Return every split of a token into two tokens: tiktoken joins neighbours that form one."""
    return [
        (_printable(token[:cut]), _printable(token[cut:]))
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]


def _added_token(token: SpecialToken) -> dict[str, Any]:
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token.token_id, "content": token.text, **off, "special": token.hidden}


def _printable(token: bytes) -> str:
    return "".join(_CHAR_OF_BYTE[byte] for byte in token)


def _byte_level_alphabet() -> dict[int, str]:
    """Return GPT-2's alphabet: printable Latin-1 is itself, other bytes are U+0100 and above."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(0x100 + i) for i, byte in enumerate(others)},
    }


_CHAR_OF_BYTE = _byte_level_alphabet()
_BYTE_OF_CHAR = {char: byte for byte, char in _CHAR_OF_BYTE.items()}
