"""Plain decoding through the engine against transformers' generate: same weights, interleaved."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.sampling_params import SamplingParams
from serve.bench.bandwidth import ReadBandwidth
from serve.bench.byte_floor import ByteFloor, byte_floor
from serve.bench.drive import drive
from serve.bench.kimi_108m import random_prompts
from serve.bench.routing import mean_distinct_experts, router_scores
from serve.bench.spread import Spread
from serve.bench.ties import Difference, Scorer
from serve.bench.transformers_peer import TransformersPeer

Generate = Callable[[Sequence[Sequence[int]], int], list[list[int]]]

PROMPT_LENGTH = 32
CONTEXT = 256


@dataclass(frozen=True)
class Lengths:
    """New tokens of the two runs whose difference is free of prefill."""

    short: int = 16
    long: int = 112


@dataclass(frozen=True)
class Side:
    """One side's times. step_s: one decode step of the whole batch, prefill excluded; its best is
    the difference of the best runs. end_to_end_s: prefill and all tokens of the long run."""

    step_s: Spread
    end_to_end_s: Spread


@dataclass(frozen=True)
class PlainResult:
    """One batch size. Ratios are peer time over engine time: above 1 the engine is faster.

    identical: sequences of the batch whose tokens were equal on both sides, all of them.
    """

    batch: int
    prompt_length: int
    new_tokens: Lengths
    engine: Side
    transformers: Side
    ratio_median: float
    ratio_best: float
    ratio_end_to_end: float
    identical: int
    differences: list[Difference]
    floor: ByteFloor
    bandwidth: Spread
    floor_share_median: float
    floor_share_best: float

    @property
    def engine_tokens_per_s(self) -> float:
        """Tokens a second of the whole batch, prefill excluded."""
        return self.batch / self.engine.step_s.median

    @property
    def transformers_tokens_per_s(self) -> float:
        """The same of the other side."""
        return self.batch / self.transformers.step_s.median


class EngineSide:
    """Greedy plain decoding by one warm engine of one batch size."""

    def __init__(self, target: KimiTarget, batch: int) -> None:
        config = EngineConfig(
            num_speculative_tokens=0,
            max_model_len=CONTEXT,
            max_num_seqs=batch,
            batch_buckets=(batch,),
            # The same prompts again and again, and the other side runs them every time.
            enable_prefix_caching=False,
        )
        self._engine = Engine(target, None, config, eos_token_ids=())
        self._engine.warmup()

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        """Exactly `new_tokens` greedy tokens for each prompt."""
        sampling = SamplingParams(temperature=0, max_tokens=new_tokens, seed=0)
        requests = [Request(str(i), list(p), sampling) for i, p in enumerate(prompts)]
        answers = drive(self._engine, requests)
        return [answers[request.request_id].token_ids for request in requests]


def compare_plain(
    target: KimiTarget,
    peer: TransformersPeer,
    bandwidth: ReadBandwidth,
    *,
    batch: int,
    repetitions: int,
    lengths: Lengths | None = None,
) -> PlainResult:
    """Times both sides in turn, `repetitions` times, after one run of each that is not counted."""
    lengths = lengths or Lengths()
    prompts = random_prompts(batch, PROMPT_LENGTH, target.config.vocab_size)
    ours = EngineSide(target, batch).generate
    answers, peer_answers = ours(prompts, lengths.long), peer.generate(prompts, lengths.long)
    times: dict[tuple[str, int], list[float]] = {}
    speeds = []
    for _ in range(repetitions):
        speeds.append(bandwidth.sample())
        for name, generate in (("engine", ours), ("transformers", peer.generate)):
            for tokens in (lengths.short, lengths.long):
                elapsed = _timed(generate, prompts, tokens)
                times.setdefault((name, tokens), []).append(elapsed)
    engine, other = (_side(times, name, lengths) for name in ("engine", "transformers"))
    floor = _floor(target, prompts, answers, lengths)
    read = _rates(speeds)
    differences = _differences(target, prompts, answers, peer_answers)
    return PlainResult(
        batch=batch,
        prompt_length=PROMPT_LENGTH,
        new_tokens=lengths,
        engine=engine,
        transformers=other,
        ratio_median=other.step_s.median / engine.step_s.median,
        ratio_best=other.step_s.best / engine.step_s.best,
        ratio_end_to_end=other.end_to_end_s.median / engine.end_to_end_s.median,
        identical=batch - len(differences),
        differences=differences,
        floor=floor,
        bandwidth=read,
        floor_share_median=floor.seconds(read.median) / engine.step_s.median,
        floor_share_best=floor.seconds(read.best) / engine.step_s.best,
    )


def _timed(generate: Generate, prompts: Sequence[Sequence[int]], tokens: int) -> float:
    start = time.perf_counter()
    generate(prompts, tokens)
    return time.perf_counter() - start


def _rates(speeds: list[float]) -> Spread:
    """A spread of which more is better."""
    return Spread(float(np.median(speeds)), max(speeds), min(speeds), len(speeds))


def _side(times: dict[tuple[str, int], list[float]], name: str, lengths: Lengths) -> Side:
    short, long = times[name, lengths.short], times[name, lengths.long]
    return Side(step_spread(short, long, lengths.long - lengths.short), Spread.of(long))


def step_spread(short: Sequence[float], long: Sequence[float], steps: int) -> Spread:
    """Seconds a step: differences within a repetition; best from the best runs of either length.

    The best difference would reward a slow short run.
    """
    differences = [(b - a) / steps for a, b in zip(short, long, strict=True)]
    spread = Spread.of(differences)
    best = (min(long) - min(short)) / steps
    return Spread(spread.median, best, spread.worst, spread.count)


def _floor(
    target: KimiTarget,
    prompts: list[list[int]],
    answers: list[list[int]],
    lengths: Lengths,
) -> ByteFloor:
    """The floor of the timed steps: their own routing and mean context."""
    whole = jnp.asarray([[*p, *a] for p, a in zip(prompts, answers, strict=True)])
    scores = np.asarray(router_scores(target, whole))[:, :, PROMPT_LENGTH + lengths.short :]
    distinct = mean_distinct_experts(scores, target.config.num_experts_per_tok)
    context = PROMPT_LENGTH + (lengths.short + lengths.long) / 2
    return byte_floor(target.config, batch=len(prompts), context=context, distinct_experts=distinct)


def _differences(
    target: KimiTarget,
    prompts: list[list[int]],
    answers: list[list[int]],
    peer_answers: list[list[int]],
) -> list[Difference]:
    scorer = Scorer(target, CONTEXT)
    greedy = SamplingParams(temperature=0, seed=0)
    found = (
        scorer.explain(f"row {i}", prompt, greedy, ours, theirs)
        for i, (prompt, ours, theirs) in enumerate(zip(prompts, answers, peer_answers, strict=True))
    )
    return [difference for difference in found if difference]
