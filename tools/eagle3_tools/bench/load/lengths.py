"""How long random prompts and answers are. One flag, `--random-range-ratio`, means three things:

InferenceX and SGLang draw from a part of the length up to the length, vLLM from both sides of it.
Sources: InferenceX utils/bench_serving/benchmark_serving.py (843c6254), SGLang 0.5.23
benchmark/datasets/common.py, vLLM 0.33.0 benchmarks/datasets.py.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

Sampling = Literal["inferencex", "vllm", "sglang"]
SAMPLINGS: tuple[Sampling, ...] = ("inferencex", "vllm", "sglang")
USUAL_RATIO = {"inferencex": 0.8, "vllm": 0.0, "sglang": 0.0}
"""InferenceX's recipes say 0.8; the others are what these clients do when nothing is said."""

Integers = Callable[[int, int, int], "np.ndarray"]
"""(low, high, size): integers in [low, high)."""


def length_range(sampling: Sampling, length: int, ratio: float) -> tuple[int, int]:
    """The least and the greatest length that is drawn, both included.

    Raises ValueError for a ratio outside [0, 1], 1 itself for vLLM, and for a range that begins
    with nothing.
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
    """The generator that the client uses with this seed, so that lengths are its own too."""
    if sampling == "vllm":
        return np.random.default_rng(seed).integers
    return np.random.RandomState(seed).randint


def draw_lengths(
    sampling: Sampling, length: int, ratio: float, count: int, integers: Integers
) -> list[int]:
    """`count` lengths."""
    low, high = length_range(sampling, length, ratio)
    return [int(drawn) for drawn in integers(low, high + 1, count)]
