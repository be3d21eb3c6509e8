"""What a request asks of sampling, under the names vLLM gave these fields."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingParams:
    """The sampling options of one request.

    temperature 0 is greedy. top_k 0 or -1, top_p 1 and min_p 0 are off. seed None is drawn by the
    engine and reported. max_tokens None runs to the model's length. min_tokens bars end and stop
    ids until so many tokens are out. stop strings and stop_token_ids end the answer.
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

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check_numbers()
        self._check_stops(stop)

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
        valid = all(token >= 0 for token in self.stop_token_ids)
        _require(valid, "stop_token_ids", "token ids, 0 or more", self.stop_token_ids)


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {expected}; got {value!r}")
