"""Record rounds of the small pair's engine, and compare records under the tie rule.

By the tie rule of docs/architecture.md a first difference of tokens must be a tie of the target. A
draft token that only one run accepts, at equal tokens, must be a tie of the draft.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from eagle3_jax.engine import Engine, Request
from eagle3_jax.sampling.sampler import gumbel, process_logits
from eagle3_jax.speculative.method import Variant
from eagle3_jax.speculative.propose import propose
from eagle3_jax.speculative.round_state import read_batch
from eagle3_tools.amdgpu.rounds.round_state import Held
from eagle3_tools.amdgpu.rounds.small_pair import ENGINE, SmallPair, requests
from eagle3_tools.bench.equality.ties import SCORE_TOLERANCE, Scorer, describe

Kind = Literal["equal", "tie", "different"]


@dataclass(frozen=True)
class Transcript:
    """Outputs of an engine's programs; requests are rows in their order.

    `first` is int32 [requests]: tokens sampled by prefills. `reports` is int32 [rounds, requests,
    k+3]: k+1 tokens, number committed, drafts verified. `held` has the states before each round and
    one after the last with that round's slots and table.
    """

    first: np.ndarray
    reports: np.ndarray
    held: tuple[Held, ...]

    @property
    def accepted(self) -> np.ndarray:
        """Draft tokens that each round accepted, [rounds, requests]."""
        return self.reports[..., -2] - 1

    def answer(self, row: int) -> list[int]:
        """Return all tokens committed for a request."""
        committed = (report[: report[-2]].tolist() for report in self.reports[:, row])
        return [int(self.first[row]), *(token for tokens in committed for token in tokens)]


@dataclass(frozen=True)
class Verdict:
    """Comparison of a request's tokens and accept counts, with the reason for a difference."""

    request_id: str
    kind: Kind
    reason: str = ""


def play(engine: Engine, rounds: int) -> Transcript:
    """Prefill the small pair's requests, run `rounds` rounds with all of them, and record."""
    asked, runner = requests(rounds), engine._runner
    first: list[int] = []
    reports: list[np.ndarray] = []
    held: list[Held] = []
    run = runner._run

    def written_down(program: Any, *inputs: Any) -> tuple[Any, ...]:
        if program.batch is not None:
            held.append(Held(jax.device_get(runner.executor.state), *inputs))
        outputs = run(program, *inputs)
        rows = np.asarray(outputs[0])
        if program.batch is not None:
            reports.append(rows[: len(asked)])
        elif rows[0, 1]:
            first.append(rows[0, 0])
        return outputs

    runner._run = written_down
    for request in asked:
        engine.add(request)
    while len(reports) < rounds:
        engine.step()
    if len(first) != len(asked):
        raise ValueError(f"expected {len(asked)} prompts before the first round; ran {len(first)}")
    held.append(replace(held[-1], state=jax.device_get(runner.executor.state)))
    return Transcript(np.array(first), np.stack(reports), tuple(held))


def cpu_transcript(pair: SmallPair, rounds: int) -> Transcript:
    """Record the engine on this CPU."""
    return play(Engine(pair.target, pair.draft, ENGINE), rounds)


def compare(pair: SmallPair, expected: Transcript, found: Transcript) -> list[Verdict]:
    """Return a verdict for each request of two transcripts with equally many rounds."""
    asked = requests(len(expected.reports))
    return [_compare(pair, request, row, expected, found) for row, request in enumerate(asked)]


def _compare(
    pair: SmallPair, request: Request, row: int, expected: Transcript, found: Transcript
) -> Verdict:
    ours, theirs = expected.answer(row), found.answer(row)
    # Equal tokens may be spread over rounds differently.
    common = min(len(ours), len(theirs))
    scorer = Scorer(pair.target, ENGINE.max_model_len)
    difference = scorer.explain(
        request.request_id,
        request.prompt_ids,
        request.sampling,
        ours[:common],
        theirs[:common],
    )
    if difference:
        kind = "tie" if difference.cause else "different"
        return Verdict(request.request_id, kind, describe(difference))
    counts = expected.reports[:, row, -2:], found.reports[:, row, -2:]
    unequal = np.flatnonzero((counts[0] != counts[1]).any(axis=1))
    if not len(unequal):
        return Verdict(request.request_id, "equal")
    return _compare_counts(pair, request, row, int(unequal[0]), expected, found)


def _compare_counts(
    pair: SmallPair,
    request: Request,
    row: int,
    number: int,
    expected: Transcript,
    found: Transcript,
) -> Verdict:
    """Compare the first round whose counts differ, at equal tokens before it."""
    accepted = expected.accepted[number, row], found.accepted[number, row]
    verified = expected.reports[number, row, -1], found.reports[number, row, -1]
    said = f"{request.request_id}: round {number} accepts {accepted[0]} or {accepted[1]}"
    if verified[0] != verified[1]:
        return Verdict(request.request_id, "different", f"{said} of {verified[0]} or {verified[1]}")
    margin = draft_margins(pair, expected.held[number])[row, min(accepted)]
    kind = "tie" if margin <= SCORE_TOLERANCE else "different"
    return Verdict(request.request_id, kind, f"{said}, draft scores {margin:.1e} apart")


def draft_margins(pair: SmallPair, held: Held) -> np.ndarray:
    """Return each draft score's margin over the next one, noise included: float32 [batch, k]."""
    draft, logits = nnx.clone(pair.draft), list[jax.Array]()

    def kept(state: jax.Array) -> jax.Array:
        logits.append(pair.draft.logits(state))
        return logits[-1]

    draft.logits = kept
    slots, table = jnp.asarray(held.slots), jnp.asarray(held.table)
    before = jax.tree.map(jnp.asarray, held.state)
    batch = read_batch(before, slots, table, Variant.LEAN)
    rows, k = batch.rows, ENGINE.num_speculative_tokens
    propose(draft, batch, before.draft_pools, k)
    scores = jnp.concatenate(logits, axis=1)
    positions = rows.seq_lens[:, None] + 1 + jnp.arange(k)
    noise = gumbel(rows.options.seed[:, None], positions, jnp.arange(scores.shape[-1]))
    sampled = rows.options.temperature[:, None, None] > 0
    noisy = process_logits(scores, positions, rows.options) + jnp.where(sampled, noise, 0)
    best = jax.lax.top_k(noisy, 2)[0]
    return np.asarray(best[..., 0] - best[..., 1])
