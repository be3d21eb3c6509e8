"""Compare plain decoding with transformers' generate: same weights, alternating runs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.common.drive import drive
from eagle3_tools.bench.common.spread import Spread
from eagle3_tools.bench.cpu.byte_floor import ByteFloor, ReadBandwidth, byte_floor
from eagle3_tools.bench.cpu.kimi_108m import random_prompts
from eagle3_tools.bench.cpu.operations import OperationTime, profile_steps
from eagle3_tools.bench.equality.routing import mean_distinct_experts, router_scores
from eagle3_tools.bench.equality.ties import Difference, Scorer

Generate = Callable[[Sequence[Sequence[int]], int], list[list[int]]]
"""Returns exactly so many greedy tokens for each prompt; prompts have one length."""


ENGINE = "engine"
PROMPT_LENGTH = 32
CONTEXT = 256


@dataclass(frozen=True)
class Lengths:
    """New tokens of the two runs; their difference excludes prefill."""

    short: int = 16
    long: int = 112


@dataclass(frozen=True)
class StepTimes:
    """Times of the engine or of a peer.

    `step_s` is a decode step of the batch, prefill excluded; its best is the difference of the best
    runs. `end_to_end_s` is prefill and all tokens of the long run.
    """

    step_s: Spread
    end_to_end_s: Spread


@dataclass(frozen=True)
class PeerTimes:
    """Times of one peer. `ratio_*` is its time over the engine's: above 1 the engine is faster.

    `identical` counts the sequences of the batch with exactly the engine's tokens.
    """

    times: StepTimes
    ratio_median: float
    ratio_best: float
    ratio_end_to_end: float
    identical: int
    differences: list[Difference]


@dataclass(frozen=True)
class PlainResult:
    """One dtype and batch size: the engine and all peers.

    `fastest_peer` has the smallest median step. All use `threads` threads.
    """

    dtype: str
    threads: int
    batch: int
    prompt_length: int
    new_tokens: Lengths
    engine: StepTimes
    peers: dict[str, PeerTimes]
    fastest_peer: str
    floor: ByteFloor
    bandwidth: Spread
    floor_share_median: float
    floor_share_best: float
    profile: list[OperationTime]


def plain_engine(target: KimiTarget, batch: int) -> Generate:
    """Make a warm engine of one batch size, which decodes greedily without drafts."""
    buckets = (batch,)
    # The prompts repeat, and the peers prefill them every time.
    config = EngineConfig(0, CONTEXT, batch, batch_buckets=buckets, enable_prefix_caching=False)
    engine = Engine(target, None, config, eos_token_ids=())
    engine.warmup()

    def generate(prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        sampling = SamplingParams(temperature=0, max_tokens=new_tokens, seed=0)
        requests = [Request(str(i), list(p), sampling) for i, p in enumerate(prompts)]
        return [answer.token_ids for answer in drive(engine, requests).values()]

    return generate


def compare_plain(
    target: KimiTarget,
    peers: Mapping[str, Generate],
    bandwidth: ReadBandwidth,
    batch: int,
    repetitions: int,
    lengths: Lengths = Lengths(),
    *,
    dtype: str = "float32",
    threads: int = 1,
) -> PlainResult:
    """Time engine and peers in turn, `repetitions` times, after an uncounted first run of each."""
    prompts = random_prompts(batch, PROMPT_LENGTH, target.config.vocab_size)
    sides = {ENGINE: plain_engine(target, batch), **peers}
    answers = {name: generate(prompts, lengths.long) for name, generate in sides.items()}
    times: dict[tuple[str, int], list[float]] = {}
    speeds = []
    for _ in range(repetitions):
        speeds.append(bandwidth.sample())
        for name, generate in sides.items():
            for tokens in (lengths.short, lengths.long):
                start = time.perf_counter()
                generate(prompts, tokens)
                times.setdefault((name, tokens), []).append(time.perf_counter() - start)
    engine = _step_times(times, ENGINE, lengths)
    floor = _floor(target, prompts, answers[ENGINE], lengths)
    read = Spread.of(speeds, rates=True)
    scorer, greedy = Scorer(target, CONTEXT), SamplingParams(temperature=0, seed=0)
    requests = [Request(f"row {i}", prompt, greedy) for i, prompt in enumerate(prompts)]

    def peer_times(name: str) -> PeerTimes:
        found = scorer.differences(requests, answers[ENGINE], answers[name])
        return _peer_times(_step_times(times, name, lengths), engine, batch, found)

    timed = {name: peer_times(name) for name in peers}
    return PlainResult(
        dtype=dtype,
        threads=threads,
        batch=batch,
        prompt_length=PROMPT_LENGTH,
        new_tokens=lengths,
        engine=engine,
        peers=timed,
        fastest_peer=min(timed, key=lambda name: timed[name].times.step_s.median),
        floor=floor,
        bandwidth=read,
        floor_share_median=floor.seconds(read.median) / engine.step_s.median,
        floor_share_best=floor.seconds(read.best) / engine.step_s.best,
        profile=profile_steps(target, prompts, CONTEXT, lengths.long - lengths.short),
    )


def _peer_times(
    times: StepTimes, engine: StepTimes, batch: int, differences: list[Difference]
) -> PeerTimes:
    return PeerTimes(
        times=times,
        ratio_median=times.step_s.median / engine.step_s.median,
        ratio_best=times.step_s.best / engine.step_s.best,
        ratio_end_to_end=times.end_to_end_s.median / engine.end_to_end_s.median,
        identical=batch - len(differences),
        differences=differences,
    )


def _step_times(
    times: dict[tuple[str, int], list[float]], name: str, lengths: Lengths
) -> StepTimes:
    short, long = times[name, lengths.short], times[name, lengths.long]
    return StepTimes(step_spread(short, long, lengths.long - lengths.short), Spread.of(long))


def step_spread(short: Sequence[float], long: Sequence[float], steps: int) -> Spread:
    """Return seconds per step from differences of long and short runs within a repetition.

    The best comes from the best runs, because the best difference would reward a slow short run.
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
    """Return the floor of the timed steps, from their own routing and mean context."""
    whole = jnp.asarray([[*p, *a] for p, a in zip(prompts, answers, strict=True)])
    scores = np.asarray(router_scores(target, whole))[:, :, PROMPT_LENGTH + lengths.short :]
    distinct = mean_distinct_experts(scores, target.config.num_experts_per_tok)
    context = PROMPT_LENGTH + (lengths.short + lengths.long) / 2
    return byte_floor(target, batch=len(prompts), context=context, distinct_experts=distinct)
