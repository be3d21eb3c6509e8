"""Gain of speculation at one load: cost of plain steps and of rounds of every k."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagle3_tools.plan.data.gpus import Gpu
from eagle3_tools.plan.model.acceptance import ACCEPT_LENGTHS
from eagle3_tools.plan.model.draft_work import DraftShape, draft_work
from eagle3_tools.plan.model.kernels import Bound, seconds
from eagle3_tools.plan.model.target_work import StepRows, TargetShape, distinct_experts, target_work


@dataclass(frozen=True)
class Round:
    """One round of k drafts. k = 0 is the engine's: a plain step and the draft's first pass."""

    num_speculative_tokens: int
    accept_length: float
    draft_s: float
    verify_s: float

    @property
    def seconds(self) -> float:
        return self.draft_s + self.verify_s

    @property
    def draft_share(self) -> float:
        """Fraction of the round spent on drafting."""
        return self.draft_s / self.seconds


@dataclass(frozen=True)
class Load:
    """One concurrency under one limit. plain_s: a step without any draft. rounds: for k = 0, 1, …,
    empty without a draft. distinct_experts: read by a plain step in every layer."""

    concurrency: int
    bound: Bound
    devices: int
    plain_s: float
    distinct_experts: float
    rounds: tuple[Round, ...]

    @property
    def plain_tokens_per_s(self) -> float:
        """Tokens a second and GPU without a draft."""
        return self.concurrency / self.plain_s / self.devices

    @property
    def best(self) -> Round:
        return max(self.rounds, key=self.tokens_per_s)

    def tokens_per_s(self, one: Round) -> float:
        """Return tokens a second and GPU in rounds of this k."""
        return one.accept_length * self.concurrency / one.seconds / self.devices

    def verify_to_plain(self, one: Round) -> float:
        """Return the time of a verification in plain steps."""
        return one.verify_s / self.plain_s

    def break_even(self, one: Round) -> float:
        """Return the accept length at which a round is as fast as plain decoding."""
        return one.seconds / self.plain_s

    def speedup(self, one: Round) -> float:
        """Return tokens a second relative to plain steps."""
        return one.accept_length / self.break_even(one)


TOKEN_BYTES = 4
HISTORY_PASSES = 3
"""Reads and writes of the histories in a round: gathering a batch's rows, and comparing them."""


@dataclass(frozen=True)
class LookupCost:
    """Seconds that lookup adds to a round of one concurrency, and those of verification.

    history_bytes: of the batch. narrow_s, wide_s: verification of the draft model's chain, and of
    as many tokens as may be looked up.
    """

    concurrency: int
    history_bytes: int
    lookup_s: float
    narrow_s: float
    wide_s: float


@dataclass(frozen=True)
class Shapes:
    """A pair on one device, and its GPU."""

    target: TargetShape
    draft: DraftShape | None
    gpu: Gpu

    def load(self, rows: StepRows, bound: Bound, lengths: Sequence[float] = ACCEPT_LENGTHS) -> Load:
        """Compute costs of a batch. rows: of a plain step; lengths: accept length by k = 0, 1, …"""
        shape = self.target
        return Load(
            rows.batch,
            bound,
            shape.parallel.devices,
            seconds(target_work(shape, rows), self.gpu, bound),
            distinct_experts(shape.num_experts, shape.experts_per_token, rows.count),
            tuple(self._round(rows, bound, *pair) for pair in enumerate(lengths) if self.draft),
        )

    def lookup_cost(
        self, rows: StepRows, drafts: int, lookup_tokens: int, max_model_len: int
    ) -> LookupCost:
        """Compute the cost of lookup. rows: of a plain step."""
        history = rows.batch * max_model_len * TOKEN_BYTES
        narrow, wide = (
            seconds(target_work(self.target, replace(rows, q_len=width)), self.gpu, "tuned")
            for width in (max(drafts, 1) + 1, lookup_tokens + 1)
        )
        passes = HISTORY_PASSES * history / self.gpu.bandwidth
        return LookupCost(rows.batch, history, passes, narrow, wide)

    def _round(self, rows: StepRows, bound: Bound, drafts: int, accept_length: float) -> Round:
        assert self.draft is not None, "rounds need a draft"
        wide = StepRows(rows.batch, drafts + 1, rows.context, rows.kv_itemsize)
        return Round(
            drafts,
            accept_length,
            seconds(draft_work(self.draft, drafts, wide), self.gpu, bound),
            seconds(target_work(self.target, wide), self.gpu, bound),
        )
