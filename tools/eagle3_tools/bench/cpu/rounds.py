"""The speculative round against what its phases predict, and the host's share of it."""

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

    fused: the round's program, bare. phases: propose and verify as two programs that take turns;
    propose, verify: each in a chain of its own, its weights warm in cache. None for plain decoding.
    engine: Engine.step() in its steady state.
    """

    fused: Spread
    engine: Spread
    phases: Spread | None = None
    propose: Spread | None = None
    verify: Spread | None = None

    @property
    def host_share(self) -> float:
        """The part of the engine's round that is not the bare program's."""
        return 1 - self.fused.median / self.engine.median


@dataclass(frozen=True)
class RoundResult:
    """One k and batch size.

    prediction_share: phases over the engine's round; 1 when the round adds nothing to its phases.
    warm_prediction_share: the same with propose + verify, each timed in a chain of its own.
    break_even: the tokens a round must give its answer to pay: phases / decode.
    answers: what it comes to, in tokens over time.
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
        """Seconds of a step once all sequences run; each dispatches one round and reads one."""
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
    """All programs of one k and batch, and the times they took so far."""

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
        """Times everything once."""
        times = {name: measure() for name, measure in self._phases.items()}
        times["engine"] = self._engine.time_step(self._rounds)
        for name, seconds in times.items():
            self._samples.setdefault(name, []).append(seconds)
        self.answers.rates.append(self.answers.tokens_per_s())

    def times(self) -> RoundTimes:
        """What was measured; the first sample does not count."""
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
    """A result for every k in `accept`, the batch being `prompts`; all is timed in turn.

    to_answer: prompts that are answered to their ends, as many at a time.
    """
    programs = {k: RoundPrograms(pair, k, prompts, rounds, to_answer) for k in (0, *accept)}
    for _ in range(1 + repetitions):
        for each in programs.values():
            each.sample()
    plain = programs[0]
    speeds = {k: AnswerSpeed.of(each.answers, plain.answers) for k, each in programs.items()}
    return [
        round_result(k, len(prompts), rounds, programs[k].times(), plain.times(), row, speeds[k])
        for k, row in accept.items()
    ]


def round_result(
    k: int,
    batch: int,
    rounds: int,
    times: RoundTimes,
    plain: RoundTimes,
    accept: AcceptRow,
    answers: AnswerSpeed,
) -> RoundResult:
    """The ratios of medians."""
    assert times.phases and times.propose and times.verify, "a speculative round has phases"
    phases, warm = times.phases.median, times.propose.median + times.verify.median
    return RoundResult(
        num_speculative_tokens=k,
        batch=batch,
        rounds=rounds,
        times=times,
        plain=plain,
        accept_length=accept.accept_length,
        accept_per_position=accept.per_position,
        prediction_share=phases / times.engine.median,
        warm_prediction_share=warm / times.engine.median,
        break_even=phases / plain.fused.median,
        host_share=times.host_share,
        plain_host_share=plain.host_share,
        answers=answers,
    )
