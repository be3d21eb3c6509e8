"""Log-probabilities as JSON text, in OpenAI's two formats and vLLM's format for prompts.

An answer may have millions of them. They are written without intermediate objects, one answer token
at a time. JSON has no infinity: values below LEAST and NaN are sent as -9999, as in vLLM.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from convert.text.json_pieces import NULL, JsonList, JsonText, dumps
from eagle3_jax.engine.logprob_rows import LogprobsOfToken
from eagle3_jax.sampling.options import MAX_LOGPROBS
from serve.chat_format.marked_text import TextOfTokens, TokenBytes

LEAST = -9999.0
KNOWN_TOKENS = 2**15


class TokenJson(NamedTuple):
    """The text of a token and the list of its bytes, as JSON."""

    text: JsonText
    data: str


class TokenTexts:
    """Tokens as JSON text, with a cache of recently used ones."""

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self.of = lru_cache(KNOWN_TOKENS)(self._make)

    def _make(self, token_id: int) -> TokenJson:
        data = dumps(list(self._tokenizer.token_bytes(token_id)))
        return TokenJson(JsonText(dumps(token_text(self._tokenizer, token_id))), data)


class TextOffsets(TextOfTokens):
    """Tracks the offset at which each token begins in the decoded text."""

    def __init__(self, tokenizer: TokenBytes, start: int = 0, *, skip_special: bool = True) -> None:
        super().__init__(tokenizer, skip_special=skip_special)
        self._length = start

    def take(self, token_ids: Iterable[int]) -> Iterator[int]:
        """Yield the offsets of these tokens. All tokens of one character have its offset."""
        for token_id in token_ids:
            start = self._length
            self._length += len(self.add(token_id))
            yield start


def token_text(tokenizer: TokenBytes, token_id: int) -> str:
    """Return the text of one token, with U+FFFD for a partial character."""
    return tokenizer.token_bytes(token_id).decode(errors="replace")


def completion_logprobs(
    texts: TokenTexts,
    token_ids: Sequence[int],
    entries: Sequence[LogprobsOfToken | None],
    offsets: Iterable[int],
    count: int,
) -> dict[str, Any]:
    """Return lists with one entry per token: text, logprob, `count` best and character offset."""
    covered = token_ids[: len(entries)]
    return {
        "tokens": JsonList(texts.of(token_id).text for token_id in covered),
        "token_logprobs": JsonList(
            NULL if entry is None else JsonText(finite(_own(entry))) for entry in entries
        ),
        "top_logprobs": JsonList(_by_text(texts, entry, count) for entry in entries),
        "text_offset": JsonList(islice(offsets, len(covered))),
    }


def chat_logprobs(
    texts: TokenTexts, token_ids: Sequence[int], entries: Sequence[LogprobsOfToken], count: int
) -> Iterator[JsonText]:
    """Yield an entry per token of a chat answer, with its own bytes and the `count` best tokens."""

    def fields(token_id: int, logprob: float) -> str:
        text, data = texts.of(token_id)
        return f'"token":{text},"logprob":{finite(logprob)},"bytes":{data}'

    for token_id, entry in zip(token_ids, entries, strict=True):
        best = ",".join([f"{{{fields(*one)}}}" for one in entry.best[:count]])
        yield JsonText(f'{{{fields(token_id, _own(entry))},"top_logprobs":[{best}]}}')


def logprobs_by_id(
    texts: TokenTexts, entries: Iterable[LogprobsOfToken | None], count: int = MAX_LOGPROBS
) -> Iterator[JsonText]:
    """Yield vLLM's format: by token id, first the actual token, then the `count` best."""

    def field(token_id: int, logprob: float, rank: int) -> str:
        text = texts.of(token_id).text
        return f'"{token_id}":{{"logprob":{finite(logprob)},"rank":{rank},"decoded_token":{text}}}'

    for entry in entries:
        if entry is None:
            yield NULL
            continue
        own, others = entry[entry.token_id], enumerate(entry.best[:count], start=1)
        shown = [field(entry.token_id, *own)]
        shown += [field(*one, rank) for rank, one in others if one[0] != entry.token_id]
        yield JsonText(f"{{{','.join(shown)}}}")


def finite(logprob: float) -> float:
    """Return the number, or LEAST where JSON cannot represent it."""
    return logprob if logprob > LEAST else LEAST


def _own(entry: LogprobsOfToken) -> float:
    """Return the log-probability of the actual token."""
    return entry[entry.token_id].logprob


def _by_text(texts: TokenTexts, entry: LogprobsOfToken | None, count: int) -> JsonText:
    """Return log-probabilities by text. Of two tokens with equal text, the better one counts."""
    if entry is None:
        return NULL
    found: dict[str, float] = {}
    for token_id, logprob in [(entry.token_id, _own(entry)), *entry.best[:count]]:
        text = texts.of(token_id).text
        found[text] = max(finite(logprob), found.get(text, LEAST))
    return JsonText(f"{{{','.join(f'{text}:{logprob}' for text, logprob in found.items())}}}")
