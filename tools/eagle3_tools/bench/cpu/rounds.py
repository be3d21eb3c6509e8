"""Compare the speculative round with the sum of its phases, and measure host overhead."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_tools.bench.common.accept_length import AcceptRow
from eagle3_tools.bench.common.spread import Spread
from eagle3_tools.bench.cpu.answers import AnswerRun, AnswerSpeed
from eagle3_tools.bench.cpu.phases import ENDLESS, PhaseChains
from serve.pair.loading import LoadedPair

CONTEXT = 512


@dataclass(frozen=True)
class RoundTimes:
    """Seconds of a round of the whole batch.

    `fused` is the round's program alone, `engine` is Engine.step() in steady state. `phases` is
    propose and verify as two alternating programs; `propose` and `verify` are each in their own
    chain, with weights in cache. The last three are None for plain decoding.
    """

    fused: Spread
    engine: Spread
    phases: Spread | None = None
    propose: Spread | None = None
    verify: Spread | None = None

    @property
    def host_share(self) -> float:
        """The fraction of the engine's round outside the round's program."""
        return 1 - self.fused.median / self.engine.median


@dataclass(frozen=True)
class RoundResult:
    """Result of one k and batch size.

    `prediction_share` is `phases` over the engine's round: 1 if the round adds nothing to its
    phases. `warm_prediction_share` is the same for propose + verify. `break_even` is the number of
    tokens that a round must add to its answer to pay off: phases / decode.
    """

    num_speculative_tokens: int
    batch: int
    rounds: int
    times: RoundTimes
    plain: RoundTimes
    accept_length: float
    accept_per_position: tuple[float, ...]
    prediction_share: float
    warm_prediction_share: float
    break_even: float
    host_share: float
    plain_host_share: float
    answers: AnswerSpeed


class SteadyEngine:
    """An engine whose sequences never end, stepped a fixed number of rounds."""

    def __init__(
        self, pair: LoadedPair, config: EngineConfig, prompts: Sequence[Sequence[int]]
    ) -> None:
        self._engine = Engine(pair.target, pair.draft, config, eos_token_ids=())
        self._engine.warmup()
        self._requests = [Request(f"{i}", list(p), ENDLESS) for i, p in enumerate(prompts)]

    def time_step(self, rounds: int) -> float:
        """Return the seconds of a step while all sequences run: one dispatch and one read each."""
        for request in self._requests:
            self._engine.add(request)
        begun: set[str] = set()
        while len(begun) < len(self._requests):
            begun |= {output.request_id for output in self._engine.step()}
        start = time.perf_counter()
        for _ in range(rounds):
            self._engine.step()
        elapsed = time.perf_counter() - start
        for request in self._requests:
            self._engine.cancel(request.request_id)
        while self._engine.has_work:
            self._engine.step()
        return elapsed / rounds


class RoundPrograms:
    """All programs of one k and batch, and their times so far."""

    def __init__(
        self,
        pair: LoadedPair,
        k: int,
        prompts: Sequence[Sequence[int]],
        rounds: int,
        to_answer: Sequence[Sequence[int]],
    ) -> None:
        pair, batch = pair if k else replace(pair, draft=None), len(prompts)
        config = EngineConfig(k, CONTEXT, batch, batch_buckets=(batch,))
        self._rounds = rounds
        self._engine = SteadyEngine(pair, config, prompts)
        self._chains = PhaseChains(pair.target, pair.draft, config, prompts, rounds)
        self.answers = AnswerRun(pair, config, to_answer)
        self._phases = {"fused": self._chains.time_round}
        if k:
            self._phases |= {
                "phases": self._chains.time_phases,
                "propose": self._chains.time_propose,
                "verify": self._chains.time_verify,
            }
        self._samples: dict[str, list[float]] = {}

    def sample(self) -> None:
        times = {name: measure() for name, measure in self._phases.items()}
        times["engine"] = self._engine.time_step(self._rounds)
        for name, seconds in times.items():
            self._samples.setdefault(name, []).append(seconds)
        self.answers.rates.append(self.answers.tokens_per_s())

    def times(self) -> RoundTimes:
        """Return the measured times without the first sample."""
        return RoundTimes(**{name: Spread.of(s[1:]) for name, s in self._samples.items()})


def compare_rounds(
    pair: LoadedPair,
    prompts: Sequence[Sequence[int]],
    to_answer: Sequence[Sequence[int]],
    accept: Mapping[int, AcceptRow],
    *,
    repetitions: int,
    rounds: int = 24,
) -> list[RoundResult]:
    """Return a result for every k in `accept` with the batch `prompts`, all timed in turn.

    Prompts in `to_answer` are answered to their ends, as many at a time.
    """
    programs = {k: RoundPrograms(pair, k, prompts, rounds, to_answer) for k in (0, *accept)}
    for _ in range(1 + repetitions):
        for each in programs.values():
            each.sample()
    plain, results = programs[0], []
    for k, row in accept.items():
        times, slow = programs[k].times(), plain.times()
        assert times.phases and times.propose and times.verify, "a speculative round has phases"
        phases, warm = times.phases.median, times.propose.median + times.verify.median
        results.append(
            RoundResult(
                num_speculative_tokens=k,
                batch=len(prompts),
                rounds=rounds,
                times=times,
                plain=slow,
                accept_length=row.accept_length,
                accept_per_position=row.per_position,
                prediction_share=phases / times.engine.median,
                warm_prediction_share=warm / times.engine.median,
                break_even=phases / slow.fused.median,
                host_share=times.host_share,
                plain_host_share=slow.host_share,
                answers=AnswerSpeed.of(programs[k].answers, plain.answers),
            )
        )
    return results
