"""Convert plain text to base ids and back by `tiktoken` or `tokenizers`, without special tokens."""

import json
from dataclasses import dataclass
from pathlib import Path

import tiktoken
import tokenizers

from convert.files.safetensors_files import read_json
from convert.text.tiktoken_file import SPLIT_PATTERN, SpecialToken, read_ranks
from convert.text.tokenizer_json import bytes_of
from eagle3_jax.config.published import brief


@dataclass(frozen=True)
class TiktokenCodec:
    """Kimi's ranks, run by tiktoken."""

    encoding: tiktoken.Encoding
    vocab_size: int

    @classmethod
    def open(cls, path: Path) -> "TiktokenCodec":
        """Read a `tiktoken.model`; ValueError if it is damaged."""
        ranks = read_ranks(path)
        encoding = tiktoken.Encoding(
            "kimi", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={}
        )
        return cls(encoding, len(ranks))

    def encode(self, text: str) -> list[int]:
        return self.encoding.encode_ordinary(text)

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            return b""
        return self.encoding.decode_single_token_bytes(token_id)


@dataclass(frozen=True)
class JsonCodec:
    """The byte-level model of a tokenizer.json, run by tokenizers."""

    model: tokenizers.Tokenizer
    vocab_size: int

    @classmethod
    def open(cls, path: Path) -> "tuple[JsonCodec, tuple[SpecialToken, ...]]":
        """Read a byte-level tokenizer.json and its added tokens; ValueError if it is unusable."""
        content = read_json(path)
        if not content:
            raise ValueError(f"{path} holds no token")
        if "ByteLevel" not in json.dumps(content.get("decoder")):
            raise ValueError(f"{path}: only byte-level tokenizers can be read")
        try:
            special = tuple(
                SpecialToken(token["id"], token["content"], token["special"])
                for token in content.get("added_tokens") or ()
            )
            # Its added tokens and templates would turn special strings in plain text into ids.
            bare = {**content, "added_tokens": [], "post_processor": None}
            model = tokenizers.Tokenizer.from_str(json.dumps(bare))
        except Exception as error:  # tokenizers raises no narrower type.
            raise ValueError(f"{path} is damaged: {brief(str(error))}") from error
        if not (vocab := model.get_vocab()):
            raise ValueError(f"{path} holds no token")
        return cls(model, max(vocab.values()) + 1), special

    def encode(self, text: str) -> list[int]:
        # Unlike `encode`, this releases the GIL.
        return self.model.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def token_bytes(self, token_id: int) -> bytes:
        token = self.model.id_to_token(token_id) if token_id >= 0 else None
        return b"" if token is None else bytes_of(token)


Codec = TiktokenCodec | JsonCodec
"""A byte-level vocabulary for plain text."""
