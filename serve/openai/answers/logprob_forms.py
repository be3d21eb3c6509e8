"""Log-probabilities in OpenAI's two forms, and in vLLM's those of a prompt.

JSON has no infinity: what is lower, or no number at all, is sent as -9999, as vLLM does.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from eagle3_jax.engine import Logprob
from eagle3_jax.engine.logprob_rows import LogprobsOfToken
from eagle3_jax.sampling.limits import MAX_LOGPROBS
from serve.chat_format.marked_text import TokenBytes

LEAST = -9999.0
LogprobsById = dict[str, dict[str, float | int | str]]


class CompletionLogprobs(BaseModel):
    """One entry a token in each list. text_offset: characters of the text before the token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(BaseModel):
    """One of the best tokens at a place; of a character split over tokens each has its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    """A token of the answer, and the best ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry a token."""

    content: list[ChatTokenLogprob]


class TextOffsets:
    """Counts on, as tokens come, where each begins in the text they decode to."""

    def __init__(self, tokenizer: TokenBytes, start: int = 0, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._length = start

    def take(self, token_ids: Iterable[int]) -> list[int]:
        """The places of these tokens; all parts of one character begin where it does."""
        offsets: list[int] = []
        for token_id in token_ids:
            offsets.append(self._length)
            text = self._decode(self._tokenizer.token_bytes(token_id, self._skip_special))
            self._length += len(text)
        return offsets


def token_text(tokenizer: TokenBytes, token_id: int) -> str:
    """The text of one token; of half a character U+FFFD."""
    return tokenizer.token_bytes(token_id).decode(errors="replace")


def completion_logprobs(
    tokenizer: TokenBytes,
    token_ids: Sequence[int],
    entries: Sequence[LogprobsOfToken | None],
    offsets: list[int],
    count: int,
) -> CompletionLogprobs:
    """Of the tokens of a completion, with the `count` best of each place."""
    chosen = [
        None if entry is None else finite(entry[token_id])
        for token_id, entry in zip(token_ids, entries, strict=False)
    ]
    return CompletionLogprobs(
        tokens=[token_text(tokenizer, token_id) for token_id in token_ids[: len(chosen)]],
        token_logprobs=chosen,
        top_logprobs=[_by_text(tokenizer, entry, count) for entry in entries],
        text_offset=offsets[: len(chosen)],
    )


def chat_logprobs(
    tokenizer: TokenBytes,
    token_ids: Sequence[int],
    entries: Sequence[LogprobsOfToken],
    count: int,
) -> ChatLogprobs:
    """Of the tokens of a chat answer, with the `count` best of each place."""

    def fields(token_id: int, logprob: Logprob) -> dict[str, Any]:
        name, data = token_text(tokenizer, token_id), list(tokenizer.token_bytes(token_id))
        return {"token": name, "logprob": finite(logprob), "bytes": data}

    return ChatLogprobs(
        content=[
            ChatTokenLogprob(
                **fields(token_id, entry[token_id]),
                top_logprobs=[TopLogprob(**fields(*one)) for one in best(entry, count)],
            )
            for token_id, entry in zip(token_ids, entries, strict=True)
        ]
    )


def logprobs_by_id(
    tokenizer: TokenBytes, entries: Iterable[LogprobsOfToken | None], count: int = MAX_LOGPROBS
) -> list[LogprobsById | None]:
    """vLLM's form: by token id, first the token that came, then the `count` best."""

    def fields(token_id: int, logprob: Logprob) -> dict[str, float | int | str]:
        text = token_text(tokenizer, token_id)
        return {"logprob": finite(logprob), "rank": logprob.rank, "decoded_token": text}

    return [
        None
        if entry is None
        else {str(shown): fields(shown, entry[shown]) for shown in _shown(entry, count)}
        for entry in entries
    ]


def finite(logprob: Logprob) -> float:
    """A number that JSON has."""
    return logprob.logprob if logprob.logprob > LEAST else LEAST


def best(entry: LogprobsOfToken, count: int) -> list[tuple[int, Logprob]]:
    """The `count` best tokens of an entry, best first."""
    return sorted(entry.items(), key=lambda item: item[1].rank)[:count]


def _shown(entry: LogprobsOfToken, count: int) -> list[int]:
    """The token that came, and the `count` best."""
    return list(dict.fromkeys([next(iter(entry)), *(i for i, _ in best(entry, count))]))


def _by_text(
    tokenizer: TokenBytes, entry: LogprobsOfToken | None, count: int
) -> dict[str, float] | None:
    """Where two tokens have one text, the better one stands for it."""
    if entry is None:
        return None
    found: dict[str, float] = {}
    for token_id in _shown(entry, count):
        text, logprob = token_text(tokenizer, token_id), finite(entry[token_id])
        found[text] = max(logprob, found.get(text, LEAST))
    return found
