"""Tokenizers of published checkpoints, read as data: no remote code, no download.

A directory with tokenizer.json runs through `tokenizers`, one with tiktoken.model through
`tiktoken`; both behave the same. Special tokens are recognised only where the caller says so.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError

from convert.chat_template import MARK, break_specials, load_template, read_template, sound
from convert.codecs import Codec, JsonCodec, TiktokenCodec
from convert.tiktoken_file import (
    RANKS_FILE,
    SpecialToken,
    read_eos_token_ids,
    read_named_tokens,
    read_special_tokens,
)
from convert.tokenizer_json import TOKENIZER_FILE

BUGS_OF_TEMPLATES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What expressions in a template may raise besides jinja's own errors."""
MAX_CHUNK_CHARS = 400_000
MAX_RUN_CHARS = 25_000


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back, and chat messages to prompts."""

    codec: Codec = field(repr=False)
    special_tokens: tuple[SpecialToken, ...] = field(repr=False)
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    named_tokens: dict[str, str]
    template: Template | None = field(repr=False)
    template_text: str | None = field(default=None, repr=False)

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Encodes text; with `add_special`, special strings in it become their ids."""
        return self._encode_marked(text, "") if add_special else self._encode_plain(text)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Decodes ids; incomplete UTF-8 becomes U+FFFD, ids beyond the vocabulary vanish."""
        return b"".join(self.token_bytes(i, skip_special) for i in ids).decode(errors="replace")

    def token_bytes(self, token_id: int, skip_special: bool = False) -> bytes:
        """The bytes of one token; none beyond the vocabulary and for a skipped special token."""
        token = self._special_by_id.get(token_id)
        if token is None:
            return self.codec.token_bytes(token_id)
        return b"" if skip_special and token.hidden else token.text.encode()

    def apply_chat_template(
        self, messages: Sequence[Any], add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """Renders the checkpoint's template; ValueError when it has none or it refuses."""
        if self.template is None:
            raise ValueError("this checkpoint has no chat template; send a plain prompt instead")
        values = {"tools": None, **self.named_tokens, **kwargs}
        try:
            return self.template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **values
            )
        except (TemplateError, *BUGS_OF_TEMPLATES) as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error

    def encode_chat(self, messages: Sequence[Any], **kwargs: Any) -> list[int]:
        """Renders and encodes: the template's special strings become ids, the messages' do not.

        Messages and options are JSON values; options are those of `apply_chat_template`.
        """
        texts = list(self._special_by_text)
        broken, options = break_specials([messages, kwargs], texts)
        return self._encode_marked(self.apply_chat_template(broken, **options), MARK)

    def _encode_marked(self, text: str, mark: str) -> list[int]:
        """Encodes special strings as ids and takes the mark out of what lies between them."""
        ids: list[int] = []
        for piece in self._special_pattern.split(text):
            token_id = self._special_by_text.get(piece)
            plain = piece.replace(mark, "") if mark else piece
            ids += self._encode_plain(plain) if token_id is None else [token_id]
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        return [i for chunk in split_long_text(sound(text)) for i in self.codec.encode(chunk)]

    @cached_property
    def _special_by_id(self) -> dict[int, SpecialToken]:
        return {token.token_id: token for token in self.special_tokens}

    @cached_property
    def _special_by_text(self) -> dict[str, int]:
        return {token.text: token.token_id for token in self.special_tokens}

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._special_by_text, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Loads a checkpoint's tokenizer and chat template.

    Raises FileNotFoundError without tokenizer.json and tiktoken.model, ValueError if damaged.
    """
    directory = Path(directory)
    if (directory / TOKENIZER_FILE).is_file():
        codec, special = JsonCodec.open(directory / TOKENIZER_FILE)
    elif (directory / RANKS_FILE).is_file():
        codec = TiktokenCodec.open(directory / RANKS_FILE)
        special = read_special_tokens(directory, codec.vocab_size)
    else:
        raise FileNotFoundError(f"{directory} holds neither {TOKENIZER_FILE} nor {RANKS_FILE}")
    by_text = {token.text: token.token_id for token in special}
    return Tokenizer(
        codec=codec,
        special_tokens=special,
        eos_token_ids=read_eos_token_ids(directory, by_text),
        vocab_size=max(codec.vocab_size, *(token.token_id + 1 for token in special), 0),
        named_tokens=read_named_tokens(directory),
        template=load_template(directory),
        template_text=read_template(directory),
    )


def split_long_text(text: str) -> Iterator[str]:
    """Cuts text where Kimi's own tokenizer does, so that ids agree and time stays linear.

    Every 400,000 characters, and inside them after 25,000 that are all space or all not.
    """
    for start in range(0, len(text), MAX_CHUNK_CHARS):
        yield from _split_runs(text[start : start + MAX_CHUNK_CHARS])


def _split_runs(text: str) -> Iterator[str]:
    start, run, run_is_space = 0, 0, False
    for position, char in enumerate(text):
        if char.isspace() != run_is_space:
            run, run_is_space = 0, char.isspace()
        elif run == MAX_RUN_CHARS:
            yield text[start:position]
            start, run = position, 0
        run += 1
    yield text[start:]
