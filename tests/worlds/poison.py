"""Write NaN to all rows that a program must not read, before every program of the engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.cache import SCRATCH_PAGE, KVPool, rows_and_scale, with_rows
from eagle3_jax.engine import Engine
from eagle3_jax.engine.sequence import Status
from eagle3_jax.speculative.state import DecodeState


class Poison:
    """Overwrites an engine's unused state before each program; `rows` counts rows written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
        self.rows = 0
        self._engine, runner = engine, engine._runner
        run = runner._run

        def run_spoiled(program: Any, *inputs: Any) -> tuple[Any, ...]:
            runner.executor.state = self._spoil(runner.executor.state)
            return run(program, *inputs)

        monkeypatch.setattr(runner, "_run", run_spoiled)

    def _spoil(self, state: DecodeState) -> DecodeState:
        """Return the state with NaN in every row that the next program must not read.

        These are scratch, uncommitted rows, and rejected, finished and padding rows of slots. In
        token histories all tokens become equal from those on that the next round writes.
        """
        slots = jax.device_get(state.slots)
        keep = np.arange(slots.verified_tokens.shape[1]) <= slots.num_accepted[:, None]
        live = np.zeros(len(keep), bool)
        written = np.zeros(len(keep), int)
        config = self._engine.config
        target_rows = np.zeros((config.pool_pages, config.page_tokens), bool)
        draft_rows = target_rows.copy()
        target_rows[SCRATCH_PAGE] = draft_rows[SCRATCH_PAGE] = True
        for sequence in self._engine._replicas.first.admitted:
            slot, first = sequence.slot, sequence.num_prefilled
            known, settled = first, first
            written[slot] = len(sequence.prefill_ids)
            if sequence.status is Status.RUNNING:
                live[slot] = True
                known = int(slots.seq_lens[slot])
                settled = known - int(slots.num_accepted[slot]) - 1
                written[slot] = settled + 1
            _mark(target_rows, sequence.pages, known)
            _mark(draft_rows, sequence.pages, settled)
        self.rows += int(target_rows.sum() + draft_rows.sum())
        stale = jnp.asarray(~(keep & live[:, None]))
        history = state.history
        if history is not None:
            unwritten = np.arange(config.max_model_len) >= written[:, None]
            history = jax.device_put(jnp.where(unwritten, 1, history), history.sharding)
        return replace(
            state,
            history=history,
            target_pools=tuple(_spoil_pool(pool, target_rows) for pool in state.target_pools),
            draft_pools=tuple(_spoil_pool(pool, draft_rows) for pool in state.draft_pools),
            slots=replace(
                state.slots,
                verified_tokens=jnp.where(stale, 1, state.slots.verified_tokens),
                aux_hidden=jnp.where(stale[..., None], jnp.nan, state.slots.aux_hidden),
            ),
        )


def _mark(rows: np.ndarray, pages: Sequence[int], first: int) -> None:
    """Mark the rows of these pages from position `first` on."""
    if pages:
        own = rows[list(pages)].reshape(-1)
        own[first:] = True
        rows[list(pages)] = own.reshape(len(pages), -1)


def _spoil_pool(pool: KVPool, rows: np.ndarray) -> KVPool:
    """Write NaN. If pages are split over devices, each group of devices has the rows in order."""
    stored, _ = rows_and_scale(pool)
    rows = np.tile(rows, stored.shape[1] // rows.shape[1])
    spoiled = rows.reshape(*rows.shape, *[1] * (stored.ndim - 2))
    return with_rows(pool, jax.device_put(jnp.where(spoiled, jnp.nan, stored), stored.sharding))
