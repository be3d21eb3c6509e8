"""Choice of k for the next round: fixed, by batch size, or by measured goodput.

With coupled sampling no answer depends on k, because a draft only guesses the target's choice.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.choice import ProgramChoice, largest_replica_batch
from eagle3_jax.engine.programs.program import Program
from eagle3_jax.engine.sequence import Sequence

SAMPLES = 9
"""Number of remembered samples. The lower quartile is used, because disturbances only make rounds
longer."""


class StepCosts:
    """Seconds of one round of one batch shape, by k."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}

    def observe(self, drafts: int, seconds: float) -> None:
        """Record one measured round, except a k's first, which pays for memory it touches first."""
        if drafts in self._samples:
            self._samples[drafts].append(seconds)
        else:
            self._samples[drafts] = deque(maxlen=SAMPLES)

    def count(self, drafts: int) -> int:
        """Return the number of remembered measurements."""
        return len(self._samples.get(drafts, ()))

    def seconds(self, drafts: int) -> float:
        """Return the lower quartile; raise KeyError for a k that was never run."""
        samples = sorted(self._samples[drafts])
        return samples[len(samples) // 4]


HALF_LIFE = 512
"""Number of drafts at a position after which an older observation counts half."""
DECAY = 0.5 ** (1 / HALF_LIFE)
PRIOR_TRIES, PRIOR_RATE = 4.0, 0.8
"""Prior before any observation, high enough that drafting is tried."""


class RecentAcceptance:
    """P(draft i is accepted | it was verified and all before it were), for i = 1..k."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self._tried = [PRIOR_TRIES] * num_speculative_tokens
        self._accepted = [PRIOR_TRIES * PRIOR_RATE] * num_speculative_tokens

    def observe(self, verified: int, accepted: int) -> None:
        """Record one verify of one sequence: of `verified` drafts the first `accepted` held."""
        for position in range(min(accepted + 1, verified)):
            self._tried[position] = self._tried[position] * DECAY + 1
            self._accepted[position] = self._accepted[position] * DECAY + (position < accepted)

    @property
    def rates(self) -> list[float]:
        """Conditional acceptance probabilities by position."""
        return [a / t for a, t in zip(self._accepted, self._tried, strict=True)]

    def expected_tokens(self) -> list[float]:
        """Return the mean tokens, bonus included, that rounds of 0..k drafts commit."""
        return list(accumulate(accumulate(self.rates, mul, initial=1.0)))


MARGIN = 0.015
"""Relative gain that another k must promise; less is noise and would make equals alternate."""
DECIDE_EVERY = 8
TRIAL_ROUNDS = 5
ENOUGH_SAMPLES = 2
TRIAL_BUDGET = 0.008
"""Fraction of the goodput that all trials may cost. A close k is tried often, a much worse one
rarely, so that the measurements stay current."""
LEAST_BETWEEN_TRIALS = 40


class ChosenK(NamedTuple):
    """k of one round, returned with the round's seconds.

    `program` is the round's program apart from its widths; None if k is fixed.
    """

    drafts: int
    program: Program | None = None


class FixedChooser:
    """Chooses a constant k, or the table's k for the batch size."""

    def __init__(self, config: EngineConfig):
        counts = config.k_by_batch_size or (config.draft_counts * config.max_num_seqs)
        self._choices = [ChosenK(k) for k in counts]

    def choose(self, members: Rows[Sequence]) -> ChosenK:
        """Return k of the next round of these sequences."""
        return self._choices[largest_replica_batch(members) - 1]

    def observe_time(self, choice: ChosenK, seconds: float) -> None:
        """Ignore the time."""

    def observe_acceptance(self, verified: int, accepted: int) -> None:
        """Ignore the acceptance."""


@dataclass
class Load:
    """Measurements of one program's rounds, over all widths.

    `best` is the k in use. `running` is the k of the next `planned` rounds, another one in a trial.
    `rounds` counts rounds; `last_trial` is the round of each k's last trial.
    """

    best: int
    running: int
    planned: int = 0
    rounds: int = 0
    last_trial: dict[int, int] = field(default_factory=dict)
    costs: StepCosts = field(default_factory=StepCosts)

    def schedule(self, drafts: int, rounds: int) -> None:
        """Draft this many tokens in the next rounds."""
        self.running, self.planned = drafts, rounds
        self.rounds += rounds

    def try_out(self, drafts: int) -> None:
        """Run the next rounds as a trial."""
        self.last_trial[drafts] = self.rounds
        self.schedule(drafts, TRIAL_ROUNDS)

    def due(self, goodput: Mapping[int, float]) -> int | None:
        """Return a k other than the best that is due for a trial, if any."""
        for drafts in goodput:
            behind = 1 - goodput[drafts] / goodput[self.best]
            wait = TRIAL_ROUNDS * behind * (len(goodput) - 1) / TRIAL_BUDGET
            since = self.rounds - self.last_trial.get(drafts, 0)
            if drafts != self.best and since >= max(wait, LEAST_BETWEEN_TRIALS):
                return drafts
        return None


class GoodputChooser:
    """Chooses the k with the highest goodput: expected tokens of a round over its measured seconds.

    A program's first rounds try every k. The best k is then kept until another is better by MARGIN,
    and the others are tried from time to time. Nothing compiles, because every k has its programs.
    """

    def __init__(self, config: EngineConfig):
        self._most, self._programs = config.num_speculative_tokens, ProgramChoice(config)
        self._acceptance = RecentAcceptance(self._most)
        self._loads: dict[Program | None, Load] = {}

    def choose(self, members: Rows[Sequence]) -> ChosenK:
        """Return k of the next round of these sequences, at most the largest wanted k."""
        program = self._programs.program_for(members)
        limit = max(member.wanted_drafts(self._most) for member in members)
        load = self._loads.setdefault(program, Load(self._most, self._most))
        if load.planned == 0:
            self._plan(load, members, range(limit + 1))
        load.planned -= 1
        return ChosenK(min(load.running, limit), program)

    def observe_time(self, choice: ChosenK, seconds: float) -> None:
        """Record what a round cost."""
        self._loads[choice.program].costs.observe(choice.drafts, seconds)

    def observe_acceptance(self, verified: int, accepted: int) -> None:
        """Record how many of a sequence's drafts were accepted in one round."""
        self._acceptance.observe(verified, accepted)

    def _plan(self, load: Load, members: Rows[Sequence], counts: range) -> None:
        """Decide the k of the next few rounds."""
        unknown = [k for k in counts if load.costs.count(k) < ENOUGH_SAMPLES]
        if unknown:
            # The widest first, because it tells most about acceptance.
            load.try_out(unknown[-1])
            return
        goodput = self._goodput(load, members, counts)
        load.best = best_k(goodput, load.best)
        tried = load.due(goodput)
        if tried is None:
            load.schedule(load.best, DECIDE_EVERY)
        else:
            load.try_out(tried)

    def _goodput(self, load: Load, members: Rows[Sequence], counts: range) -> dict[int, float]:
        """Return tokens per second of each k."""
        tokens = self._acceptance.expected_tokens()
        return {
            k: sum(tokens[member.wanted_drafts(k)] for member in members) / load.costs.seconds(k)
            for k in counts
        }


def best_k(goodput: Mapping[int, float], current: int) -> int:
    """Return the k with the highest goodput, or the current one unless beaten by MARGIN."""
    best = max(goodput, key=lambda k: goodput[k])
    beaten = current not in goodput or goodput[best] > goodput[current] * (1 + MARGIN)
    return best if beaten else current
