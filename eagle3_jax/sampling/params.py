"""What a request asks of sampling, under the names vLLM gave these fields."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from eagle3_jax.sampling.limits import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, MAX_LOGPROBS
from eagle3_jax.sampling.structured_outputs import StructuredOutputs

LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")


@dataclass(frozen=True)
class SamplingParams:
    """The sampling options of one request.

    temperature 0 is greedy. top_k 0 or -1, top_p 1 and min_p 0 are off. seed None is drawn by the
    engine and reported. max_tokens None runs to the model's length. min_tokens bars end and stop
    ids until so many tokens are out. stop strings and stop_token_ids end the answer.
    skip_special_tokens False writes special tokens into its text, but for the one that ends it.
    logit_bias maps ids to what is added to their logits, -100..100. allowed_token_ids, where given,
    bars all others; bad_words_ids bars ids that would complete one of these in the answer.
    repetition_penalty (1 is off) acts on tokens of prompt and answer, presence_penalty and
    frequency_penalty, -2..2, on those of the answer. num_speculative_tokens: drafts verified a
    round at most, None (or more than the engine makes) for all of them. structured_outputs: the
    form of the answer. logprobs: log-probabilities of every token of the answer and of so many best
    ones, 0..20, None for none; logprobs_mode: raw_logprobs, the model's own, or processed_logprobs,
    those after all options. prompt_logprobs: the same of the prompt's tokens, always raw.
    Raises ValueError for a value out of range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    allowed_token_ids: Sequence[int] | None = None
    bad_words_ids: Sequence[Sequence[int]] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    num_speculative_tokens: int | None = None
    structured_outputs: StructuredOutputs | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: str = "raw_logprobs"

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check_numbers()
        self._check_stops(stop)
        self._check_penalties()
        self._check_logprobs()
        self._check_bias()
        self._check_words()

    @property
    def controls_tokens(self) -> bool:
        """Whether an option looks at token ids, so that the full programs are needed."""
        return bool(self.logit_bias) or self.limits_tokens

    @property
    def limits_tokens(self) -> bool:
        """Whether such an option is more than a bias."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        limits = self.bad_words_ids or self.allowed_token_ids is not None
        return bool(limits) or penalties != (1, 0, 0)

    @property
    def bias_pairs(self) -> tuple[tuple[int, float], ...]:
        """logit_bias as (id, value), ascending."""
        bias = self.logit_bias
        return tuple(sorted(bias.items() if isinstance(bias, Mapping) else bias))

    def named_ids(self) -> Iterator[tuple[str, int]]:
        """Every token id that an option about logits names, with the option's name."""
        yield from (("logit_bias", token) for token, _ in self.bias_pairs)
        yield from (("allowed_token_ids", token) for token in self.allowed_token_ids or ())
        yield from (("bad_words_ids", token) for word in self.bad_words_ids for token in word)

    def _check_numbers(self) -> None:
        _require(self.n >= 1, "n", "at least 1", self.n)
        in_range = math.isfinite(self.temperature) and self.temperature >= 0
        _require(in_range, "temperature", "a finite number, 0 or more", self.temperature)
        _require(0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)
        in_range = -1 <= self.top_k < 2**31
        _require(in_range, "top_k", "a positive count, or 0 or -1 for all", self.top_k)
        _require(0 <= self.min_p <= 1, "min_p", "in [0, 1]", self.min_p)
        if self.seed is not None:
            _require(-(2**63) <= self.seed < 2**64, "seed", "a 64-bit integer", self.seed)
        if self.max_tokens is not None:
            _require(self.max_tokens >= 1, "max_tokens", "at least 1", self.max_tokens)
            fits = self.min_tokens <= self.max_tokens
            _require(fits, "min_tokens", f"at most max_tokens={self.max_tokens}", self.min_tokens)
        _require(self.min_tokens >= 0, "min_tokens", "0 or more", self.min_tokens)

    def _check_stops(self, stop: tuple[str, ...]) -> None:
        _require(all(stop), "stop", "non-empty strings", stop)
        valid = all(0 <= token < 2**31 for token in self.stop_token_ids)
        _require(valid, "stop_token_ids", "token ids, 0..2147483647", self.stop_token_ids)

    def _check_penalties(self) -> None:
        value = self.repetition_penalty
        _require(0 < value < math.inf, "repetition_penalty", "positive and finite", value)
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2 <= value <= 2, name, "in [-2, 2]", value)
        value = self.num_speculative_tokens
        _require(value is None or value >= 0, "num_speculative_tokens", "0 or more", value)

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            valid = count is None or 0 <= count <= MAX_LOGPROBS
            _require(valid, name, f"in 0..{MAX_LOGPROBS}", count)
        mode, modes = self.logprobs_mode, " or ".join(LOGPROBS_MODES)
        _require(mode in LOGPROBS_MODES, "logprobs_mode", modes, mode)

    def _check_bias(self) -> None:
        pairs = self.bias_pairs
        valid = all(token >= 0 and -100 <= bias <= 100 for token, bias in pairs)
        _require(valid, "logit_bias", "token ids with numbers in [-100, 100]", self.logit_bias)
        object.__setattr__(self, "logit_bias", pairs)
        if self.allowed_token_ids is not None:
            allowed = tuple(self.allowed_token_ids)
            valid = bool(allowed) and min(allowed) >= 0
            _require(valid, "allowed_token_ids", "at least one token id, 0 or more", allowed)
            object.__setattr__(self, "allowed_token_ids", allowed)

    def _check_words(self) -> None:
        words = tuple(tuple(word) for word in self.bad_words_ids)
        sizes = all(1 <= len(word) <= MAX_BAD_WORD_TOKENS for word in words)
        valid = len(words) <= MAX_BAD_WORDS and sizes and all(min(word) >= 0 for word in words)
        expected = f"at most {MAX_BAD_WORDS} words of 1..{MAX_BAD_WORD_TOKENS} token ids, 0 or more"
        _require(valid, "bad_words_ids", expected, words)
        object.__setattr__(self, "bad_words_ids", words)


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {expected}; got {value!r}")
