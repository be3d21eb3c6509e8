"""Read Kimi's tokenizer files as data: ranks, special tokens and the published split pattern.

`tiktoken.model` holds one base64 token and its rank a line. `tokenizer_config.json` names special
tokens by id. Up to 256 ids after the ranks that it does not name are `<|reserved_token_{id}|>`.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.files.safetensors_files import read_json
from eagle3_jax.config.published import brief

RANKS_FILE = "tiktoken.model"
CONFIG_FILE = "tokenizer_config.json"
NUM_RESERVED = 256

_WORD_START = r"[^\r\n\p{L}\p{N}]?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_ENGLISH_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        _WORD_START + _UPPER + "*" + _LOWER + "+" + _ENGLISH_SUFFIX,
        _WORD_START + _UPPER + "+" + _LOWER + "*" + _ENGLISH_SUFFIX,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Kimi's pre-tokenizer in Rust regex syntax, where `&&` intersects character classes."""


@dataclass(frozen=True)
class SpecialToken:
    """A token outside the ranks; decoding omits `hidden` ones."""

    token_id: int
    text: str
    hidden: bool = True


def read_ranks(path: Path) -> dict[bytes, int]:
    """Read tiktoken's ranks; ValueError for a line that is not `base64 rank` or an empty file."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: expected 'base64 rank', got {line!r}"
            ) from error
    if not ranks:
        raise ValueError(f"{path} holds no token")
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ValueError(f"{path}: ranks must be 0..{len(ranks) - 1}, each once")
    return ranks


def read_special_tokens(directory: Path, num_base: int) -> tuple[SpecialToken, ...]:
    """Return named special tokens and reserved fillers within the model's vocabulary, by id."""
    path = directory / CONFIG_FILE
    decoder = _optional_json(path).get("added_tokens_decoder", {})
    if not isinstance(decoder, dict):
        raise ValueError(f"{path}: added_tokens_decoder must be an object; got {brief(decoder)}")
    named = dict(_named(path, i, entry) for i, entry in decoder.items())
    limit = num_base + NUM_RESERVED
    limit = min(limit, model_vocab_size(directory) or limit)
    fillers = {i: SpecialToken(i, f"<|reserved_token_{i}|>") for i in range(num_base, limit)}
    return tuple(token for _, token in sorted({**fillers, **named}.items()))


def _named(path: Path, token_id: str, entry: Any) -> tuple[int, SpecialToken]:
    content = entry.get("content") if isinstance(entry, dict) else None
    if not token_id.isdecimal() or not isinstance(content, str):
        expected = "must map ids to objects with a text `content`"
        given = brief({token_id: entry})
        raise ValueError(f"{path}: added_tokens_decoder {expected}; got {given}")
    return int(token_id), SpecialToken(int(token_id), content, entry.get("special", True))


def model_vocab_size(directory: Path) -> int | None:
    """Return `vocab_size` of the model in the same directory, if there is one."""
    path = directory / "config.json"
    config = _optional_json(path)
    inner = config.get("text_config") or config
    size = inner.get("vocab_size") if isinstance(inner, dict) else inner
    if size is not None and type(size) is not int:
        raise ValueError(f"{path}: vocab_size must be an integer; got {brief(size)}")
    return size


def read_eos_token_ids(directory: Path, special: Mapping[str, int]) -> tuple[int, ...]:
    """Return the ids that end a turn: generation_config.json's, the eos token and `<|im_end|>`."""
    path = directory / "generation_config.json"
    generation = _optional_json(path).get("eos_token_id", [])
    listed = generation if isinstance(generation, list) else [generation]
    if not all(type(token_id) is int for token_id in listed):
        raise ValueError(
            f"{path}: eos_token_id must be an id or a list of ids; got {brief(generation)}"
        )
    ids = set(listed)
    texts = (read_named_tokens(directory).get("eos_token", ""), "<|im_end|>")
    return tuple(sorted(ids | {special[text] for text in texts if text in special}))


def read_named_tokens(directory: Path) -> dict[str, str]:
    """Return bos_token, eos_token etc., which templates may use, from plain or `content` values."""
    config = _optional_json(directory / CONFIG_FILE)
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
