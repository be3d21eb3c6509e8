"""The rule of lookup, against a search in Python, and its drafts beside a draft model's."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.speculative.logit_control_rows import NO_TOKEN
from eagle3_jax.speculative.lookup import add_copies, draft_limits, look_up
from eagle3_jax.speculative.method import Lookup, Widths
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.round_state import RoundBatch
from eagle3_jax.speculative.state import DecodeState, empty_slots

ROWS, SIZE, COUNT = 300, 16, 5


def searched(tokens: list[int], lookup: Lookup) -> tuple[list[int], int] | None:
    """Return the continuation of the latest of the longest matches, one by one, and its length."""
    last = len(tokens) - 1
    for length in range(lookup.longest, lookup.shortest - 1, -1):
        suffix = tokens[last + 1 - length :]
        for end in range(last - 1, length - 2, -1):
            if NO_TOKEN not in suffix and tokens[end + 1 - length : end + 1] == suffix:
                grown = list(tokens)
                while len(grown) < last + 1 + COUNT:
                    grown.append(grown[end - last + len(grown)])
                return [max(token, 0) for token in grown[last + 1 :]], length
    return None


@pytest.mark.parametrize("lookup", [Lookup(1, 1), Lookup(1, 3), Lookup(3, 4)])
def test_the_latest_of_the_longest_matches_continues_with_its_distance(lookup: Lookup) -> None:
    """Tokens of the slot's earlier owner, past the end, and positions of images match nothing."""
    rng = np.random.default_rng(0)
    history = rng.integers(NO_TOKEN, 3, (ROWS, SIZE), dtype=np.int32)
    last = rng.integers(0, SIZE, ROWS, dtype=np.int32)
    found, matched = jax.jit(look_up, static_argnums=(2, 3))(history, last, COUNT, lookup)
    for row in range(ROWS):
        expected = searched(history[row, : last[row] + 1].tolist(), lookup)
        assert matched[row] == (expected[1] if expected else 0)
        assert expected is None or found[row].tolist() == expected[0]


K, LOOKED_UP = 2, 5
FULL = [1, 2, 3, 4, 5, 6, 1, 2, 3]
SHORT = [7, 2, 3, 4, 5, 6, 0, 2, 3]
NEW = [0, 1, 2, 3, 4, 5, 6, 7, 7]


def test_a_full_match_replaces_the_chain_and_a_shorter_one_extends_it_where_it_agrees() -> None:
    """Copies have probability one; the drafts before them, and rows without copies, keep theirs."""
    known: Any = np.asarray([FULL, SHORT, SHORT, NEW], np.int32)
    last: Any = np.full(4, known.shape[1] - 1, np.int32)
    slots = jnp.arange(4)
    rows = replace(
        empty_slots(4, LOOKED_UP + 1, 1, jnp.float32),
        seq_lens=last,
        verified_tokens=jnp.pad(known[:, -1:], ((0, 0), (0, LOOKED_UP))),
    )
    history = jnp.pad(known[:, :-1], ((0, 0), (0, 7)), constant_values=NO_TOKEN)
    pool = jnp.zeros((1, 1))
    controls: Any = None
    state: Any = DecodeState((pool,), (pool,), rows, controls, history=history)
    chains: Any = np.asarray([[7, 7], [4, 5], [4, 1], [6, 0]], np.int32)
    drafts, widths = Drafts(chains, jnp.full((4, K, 8), 1 / 8)), Widths(K, 1, LOOKED_UP)
    batch = RoundBatch(slots, known, rows, rows, slots >= 0, None, None)
    found: Any
    state, found = add_copies(state, batch, drafts, Lookup(2, 3), widths, None)
    limits = draft_limits(state, found.looked_up, widths)

    assert np.asarray(state.history)[:, : known.shape[1]].tolist() == known.tolist()
    assert found.looked_up.tolist() == [5, 3, 0, 0]
    assert limits.tolist() == [5, 5, K, K]
    assert found.ids[:2].tolist() == [[4, 5, 6, 1, 2], [4, 5, 6, 0, 2]]
    assert found.ids[2:, :K].tolist() == chains[2:].tolist()
    certain = np.eye(8)[np.asarray(found.ids)]
    copies = np.arange(LOOKED_UP) >= LOOKED_UP - np.asarray(found.looked_up)[:, None]
    drawn = np.pad(np.full((4, K, 8), 1 / 8), ((0, 0), (0, LOOKED_UP - K), (0, 0)))
    np.testing.assert_array_equal(found.probs, np.where(copies[..., None], certain, drawn))
