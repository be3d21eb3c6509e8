"""Tokenizers of published checkpoints, read as data without remote code.

A directory with tokenizer.json uses `tokenizers`, one with tiktoken.model uses `tiktoken`; both
behave the same. Special tokens are recognised only where the caller asks for it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Template

from convert.files.safetensors_files import read_json
from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import TOKENIZER_ALONE
from convert.hub.source import Source
from convert.text.chat_template import MARK, break_specials, compile_template, render, sound
from convert.text.codecs import Codec, JsonCodec, TiktokenCodec
from convert.text.special_texts import SpecialTexts
from convert.text.tiktoken_file import (
    CONFIG_FILE,
    RANKS_FILE,
    SpecialToken,
    read_eos_token_ids,
    read_named_tokens,
    read_special_tokens,
)
from convert.text.tokenizer_json import TOKENIZER_FILE
from convert.text.typescript_tools import with_tool_declarations
from eagle3_jax.config.published import brief

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_KEY = "chat_template"
FILES_WITH_TEMPLATE = (CONFIG_FILE, "chat_template.json")
DEFAULT_TEMPLATE = "default"
"""Name of the template that is used if a file has several."""
MAX_CHUNK_CHARS = 400_000
MAX_RUN_CHARS = 25_000


class TooManyTokens(ValueError):
    """A text has more than `most` tokens."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the text has more than {most} tokens")
        self.most = most


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer: text to token ids and back, and chat messages to prompts."""

    codec: Codec = field(repr=False)
    special_tokens: tuple[SpecialToken, ...] = field(repr=False)
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    named_tokens: dict[str, str]
    template: Template | None = field(repr=False)
    template_text: str | None = field(default=None, repr=False)
    render_apart: Callable[[Sequence[Any], dict[str, Any]], str] | None = field(
        default=None, repr=False
    )
    """A function that breaks the special texts in messages and options and renders them, in another
    process."""

    def encode(self, text: str, add_special: bool = False, most: int | None = None) -> list[int]:
        """Encode text; with `add_special`, special strings in it become their ids.

        Raises TooManyTokens above `most` ids, if possible from the text's length alone.
        """
        return self._encode_marked(sound(text), add_special, most)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Decode ids; incomplete UTF-8 becomes U+FFFD, ids beyond the vocabulary are omitted."""
        return b"".join(self.token_bytes(i, skip_special) for i in ids).decode(errors="replace")

    def token_bytes(self, token_id: int, skip_special: bool = False) -> bytes:
        """Return a token's bytes; none beyond the vocabulary or for a skipped special token."""
        token = self._special_by_id.get(token_id)
        if token is None:
            return self.codec.token_bytes(token_id)
        return b"" if skip_special and token.hidden else token.text.encode()

    def apply_chat_template(
        self, messages: Sequence[Any], add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """Render the checkpoint's template; ValueError if there is none or it fails."""
        options = {"add_generation_prompt": add_generation_prompt, **kwargs}
        return self._render(messages, with_tool_declarations(options, self.template_text or ""))

    def encode_chat(
        self, messages: Sequence[Any], most: int | None = None, /, **kwargs: Any
    ) -> list[int]:
        """Render and encode a chat; special strings become ids in the template, not in messages.

        Messages and options are JSON values. Options are those of `apply_chat_template`; `most` and
        its error are those of `encode`.
        """
        if self.render_apart is not None:
            return self._encode_marked(self.render_apart(messages, kwargs), True, most)
        options = with_tool_declarations(kwargs, self.template_text or "")
        text = self._render(*break_specials([messages, options], self._special_texts))
        return self._encode_marked(text, True, most)

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token."""
        return max(len(self.token_bytes(token_id)) for token_id in range(self.vocab_size))

    def _render(self, messages: Sequence[Any], options: dict[str, Any]) -> str:
        if self.template is None:
            raise ValueError("this checkpoint has no chat template; send a plain prompt instead")
        defaults = {"tools": None, "add_generation_prompt": True, **self.named_tokens}
        return render(self.template, messages, **{**defaults, **options})

    def _encode_marked(self, text: str, add_special: bool, most: int | None) -> list[int]:
        size = len(text.replace(MARK, "").encode(errors="replace"))
        if most is not None and size > most * self.longest_token:
            raise TooManyTokens(most)
        ids: list[int] = []
        for piece in self._pieces(text) if add_special else self._plain(text):
            ids += piece
            if most is not None and len(ids) > most:
                raise TooManyTokens(most)
        return ids

    def _pieces(self, text: str) -> Iterator[Sequence[int]]:
        """Yield the ids of special texts and of the texts between them."""
        for piece in self._special_texts.split(text):
            token_id = self._special_by_text.get(piece)
            if token_id is None:
                yield from self._plain(piece)
            else:
                yield (token_id,)

    def _plain(self, text: str) -> Iterator[Sequence[int]]:
        return map(self.codec.encode, split_long_text(sound(text.replace(MARK, ""))))

    @cached_property
    def _special_by_id(self) -> dict[int, SpecialToken]:
        return {token.token_id: token for token in self.special_tokens}

    @cached_property
    def _special_by_text(self) -> dict[str, int]:
        return {token.text: token.token_id for token in self.special_tokens}

    @cached_property
    def _special_texts(self) -> SpecialTexts:
        return SpecialTexts(list(self._special_by_text))


def load_tokenizer(path: str | Path | Source) -> Tokenizer:
    """Load a checkpoint's tokenizer and chat template from a directory or by hub id.

    Raises FileNotFoundError without tokenizer.json and tiktoken.model, ValueError for damage.
    """
    directory = find_checkpoint(path, TOKENIZER_ALONE)
    if (directory / TOKENIZER_FILE).is_file():
        codec, special = JsonCodec.open(directory / TOKENIZER_FILE)
    elif (directory / RANKS_FILE).is_file():
        codec = TiktokenCodec.open(directory / RANKS_FILE)
        special = read_special_tokens(directory, codec.vocab_size)
    else:
        raise FileNotFoundError(f"{directory} holds neither {TOKENIZER_FILE} nor {RANKS_FILE}")
    by_text = {token.text: token.token_id for token in special}
    template = _read_template(directory)
    return Tokenizer(
        codec=codec,
        special_tokens=special,
        eos_token_ids=read_eos_token_ids(directory, by_text),
        vocab_size=max(codec.vocab_size, *(token.token_id + 1 for token in special), 0),
        named_tokens=read_named_tokens(directory),
        template=None if template is None else compile_template(template, str(directory)),
        template_text=template,
    )


def _read_template(directory: Path) -> str | None:
    """Return the text of chat_template.jinja, or else the template in one of the JSON files.

    Raises ValueError if the JSON field holds neither text nor named templates.
    """
    if (directory / TEMPLATE_FILE).is_file():
        return (directory / TEMPLATE_FILE).read_text(encoding="utf-8")
    for file in (directory / name for name in FILES_WITH_TEMPLATE):
        source = read_json(file).get(TEMPLATE_KEY) if file.is_file() else None
        if source is not None:
            return _default_template(source, file)
    return None


def _default_template(source: Any, file: Path) -> str:
    """Return the template's text; of several, as in transformers, the default one."""
    if isinstance(source, list):
        entries = [entry for entry in source if isinstance(entry, dict)]
        source = {str(entry.get("name")): entry.get("template") for entry in entries}
    text = source.get(DEFAULT_TEMPLATE) if isinstance(source, dict) else source
    if not isinstance(text, str):
        raise ValueError(
            f"{file}: {TEMPLATE_KEY} must be a text, or templates by name with one called "
            f"{DEFAULT_TEMPLATE}; got {brief(source)}"
        )
    return text


def split_long_text(text: str) -> Iterator[str]:
    """Cut text where Kimi's own tokenizer does, so that ids agree and time stays linear.

    Cuts are every 400,000 characters, and in between after 25,000 that are all space or all not.
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
