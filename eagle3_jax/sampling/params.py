"""Table of sampling options of a request, under vLLM's field names."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eagle3_jax.sampling.options import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LOGPROBS,
    AppliedBy,
    option,
    options_of,
)
from eagle3_jax.sampling.structured_outputs import StructuredOutputs, ThinkingBudget

LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")


def _is_probability(value: float) -> bool:
    return 0 < value <= 1


def _is_penalty(value: float) -> bool:
    return -2 <= value <= 2


def _counts_logprobs(value: int | None) -> bool:
    return value is None or 0 <= value <= MAX_LOGPROBS


def _are_ids(value: Sequence[int]) -> bool:
    return all(0 <= token < 2**31 for token in value)


def _are_biases(pairs: Sequence[tuple[int, float]]) -> bool:
    return all(token >= 0 and -100 <= bias <= 100 for token, bias in pairs)


def _are_words(words: Sequence[Sequence[int]]) -> bool:
    sizes = all(1 <= len(word) <= MAX_BAD_WORD_TOKENS for word in words)
    return len(words) <= MAX_BAD_WORDS and sizes and all(min(word) >= 0 for word in words)


def _switch(default: bool, meaning: str) -> Any:
    kind = {"applied_by": AppliedBy.HOST, "json": bool}
    return option(default, "true or false", lambda value: True, meaning=meaning, **kind)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling options of one request; docs/reference/request-options.md lists their meanings.

    Raises ValueError for a value out of range.
    """

    n: int = option(
        1,
        "at least 1",
        lambda value: value >= 1,
        applied_by=AppliedBy.HOST,
        meaning="answers; the i-th has seed + i",
    )
    temperature: float = option(
        1.0,
        "a finite number, 0 or more",
        lambda value: math.isfinite(value) and value >= 0,
        applied_by=AppliedBy.EVERY_PROGRAM,
        meaning="divides the logits; 0 is greedy",
        json=float,
        generation_config="temperature",
    )
    top_p: float = option(
        1.0,
        "in (0, 1]",
        _is_probability,
        applied_by=AppliedBy.SAMPLER,
        filters=True,
        meaning="keeps the most probable tokens whose sum first reaches this probability",
        json=float,
        generation_config="top_p",
    )
    top_k: int = option(
        0,
        "a positive count, or 0 or -1 for all",
        lambda value: -1 <= value < 2**31,
        also_off=(-1,),
        applied_by=AppliedBy.SAMPLER,
        filters=True,
        meaning="keeps so many of the best tokens; 0 or -1 all",
        json=int,
        generation_config="top_k",
    )
    min_p: float = option(
        0.0,
        "in [0, 1]",
        lambda value: 0 <= value <= 1,
        applied_by=AppliedBy.EVERY_PROGRAM,
        filters=True,
        meaning="keeps tokens of at least this share of the best one's probability",
        json=float,
        generation_config="min_p",
    )
    typical_p: float = option(
        1.0,
        "in (0, 1]",
        _is_probability,
        applied_by=AppliedBy.FULL_PROGRAMS,
        filters=True,
        meaning="keeps the tokens whose surprisal is nearest the entropy, as many as reach this "
        "probability (arXiv 2202.00666)",
        json=float,
        generation_config="typical_p",
    )
    seed: int | None = option(
        None,
        "a 64-bit integer",
        lambda value: value is None or -(2**63) <= value < 2**64,
        applied_by=AppliedBy.EVERY_PROGRAM,
        meaning="gives the same output again; drawn and reported if left out",
    )
    max_tokens: int | None = option(
        16,
        "at least 1",
        lambda value: value is None or value >= 1,
        applied_by=AppliedBy.HOST,
        meaning="maximum tokens of the answer; without it, as many as the context allows",
        generation_config="max_new_tokens",
    )
    min_tokens: int = option(
        0,
        "0 or more",
        lambda value: value >= 0,
        applied_by=AppliedBy.EVERY_PROGRAM,
        meaning="EOS and stop ids are barred until the answer has so many tokens",
        json=int,
    )
    stop: str | Sequence[str] = option(
        (),
        "non-empty strings",
        all,
        applied_by=AppliedBy.HOST,
        meaning="strings that end the answer",
        json=str | list[str],
    )
    stop_token_ids: Sequence[int] = option(
        (),
        "token ids, 0..2147483647",
        _are_ids,
        applied_by=AppliedBy.HOST,
        meaning="ids that end the answer; 64 at most, EOS ids included",
        json=list[int],
    )
    ignore_eos: bool = _switch(False, "do not end at EOS ids")
    include_stop_str_in_output: bool = _switch(
        False, "leave the string that ended the answer in its text"
    )
    skip_special_tokens: bool = _switch(
        True, "leave special tokens out of the text; the one that ends it always is"
    )
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = option(
        (),
        "token ids with numbers in [-100, 100]",
        _are_biases,
        applied_by=AppliedBy.LOGIT_CONTROLS,
        meaning="added to the logits of these ids",
        json=dict[int, float],
    )
    allowed_token_ids: Sequence[int] | None = option(
        None,
        "at least one token id, 0 or more",
        lambda value: value is None or (len(value) > 0 and min(value) >= 0),
        applied_by=AppliedBy.LOGIT_CONTROLS,
        meaning="all other ids are barred",
        json=list[int],
    )
    bad_words_ids: Sequence[Sequence[int]] = option(
        (),
        f"at most {MAX_BAD_WORDS} words of 1..{MAX_BAD_WORD_TOKENS} token ids, 0 or more",
        _are_words,
        applied_by=AppliedBy.LOGIT_CONTROLS,
        meaning="the last id of each is barred where the answer ends with its others",
    )
    repetition_penalty: float = option(
        1.0,
        "positive and finite",
        lambda value: 0 < value < math.inf,
        applied_by=AppliedBy.LOGIT_CONTROLS,
        meaning="divides positive and multiplies negative logits of tokens in prompt or answer",
        json=float,
        generation_config="repetition_penalty",
    )
    presence_penalty: float = option(
        0.0,
        "in [-2, 2]",
        _is_penalty,
        applied_by=AppliedBy.LOGIT_CONTROLS,
        meaning="subtracted from the logits of tokens in the answer",
        json=float,
    )
    frequency_penalty: float = option(
        0.0,
        "in [-2, 2]",
        _is_penalty,
        applied_by=AppliedBy.LOGIT_CONTROLS,
        meaning="subtracted as many times as the token is in the answer",
        json=float,
    )
    num_speculative_tokens: int | None = option(
        None,
        "0 or more",
        lambda value: value is None or value >= 0,
        applied_by=AppliedBy.EVERY_PROGRAM,
        meaning="drafts verified a round at most; without a limit all that the engine makes",
    )
    structured_outputs: StructuredOutputs | None = option(
        None,
        "a form",
        lambda value: True,
        applied_by=AppliedBy.HOST,  # by token masks, in rounds of two programs
        meaning="the form of the answer",
    )
    thinking_budget: ThinkingBudget | None = option(
        None,
        "a budget",
        lambda value: True,
        applied_by=AppliedBy.HOST,  # by token masks, as above
        meaning="tokens of thinking, behind which its end is forced",
    )
    logprobs: int | None = option(
        None,
        f"in 0..{MAX_LOGPROBS}",
        _counts_logprobs,
        applied_by=AppliedBy.FULL_PROGRAMS,
        meaning="log-probabilities of each token of the answer and of so many best ones",
    )
    prompt_logprobs: int | None = option(
        None,
        f"in 0..{MAX_LOGPROBS}",
        _counts_logprobs,
        applied_by=AppliedBy.HOST,  # which runs the prompt through a separate program
        meaning="the same of the prompt's tokens, always raw",
    )
    logprobs_mode: str = option(
        "raw_logprobs",
        " or ".join(LOGPROBS_MODES),
        LOGPROBS_MODES.__contains__,
        also_off=LOGPROBS_MODES,  # no effect alone: `logprobs` selects the programs that read it
        applied_by=AppliedBy.FULL_PROGRAMS,
        meaning="the model's own, or after all options",
        json=str,
    )

    def __post_init__(self) -> None:
        frozen = {
            "stop": (self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            "stop_token_ids": tuple(self.stop_token_ids),
            "logit_bias": self.bias_pairs,
            "bad_words_ids": tuple(tuple(word) for word in self.bad_words_ids),
        }
        if self.allowed_token_ids is not None:
            frozen["allowed_token_ids"] = tuple(sorted(set(self.allowed_token_ids)))
        for name, value in frozen.items():
            object.__setattr__(self, name, value)
        for name, row in REQUEST_OPTIONS.items():
            _require(row.holds(getattr(self, name)), name, row.expected, getattr(self, name))
        fits = self.max_tokens is None or self.min_tokens <= self.max_tokens
        _require(fits, "min_tokens", f"at most max_tokens={self.max_tokens}", self.min_tokens)

    @cached_property
    def active(self) -> dict[str, AppliedBy]:
        """Options that have an effect, each with the component that applies it."""
        given = {name: row for name, row in REQUEST_OPTIONS.items() if self._does(name)}
        return {name: row.applied_by for name, row in given.items()}

    def _does(self, name: str) -> bool:
        row = REQUEST_OPTIONS[name]
        return getattr(self, name) not in row.off and (self.temperature > 0 or not row.filters)

    @property
    def bias_pairs(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as (id, value) pairs in ascending order."""
        bias = self.logit_bias
        return tuple(sorted(bias.items() if isinstance(bias, Mapping) else bias))

    def largest_ids(self) -> Iterator[tuple[str, int]]:
        """Yield each option about logits with the largest token id that it names."""
        ends = self.thinking_budget.ends if self.thinking_budget else ()
        named = {
            "logit_bias": [token for token, _ in self.bias_pairs],
            "allowed_token_ids": self.allowed_token_ids or (),
            "bad_words_ids": [token for word in self.bad_words_ids for token in word],
            "thinking_budget": ends,
        }
        yield from ((name, max(ids)) for name, ids in named.items() if ids)


REQUEST_OPTIONS = options_of(SamplingParams)


def _require(holds: bool, name: str, expected: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must be {expected}; got {value!r}")
