"""Coupled acceptance, measured and as theory computes it from the distributions.

On the embedded pair's held-out prompts at temperature 1, and on synthetic distributions, p and q
of every draft are recorded. The share of drafts accepted is held against the mean of the
probability that follows from p and q, which is exact; shown too are the bound, the peers' greedy
draft and the optimum. Every position's noise is fresh, so the standard error follows from the same
numbers.
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from eagle3_jax.engine import Request
from eagle3_jax.engine.programs.packing import pack_options
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.sampling.sampler import sample
from serve.bench.acceptance.probabilities import Acceptance
from serve.bench.acceptance.recorded_rounds import BATCH, RecordedRounds
from serve.bench.common.command import finish, given_pair
from serve.bench.common.conditions import conditions
from serve.bench.common.flags import add_pair_flags, add_shared, check_drafting
from serve.bench.common.held_out import HeldOutPrompt, held_out
from serve.demo.corpus import CATEGORIES
from serve.pair.loading import LoadedPair

HEADINGS = ("", "drafts", "measured", "computed", "std. error", "off by", "(1-TV)/(1+TV)")
HEADINGS += ("greedy draft", "1-TV", "entropy, nats")
ANSWER_TOKENS = 160
STANDARD_ERRORS = 3.0
UNCERTAIN = 0.5
"""Nats of mean target entropy from which coupling has to beat a greedy draft."""
SYNTHETIC_GAPS = (0.3, 0.7, 1.2)
"""Noise on the draft's logits; the target's have a deviation of 2."""
SYNTHETIC_VOCAB, SYNTHETIC_PAIRS, SYNTHETIC_DRAWS = 2000, 30, 400


@dataclass(frozen=True)
class AcceptanceRow:
    """One category. measured: share of `drafts` accepted; computed: its value from p and q.

    weakest_margin: of all drafts, the least that the computed value is above its bound.
    """

    category: str
    drafts: int
    measured: float
    standard_error: float
    computed: Acceptance
    weakest_margin: float

    @property
    def failures(self) -> list[str]:
        """What does not hold here."""
        theory, found = self.computed, []
        if abs(self.measured - theory.coupled) > STANDARD_ERRORS * self.standard_error:
            found.append(f"{self.category}: measured {self.measured:.4f} is not what p and q give")
        below = theory.bound - STANDARD_ERRORS * self.standard_error
        if self.weakest_margin < -1e-9 or self.measured < below:
            found.append(f"{self.category}: below (1-TV)/(1+TV)")
        best_of_peers = min(self.measured, theory.coupled)
        if theory.entropy > UNCERTAIN and best_of_peers <= theory.greedy_draft:
            found.append(f"{self.category}: not above the greedy draft")
        return found


@dataclass(frozen=True)
class AcceptanceRecord:
    """What `eagle3-bench acceptance` found."""

    num_speculative_tokens: int
    temperature: float
    rows: list[AcceptanceRow]
    failures: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether theory and measurement agree everywhere."""
        return not self.failures


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The pair, k and how many prompts."""
    parser.set_defaults(check=check_drafting)
    add_pair_flags(parser)
    add_shared(parser, "--num-speculative-tokens")
    add_shared(parser, "--prompts", default=16)
    add_shared(parser, "--rejection-sample-method")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Compares measured acceptance with theory; status 1 where they differ."""
    found, pair = conditions(), given_pair(flags)
    result = check_acceptance(pair, held_out(pair.tokenizer, flags.prompts), flags.k)
    print_result(console, result)
    return finish(flags, "acceptance", found, result)


def print_result(console: Console, record: AcceptanceRecord) -> None:
    """One line a category, then the verdict."""
    title = f"Drafts accepted, k={record.num_speculative_tokens}, T={record.temperature:g}"
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left")
    for row in record.rows:
        theory, error = row.computed, row.standard_error
        off = f"{(row.measured - theory.coupled) / error:+.1f}" if error else "0"
        values = (row.measured, theory.coupled, error)
        others = (theory.bound, theory.greedy_draft, theory.optimum)
        cells = [*(f"{v:.4f}" for v in values), off, *(f"{v:.4f}" for v in others)]
        table.add_row(row.category, f"{row.drafts}", *cells, f"{theory.entropy:.2f}")
    console.print(table)
    for failure in record.failures:
        console.print(f"FAILED {failure}")
    if record.holds:
        console.print(
            "measured is within 3 standard errors of computed and nowhere below (1-TV)/(1+TV); "
            f"above the greedy draft wherever the entropy is above {UNCERTAIN:g} nat"
        )


def check_acceptance(
    pair: LoadedPair, prompts: Sequence[HeldOutPrompt], k: int, temperature: float = 1.0
) -> AcceptanceRecord:
    """Rows of the pair by category, then of synthetic distributions."""
    rows = [*pair_rows(pair, prompts, k, temperature), *synthetic_rows(temperature)]
    return AcceptanceRecord(k, temperature, rows, [f for row in rows for f in row.failures])


def pair_rows(
    pair: LoadedPair, prompts: Sequence[HeldOutPrompt], k: int, temperature: float
) -> list[AcceptanceRow]:
    """Answers to all prompts, prompt i with seed i."""
    longest = max(len(prompt.token_ids) for prompt in prompts)
    recorder = RecordedRounds(pair, k, longest + ANSWER_TOKENS)
    sampling = SamplingParams(temperature=temperature, max_tokens=ANSWER_TOKENS)
    rows = []
    for category in CATEGORIES:
        chosen = [(i, p.token_ids) for i, p in enumerate(prompts) if p.category == category]
        drafts: list[tuple[Acceptance, bool]] = []
        for start in range(0, len(chosen), BATCH):
            batch = chosen[start : start + BATCH]
            options = [replace(sampling, seed=i) for i, _ in batch]
            recorded = recorder.drafts([ids for _, ids in batch], options)
            drafts += [(Acceptance.of(draft.p, draft.q), draft.accepted) for draft in recorded]
        rows.append(summarize(category, drafts))
    return rows


def synthetic_rows(temperature: float, seed: int = 0) -> list[AcceptanceRow]:
    """Random distributions, and drafts at several distances: the engine's sampler draws."""
    rng, rows = np.random.default_rng(seed), []
    for gap in SYNTHETIC_GAPS:
        drafts: list[tuple[Acceptance, bool]] = []
        for index in range(SYNTHETIC_PAIRS):
            target = rng.normal(scale=2.0, size=SYNTHETIC_VOCAB)
            draft = target + rng.normal(scale=gap, size=SYNTHETIC_VOCAB)
            theory = Acceptance.of(*(np.exp(x / temperature) for x in (target, draft)))
            drafts += [(theory, bool(same)) for same in _draws(target, draft, temperature, index)]
        rows.append(summarize(f"synthetic, gap {gap:g}", drafts))
    return rows


def summarize(category: str, drafts: Iterable[tuple[Acceptance, bool]]) -> AcceptanceRow:
    """The row of these drafts: what theory says of each, and whether it was accepted."""
    theory, accepted = (list(column) for column in zip(*drafts, strict=True))
    variance = sum(one.coupled * (1 - one.coupled) for one in theory)
    return AcceptanceRow(
        category,
        len(theory),
        measured=float(np.mean(accepted)),
        standard_error=math.sqrt(max(variance, 0.0)) / len(theory),
        computed=Acceptance.mean(theory),
        weakest_margin=min(one.coupled - one.bound for one in theory),
    )


def _draws(target: np.ndarray, draft: np.ndarray, temperature: float, seed: int) -> np.ndarray:
    """Whether target and draft choose the same token, at each of some positions."""
    params = SamplingParams(temperature=temperature, seed=seed)
    options = pack_options(EngineSequence.of(Request("", [0], params), (), 2, None))
    positions = jnp.arange(SYNTHETIC_DRAWS)[None]
    chosen = [_sample(jnp.asarray(x, jnp.float32), positions, options) for x in (target, draft)]
    return np.asarray(chosen[0] == chosen[1])[0]


@jax.jit
def _sample(logits: jax.Array, positions: jax.Array, options: SamplingRows) -> jax.Array:
    rows = jnp.broadcast_to(logits, (1, positions.shape[1], logits.shape[0]))
    return sample(rows, positions, options)
