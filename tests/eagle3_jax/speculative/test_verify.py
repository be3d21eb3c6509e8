"""The accept decision against every case written out on the host."""

from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from lab import one_row
from slot_rows import decoding_rows

from eagle3_jax.speculative.state import SlotRows
from eagle3_jax.speculative.verify import verify

VOCAB, K, SEQ_LEN = 3, 2, 10
VERIFY = jax.jit(verify)


def rows(max_lens: Any, num_drafts: Any, **options: Any) -> SlotRows:
    """Rows at length SEQ_LEN."""
    batch = len(max_lens)
    repeated = jax.tree.map(lambda x: jnp.repeat(x, batch, axis=0), one_row(**options))
    made = decoding_rows(repeated, np.full(batch, SEQ_LEN), max_lens, K)
    return replace(made, num_drafts=jnp.asarray(num_drafts, jnp.int32))


def decide(
    drafts: tuple[int, ...], chosen: tuple[int, ...], wanted: int, room: int, stop: int
) -> tuple[int, bool]:
    """Accepted drafts and whether the sequence ends; room = tokens that may still come."""
    accepted = 0
    while (
        accepted < min(wanted, K) and accepted + 1 < room and drafts[accepted] == chosen[accepted]
    ):
        accepted += 1
    return accepted, stop in chosen[: accepted + 1] or accepted + 1 >= room


def test_every_case_of_a_tiny_vocabulary() -> None:
    """All drafts x all choices of the target x drafts wanted x tokens of room, one stop id."""
    stop = 2
    tokens = range(VOCAB)
    grid = list(
        product(product(tokens, repeat=K), product(tokens, repeat=K + 1), range(K + 2), range(1, 6))
    )
    drafts, chosen, wanted, room = (list(column) for column in zip(*grid, strict=True))
    logits = jax.nn.one_hot(jnp.asarray(chosen), VOCAB)
    # The token at position SEQ_LEN is known, so that `room` more end at this length.
    max_lens = [SEQ_LEN + 1 + r for r in room]
    result = VERIFY(logits, jnp.asarray(drafts), rows(max_lens, wanted, stop_ids=[stop]))
    expected = [decide(*case, stop) for case in grid]
    np.testing.assert_array_equal(result.token_ids, chosen)
    np.testing.assert_array_equal(result.num_accepted, [accepted for accepted, _ in expected])
    np.testing.assert_array_equal(result.finished, [finished for _, finished in expected])


def test_stop_ids_wait_for_the_least_length_at_every_row() -> None:
    logits = jnp.zeros((1, K + 1, VOCAB)).at[:, :, 1].set(5.0)
    # Positions 11, 12, 13 are sampled; the stop id is barred below 13.
    batch = rows([99], [K], stop_ids=[1], min_len=SEQ_LEN + 3)
    result = VERIFY(logits, jnp.zeros((1, K), jnp.int32), batch)
    np.testing.assert_array_equal(result.token_ids, [[0, 0, 1]])
    assert bool(result.finished[0])


def test_behind_its_mark_a_row_pauses_as_if_the_next_draft_were_wrong() -> None:
    grid = list(product(product(range(VOCAB), repeat=K), product(range(VOCAB), repeat=K + 1)))
    drafts, chosen = (np.array(part) for part in zip(*grid, strict=True))
    logits = 5.0 * jax.nn.one_hot(chosen, VOCAB)
    batch = rows([SEQ_LEN + 1 + K] * len(grid), [K] * len(grid), temperature=0.0)
    free = VERIFY(logits, jnp.asarray(drafts), batch)
    marked = replace(batch, pause_id=jnp.ones_like(batch.pause_id))
    result = VERIFY(logits, jnp.asarray(drafts), marked)
    for row, accepted in enumerate(np.asarray(free.num_accepted)):
        committed = chosen[row, : accepted + 1].tolist()
        expected = committed.index(1) if 1 in committed else accepted
        assert int(result.num_accepted[row]) == expected
        assert bool(result.finished[row]) == (expected + 1 >= K)
    assert 0 < (result.num_accepted < free.num_accepted).sum() < len(grid)
