"""Choice of k for the next round, and of how many drafts each sequence verifies.

It is fixed, by batch size, or by measured goodput. With coupled sampling no answer depends on k,
because a draft only guesses the target's choice.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import mul
from typing import NamedTuple
from weakref import WeakKeyDictionary

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.choice import ProgramChoice, largest_replica_batch
from eagle3_jax.engine.programs.program import Program
from eagle3_jax.engine.sequence import Sequence

SAMPLES = 9
"""Number of remembered samples. The lower quartile is used, because disturbances only make rounds
longer."""


class Plan(NamedTuple):
    """A way to run a round: `drafts` is k. `by_row` lets each sequence verify its own number."""

    drafts: int
    by_row: bool = False


class StepCosts:
    """Seconds of one round of one batch shape, by plan."""

    def __init__(self) -> None:
        self._samples: dict[Plan, deque[float]] = {}

    def observe(self, plan: Plan, seconds: float) -> None:
        """Record one measured round, except the first, which pays for memory it touches first."""
        if plan in self._samples:
            self._samples[plan].append(seconds)
        else:
            self._samples[plan] = deque(maxlen=SAMPLES)

    def count(self, plan: Plan) -> int:
        return len(self._samples.get(plan, ()))

    def seconds(self, plan: Plan) -> float:
        """Return the lower quartile; raise KeyError for a plan that was never run."""
        samples = sorted(self._samples[plan])
        return samples[len(samples) // 4]


HALF_LIFE = 512
"""Number of drafts at a position after which an older observation counts half."""
OWN_HALF_LIFE = 64
"""The same for the drafts of one sequence."""
PRIOR_TRIES, PRIOR_RATE = 4.0, 0.8
"""Prior before any observation, high enough that drafting is tried. A sequence's prior is the rate
of all sequences."""


class RecentAcceptance:
    """P(draft i is accepted | it was verified and all before it were), for i = 1..k.

    The acceptance of one sequence has that of all, `overall`, as its prior.
    """

    def __init__(
        self, num_speculative_tokens: int, overall: "RecentAcceptance | None" = None
    ) -> None:
        self._tried, self._accepted = ([0.0] * num_speculative_tokens for _ in range(2))
        self._overall = overall
        self._decay = 0.5 ** (1 / (OWN_HALF_LIFE if overall else HALF_LIFE))

    def observe(self, verified: int, accepted: int) -> None:
        """Record one verify of one sequence: of `verified` drafts the first `accepted` held."""
        for position in range(min(accepted + 1, verified)):
            self._tried[position] = self._tried[position] * self._decay + 1
            held = position < accepted
            self._accepted[position] = self._accepted[position] * self._decay + held

    @property
    def rates(self) -> list[float]:
        """Conditional acceptance probabilities by position."""
        prior = self._overall.rates if self._overall else [PRIOR_RATE] * len(self._tried)
        counts = zip(self._accepted, self._tried, prior, strict=True)
        return [(a + PRIOR_TRIES * p) / (t + PRIOR_TRIES) for a, t, p in counts]

    def expected_tokens(self) -> list[float]:
        """Return the mean tokens, bonus included, that rounds of 0..k drafts commit."""
        return list(accumulate(accumulate(self.rates, mul, initial=1.0)))


MARGIN = 0.015
"""Relative gain that another plan must promise; less is noise and would make equals alternate."""
DECIDE_EVERY = 8
TRIAL_ROUNDS = 5
ENOUGH_SAMPLES = 2
TRIAL_BUDGET = 0.008
"""Fraction of the goodput that all trials may cost. A close plan is tried often, a much worse one
rarely, so that the measurements stay current."""
LEAST_BETWEEN_TRIALS = 40
SHARE_OF_ROWS = 0.6
"""Share of what drafting adds to a round that goes when rows are not verified, the draft model's
steps being the rest. Of MI355X by the planner; a plan by row is measured before it is kept."""
LEAST_SAVED = 0.1
"""Share of the drafts that a plan by row must spare to be tried."""


class ChosenK(NamedTuple):
    """k of one round, returned with the round's seconds.

    `program` is the round's program apart from its widths; None if k is fixed. `limits` are the
    drafts that each sequence verifies; None for as many as it wants.
    """

    drafts: int
    program: Program | None = None
    limits: tuple[int, ...] | None = None

    @property
    def plan(self) -> Plan:
        return Plan(self.drafts, self.limits is not None)


class FixedChooser:
    """Chooses a constant k, or the table's k for the batch size."""

    def __init__(self, config: EngineConfig):
        counts = config.k_by_batch_size or (config.draft_counts * config.max_num_seqs)
        self._choices = [ChosenK(k) for k in counts]

    def choose(self, members: Rows[Sequence]) -> ChosenK:
        return self._choices[largest_replica_batch(members) - 1]

    def observe_time(self, choice: ChosenK, seconds: float) -> None:
        """Ignore the time."""

    def observe_acceptance(self, sequence: Sequence, verified: int, accepted: int) -> None:
        """Ignore the acceptance."""


@dataclass
class Load:
    """Measurements of one program's rounds, over all widths.

    `best` is the plan in use. `running` is that of the next `planned` rounds, another one in a
    trial. `rounds` counts rounds; `last_trial` is the round of each plan's last trial. `rate` is
    the goodput of the best k for all.
    """

    best: Plan
    running: Plan
    planned: int = 0
    rounds: int = 0
    rate: float = 0.0
    last_trial: dict[Plan, int] = field(default_factory=dict)
    costs: StepCosts = field(default_factory=StepCosts)

    def schedule(self, plan: Plan, rounds: int) -> None:
        self.running, self.planned = plan, rounds
        self.rounds += rounds

    def try_out(self, plan: Plan) -> None:
        self.last_trial[plan] = self.rounds
        self.schedule(plan, TRIAL_ROUNDS)

    def due(self, goodput: Mapping[Plan, float]) -> Plan | None:
        """Return a plan other than the best that is due for a trial, if any."""
        for plan in goodput:
            behind = 1 - goodput[plan] / goodput[self.best]
            wait = TRIAL_ROUNDS * behind * (len(goodput) - 1) / TRIAL_BUDGET
            since = self.rounds - self.last_trial.get(plan, 0)
            if plan != self.best and since >= max(wait, LEAST_BETWEEN_TRIALS):
                return plan
        return None


class GoodputChooser:
    """Chooses the k with the highest goodput: expected tokens of a round over its measured seconds.

    A program's first rounds try every k. The best k is then kept until another is better by MARGIN,
    and the others are tried from time to time. Nothing compiles, because every k has its programs.
    Where sequences differ in acceptance, plans by row compete too: rounds of k drafts in which a
    sequence verifies those that are worth their time.
    """

    def __init__(self, config: EngineConfig):
        self._most, self._programs = config.num_speculative_tokens, ProgramChoice(config)
        self._acceptance = RecentAcceptance(self._most)
        self._own: WeakKeyDictionary[Sequence, RecentAcceptance] = WeakKeyDictionary()
        self._loads: dict[Program | None, Load] = {}

    def choose(self, members: Rows[Sequence]) -> ChosenK:
        """Return k of the next round of these sequences, at most the largest wanted k."""
        program = self._programs.program_for(members)
        limit = max(member.wanted_drafts(self._most) for member in members)
        load = self._loads.setdefault(program, Load(Plan(self._most), Plan(self._most)))
        if load.planned == 0:
            self._plan(load, members, range(limit + 1))
        load.planned -= 1
        drafts, by_row = min(load.running.drafts, limit), load.running.by_row
        limits = self._limits(load, members, drafts) if by_row else None
        return ChosenK(drafts, program, limits)

    def observe_time(self, choice: ChosenK, seconds: float) -> None:
        self._loads[choice.program].costs.observe(choice.plan, seconds)

    def observe_acceptance(self, sequence: Sequence, verified: int, accepted: int) -> None:
        """Record how many of a sequence's drafts were accepted in one round."""
        self._acceptance.observe(verified, accepted)
        if sequence not in self._own:
            self._own[sequence] = RecentAcceptance(self._most, self._acceptance)
        self._own[sequence].observe(verified, accepted)

    def _plan(self, load: Load, members: Rows[Sequence], counts: range) -> None:
        """Decide how the next few rounds run."""
        unknown = [Plan(k) for k in counts if load.costs.count(Plan(k)) < ENOUGH_SAMPLES]
        if unknown:
            # The widest first, because it tells most about acceptance.
            load.try_out(unknown[-1])
            return
        wide = {Plan(k): [member.wanted_drafts(k) for member in members] for k in counts}
        goodput = self._goodput(load, members, wide)
        load.rate = max(goodput.values())
        by_row = {Plan(k, True): self._limits(load, members, k) for k in counts[1:]}
        for plan in [*by_row]:
            wanted, limits = wide[Plan(plan.drafts)], by_row[plan]
            if max(limits) < max(wanted) or sum(limits) > (1 - LEAST_SAVED) * sum(wanted):
                del by_row[plan]
        unknown = [plan for plan in by_row if load.costs.count(plan) < ENOUGH_SAMPLES]
        if unknown:
            load.try_out(unknown[-1])
            return
        goodput |= self._goodput(load, members, by_row)
        load.best = best_plan(goodput, load.best)
        tried = load.due(goodput)
        if tried is None:
            load.schedule(load.best, DECIDE_EVERY)
        else:
            load.try_out(tried)

    def _goodput(
        self, load: Load, members: Rows[Sequence], plans: Mapping[Plan, Rows[int]]
    ) -> dict[Plan, float]:
        """Return tokens per second of each plan, given the drafts that it verifies of each."""
        tokens = [self._expected_tokens(member) for member in members]
        return {
            plan: sum(own[k] for own, k in zip(tokens, verified, strict=True))
            / load.costs.seconds(plan)
            for plan, verified in plans.items()
        }

    def _limits(self, load: Load, members: Rows[Sequence], drafts: int) -> tuple[int, ...]:
        """Return how many of k drafts each sequence verifies: those that are worth their time.

        Trials of the other plans keep the acceptance of a sequence without drafts known.
        """
        wanted = [member.wanted_drafts(drafts) for member in members]
        added = load.costs.seconds(Plan(drafts)) - load.costs.seconds(Plan(0))
        least = SHARE_OF_ROWS * load.rate * added / max(sum(wanted), 1)
        tokens = map(self._expected_tokens, members)
        return tuple(
            sum(after - before >= least for before, after in pairwise(own[: most + 1]))
            for own, most in zip(tokens, wanted, strict=True)
        )

    def _expected_tokens(self, sequence: Sequence) -> list[float]:
        """Return the mean tokens that rounds of 0..k drafts commit to this sequence."""
        return self._own.get(sequence, self._acceptance).expected_tokens()


def best_plan(goodput: Mapping[Plan, float], current: Plan) -> Plan:
    """Return the plan of highest goodput, or the current one unless beaten by MARGIN."""
    best = max(goodput, key=lambda plan: goodput[plan])
    beaten = current not in goodput or goodput[best] > goodput[current] * (1 + MARGIN)
    return best if beaten else current
