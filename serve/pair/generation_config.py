"""Read sampling defaults from generation_config.json, as vLLM does, and encode bad_words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from convert.files.json_object import parse_value
from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import SAMPLING, SAMPLING_ALONE
from eagle3_jax.sampling.options import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS
from eagle3_jax.sampling.params import REQUEST_OPTIONS, SamplingParams

NAMES = {
    row.generation_config: name
    for name, row in REQUEST_OPTIONS.items()
    if row.generation_config is not None
}


@dataclass(frozen=True)
class SamplingDefaults:
    """Sampling defaults; `options` are SamplingParams fields for requests that omit them."""

    options: dict[str, Any] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()


def read_sampling_defaults(directory: Path) -> SamplingDefaults:
    """Read the file, if there is one; ValueError if its content is invalid."""
    path = directory / SAMPLING
    if not path.is_file():
        return SamplingDefaults()
    config, options = _parse(path.read_text(encoding="utf-8"), str(path))
    eos = config.get("eos_token_id")
    eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    return SamplingDefaults(options, eos_ids)


def choose_defaults(
    source: str, overrides: str | None
) -> Callable[[SamplingDefaults], dict[str, Any]]:
    """Return a function that applies the server's flags to a checkpoint's defaults.

    `source` is auto, vllm for no defaults, or the directory or hub id of another file. `overrides`
    is JSON with the file's names. Raises ValueError for a missing file or invalid content.
    """
    given: dict[str, Any] = {}
    if source not in ("auto", "vllm"):
        directory = find_checkpoint(source, SAMPLING_ALONE)
        if not (directory / SAMPLING).is_file():
            raise ValueError(
                f"--generation-config: {source} holds no {SAMPLING}; or say auto or vllm"
            )
        given = read_sampling_defaults(directory).options
    over = {} if overrides is None else _parse(overrides, "--override-generation-config")[1]
    return lambda found: {**(found.options if source == "auto" else given), **over}


def _parse(text: str, origin: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the file's content, and its sampling options under our names."""
    try:
        config = parse_value(text)
        options = {NAMES[k]: v for k, v in config.items() if k in NAMES and v is not None}
        SamplingParams(**options)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{origin}: {error}") from error
    return config, options


class Encoder(Protocol):
    """Interface of a tokenizer that encodes words (`convert.text.tokenizer.Tokenizer`)."""

    def encode(
        self, text: str, add_special: bool = False, most: int | None = None
    ) -> list[int]: ...


def spell_bad_words(encoder: Encoder, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return each word's ids at a line's start and, if they differ, after a space.

    Raises ValueError for empty or unencodable words, and for too many spellings.
    """
    if len(words) > MAX_BAD_WORDS:
        raise ValueError(f"bad_words may have at most {MAX_BAD_WORDS} words; got {len(words)}")
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise ValueError("bad_words must be words")
        try:
            for text in (bare, f" {bare}"):
                found[tuple(encoder.encode(text, most=MAX_BAD_WORD_TOKENS))] = None
        except ValueError as error:
            raise ValueError(f"bad_words: {word[:100]!r} can't be encoded: {error}") from error
    if len(found) > MAX_BAD_WORDS:
        raise ValueError(
            f"bad_words: at most {MAX_BAD_WORDS} spellings, and a word has one with a space in "
            f"front and one without; got {len(found)}"
        )
    return tuple(found)
