"""Proof (f) with models: a round with a tree leaves the state that a chain's round would.

The KV of both caches is that of one pass over the tokens committed; neither what lies past the
committed rows nor the order of a tree's nodes matters.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_programs import compile_rounds_anew
from driving import sizes
from lab import Lab, one_row, spoil, true_rows
from tiny import VOCAB, latent_draft

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.speculative.state import DecodeState
from eagle3_jax.speculative.tree import nodes as tree_module
from eagle3_jax.speculative.tree import round as tree_round
from eagle3_jax.speculative.tree.nodes import Tree, ancestors_of
from eagle3_tools.bench.common import engine_programs

CONFIG = sizes(2, eagle_topk=2, num_draft_tokens=5)
WIDTH, ROUNDS = 3, 3
PROMPTS = [[(17 * slot + 7 * i + 1) % VOCAB for i in range(3 + 2 * slot)] for slot in range(4)]
OPTIONS = [one_row(), one_row(0.6, seed=1), one_row(1.0, seed=2), one_row(1.0, seed=3)]
Tokens = list[list[int]]


def prefilled(target: Target, draft: Eagle3Draft, max_len: int = 24) -> Lab:
    lab = Lab(target, draft, CONFIG)
    for slot, prompt in enumerate(PROMPTS):
        lab.prefill(slot, prompt, OPTIONS[slot], max_len=max_len)
    return lab


def run(
    lab: Lab, between: Callable[[DecodeState], DecodeState] | None = None
) -> tuple[Tokens, Tokens]:
    """Rounds over all slots; returns each slot's tokens (prompt included) and accepted counts."""
    firsts = lab.snapshot().slots.verified_tokens[:, 0].tolist()
    tokens = [[*prompt, first] for prompt, first in zip(PROMPTS, firsts, strict=False)]
    accepted: Tokens = [[], [], [], []]
    for _ in range(ROUNDS):
        if between:
            lab.edit(between)
        for slot, row in enumerate(lab.round(range(4))):
            tokens[slot] += row[: row[WIDTH]].tolist()
            accepted[slot].append(int(row[WIDTH]) - 1)
    return tokens, accepted


def check_rows(lab: Lab) -> None:
    """The rows committed last are still to be overwritten in the draft's cache."""
    tokens, accepted = run(lab)
    assert {count for counts in accepted for count in counts} == {0, 1, 2}
    for slot, known in enumerate(tokens):
        settled = len(known) - 2 - accepted[slot][-1]
        target_rows, draft_rows = true_rows(lab, known[:-1])
        found = lab.target_rows(slot, len(known) - 1), lab.draft_rows(slot, settled)
        for ours, theirs in zip(found, (target_rows, draft_rows[:, :settled]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.fixture(params=["grouped", "latent"])
def any_draft(
    request: pytest.FixtureRequest, target: Target, draft: Eagle3Draft, long: bool
) -> Eagle3Draft:
    if request.param == "grouped":
        return draft
    return latent_draft(target) if long else pytest.skip("part of the long form")


def test_both_caches_hold_the_rows_of_the_committed_path(
    target: Target, any_draft: Eagle3Draft
) -> None:
    check_rows(prefilled(target, any_draft))


def test_nothing_past_the_committed_rows_is_read(target: Target, any_draft: Eagle3Draft) -> None:
    """NaN before every round: rows of rejected nodes, other pages, features of rejected rows."""

    def poison(state: DecodeState) -> DecodeState:
        slots = state.slots
        lengths, accepted = np.array(slots.seq_lens), np.array(slots.num_accepted)
        known = {slot: int(lengths[slot]) for slot in range(4)}
        settled = {slot: int(lengths[slot] - accepted[slot] - 1) for slot in range(4)}
        stale = jnp.arange(WIDTH) > slots.num_accepted[:, None]
        return replace(
            state,
            target_pools=tuple(spoil(pool, known) for pool in state.target_pools),
            draft_pools=tuple(spoil(pool, settled) for pool in state.draft_pools),
            slots=replace(
                slots,
                verified_tokens=jnp.where(stale, VOCAB - 1, slots.verified_tokens),
                aux_hidden=jnp.where(stale[..., None], jnp.nan, slots.aux_hidden),
            ),
        )

    expected = run(prefilled(target, any_draft))
    assert run(prefilled(target, any_draft), poison) == expected


@pytest.mark.parametrize("room", range(1, 5))
def test_no_node_passes_the_length_limit(target: Target, draft: Eagle3Draft, room: int) -> None:
    """Tokens are those of a longer answer; the limit ends them where it stands."""
    free, _ = run(prefilled(target, draft))
    limit = len(PROMPTS[3]) + room
    tokens, _ = run(prefilled(target, draft, max_len=limit))
    assert tokens[3] == free[3][:limit]


@pytest.fixture
def programs_as_patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    compile_rounds_anew(monkeypatch, engine_programs)
    yield monkeypatch


def test_the_order_of_nodes_changes_nothing(
    target: Target,
    draft: Eagle3Draft,
    programs_as_patched: pytest.MonkeyPatch,
    long: bool,
) -> None:
    """Every level backwards: other slots, other paths, the same tokens."""
    if not long:
        pytest.skip("part of the long form")
    expected = run(prefilled(target, draft))
    grow = tree_round.propose_tree

    def backwards(*inputs: Any) -> Any:
        tree, pools = grow(*inputs)
        depths = ancestors_of(tree.parents, WIDTH - 1).sum(axis=-1)
        order = jnp.lexsort((-jnp.arange(depths.shape[1]) + 0 * depths, depths), axis=-1)
        tokens = jnp.take_along_axis(tree.tokens, order, axis=1)
        parents = jnp.take_along_axis(
            jnp.argsort(order, axis=1), jnp.take_along_axis(tree.parents, order, axis=1), axis=1
        )
        return Tree(tokens, parents), pools

    lab = prefilled(target, draft)
    programs_as_patched.setattr(tree_round, "propose_tree", backwards)
    compile_rounds_anew(programs_as_patched, engine_programs)
    assert run(lab) == expected


def rows_stay(pools: Any, *_: Any) -> Any:
    """Leaves the accepted nodes' KV where the tree has it."""
    return pools


def all_before(parents: jax.Array, levels: int) -> jax.Array:
    """Lets every node see all nodes before it, as in a chain."""
    exact = ancestors_of(parents, levels)
    nodes = parents.shape[1]
    return exact if nodes < 3 else exact | jnp.tril(jnp.ones((nodes, nodes), bool))


def first_features(features: jax.Array, path: jax.Array) -> jax.Array:
    """Keeps the features of the first nodes, not of the path's."""
    return features[:, : path.shape[1]]


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (tree_round, "_move_path", rows_stay),
        (tree_module, "ancestors_of", all_before),
        (tree_round, "take_path", first_features),
    ],
    ids=["rows stay", "chain's mask", "first features"],
)
def test_the_proof_notices(
    target: Target,
    draft: Eagle3Draft,
    programs_as_patched: pytest.MonkeyPatch,
    module: Any,
    name: str,
    wrong: Any,
    long: bool,
) -> None:
    if name != "_move_path" and not long:
        pytest.skip("part of the long form")
    programs_as_patched.setattr(module, name, wrong)
    with pytest.raises(AssertionError, match="tolerance"):
        check_rows(prefilled(target, draft))
