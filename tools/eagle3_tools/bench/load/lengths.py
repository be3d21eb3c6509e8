"""Draw the lengths of random prompts and answers as InferenceX, vLLM or SGLang do.

`--random-range-ratio` differs: InferenceX and SGLang draw from ratio * length to length, vLLM from
(1 - ratio) * length to (1 + ratio) * length. Sources: InferenceX benchmark_serving.py (843c6254) in
utils/bench_serving, SGLang 0.5.23 benchmark/datasets/common.py, vLLM 0.33.0 benchmarks/datasets.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

Sampling = Literal["inferencex", "vllm", "sglang"]
SAMPLINGS: tuple[Sampling, ...] = ("inferencex", "vllm", "sglang")
USUAL_RATIO = {"inferencex": 0.8, "vllm": 0.0, "sglang": 0.0}
"""Default ratios: InferenceX's recipes pass 0.8, the others are the clients' defaults."""

Integers = Callable[[int, int, int], "np.ndarray"]
"""(low, high, size): integers in [low, high)."""


def length_range(sampling: Sampling, length: int, ratio: float) -> tuple[int, int]:
    """Return the smallest and the largest length, both included.

    Raises ValueError if the ratio is outside [0, 1] ([0, 1) for vLLM) or a length may be below 1.
    """
    if not 0 <= ratio <= 1 or (sampling == "vllm" and ratio == 1):
        end = "1)" if sampling == "vllm" else "1]"
        raise ValueError(f"--range-ratio of {sampling} must be in [0, {end}; got {ratio}")
    if sampling == "vllm":
        low, high = math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))
    elif sampling == "sglang":
        low, high = max(int(length * ratio), 1), length
    else:
        low, high = int(length * ratio), length
    if low < 1:
        raise ValueError(
            f"{length} tokens with --range-ratio {ratio} of {sampling} may be {low}; lengths must "
            "be at least 1"
        )
    return low, high


def source(sampling: Sampling, seed: int) -> Integers:
    """Return the generator that the client uses, so that the same seed draws the same lengths."""
    if sampling == "vllm":
        return np.random.default_rng(seed).integers
    return np.random.RandomState(seed).randint


def draw_lengths(
    sampling: Sampling, length: int, ratio: float, count: int, integers: Integers
) -> list[int]:
    low, high = length_range(sampling, length, ratio)
    return [int(drawn) for drawn in integers(low, high + 1, count)]


Endpoint = Literal["completions", "chat"]


@dataclass(frozen=True)
class Workload:
    """Mean lengths in tokens, their distribution, and the source of the text."""

    isl: int
    osl: int
    sampling: Sampling = "inferencex"
    range_ratio: float = 0.8
    chat_template: bool = True
    sharegpt: str | None = None
