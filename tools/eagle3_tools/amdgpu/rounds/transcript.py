"""Record rounds of the small pair's engine, and compare two records.

Every choice of the pair has a clear margin, so tokens and accepted drafts must be equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from eagle3_jax.engine import Engine
from eagle3_jax.speculative.state import DecodeState
from eagle3_tools.amdgpu.rounds.small_pair import ENGINE, SmallPair, requests


@dataclass(frozen=True)
class Held:
    """A state on the host, and a round's slots [batch] and page table [batch, pages_per_seq]."""

    state: DecodeState
    slots: np.ndarray
    table: np.ndarray


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


def token_problems(expected: Transcript, found: Transcript) -> list[str]:
    """Describe each request's first difference of tokens or counts, for equally many rounds."""
    problems = []
    for row, (ours, theirs) in enumerate(zip(expected.first, found.first, strict=True)):
        if ours != theirs:
            problems.append(f"request {row}: its prompt gives token {theirs}, expected {ours}")
            continue
        rounds = zip(expected.reports[:, row], found.reports[:, row], strict=True)
        for number, (wanted, got) in enumerate(rounds):
            committed = wanted[-2]
            known = [*range(committed), -2, -1]
            if (wanted[known] != got[known]).any():
                problems.append(f"request {row}: round {number} reports {got}, expected {wanted}")
                break
    return problems


def largest_state_error(expected: Transcript, found: Transcript) -> float:
    """Return the error of KV rows and features before each round and after the last."""
    pairs: Any = zip(expected.held, found.held, strict=True)
    return max(max(state_errors(ours, theirs).values()) for ours, theirs in pairs)


def state_errors(expected: Held, found: Held) -> dict[str, float]:
    """Return |found - expected| / |expected| (2-norms) by name, for data the next round reads.

    This is the target's KV of all committed rows, the draft's KV of rows that are not rewritten
    later, and the features of the rows verified last. The states must follow equal reports.
    """
    pairs = zip(_read_next(expected), _read_next(found), strict=True)
    return {name: float(np.linalg.norm(b - a) / np.linalg.norm(a)) for (name, a), (_, b) in pairs}


def _read_next(held: Held) -> Iterator[tuple[str, np.ndarray]]:
    rows, state = held.state.slots, held.state
    active = ~np.asarray(rows.finished)[held.slots]
    slots, table = held.slots[active], held.table[active]
    lengths, accepted = rows.seq_lens[slots], rows.num_accepted[slots]
    models = (
        ("target", state.target_pools, lengths),
        ("draft", state.draft_pools, lengths - accepted - 1),
    )
    for model, pools, counts in models:
        for number, pool in enumerate(pools):
            own = [_rows(pool, pages, count) for pages, count in zip(table, counts, strict=True)]
            yield f"{model} pool {number}", np.concatenate(own)
    features = np.asarray(rows.aux_hidden, np.float32)[slots]
    yield "features", features[np.arange(features.shape[1]) <= accepted[:, None]]


def _rows(pool: Any, pages: np.ndarray, count: int) -> np.ndarray:
    """Return the first rows of a sequence with these pages, float32 [count, *row]."""
    return np.asarray(pool[pages], np.float32).reshape(-1, *pool.shape[2:])[:count]
