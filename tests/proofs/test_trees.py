"""Proof (f) with models: a round with a tree leaves the state that a chain's round would.

The KV of both caches is that of one pass over the tokens committed, and the order of a tree's nodes
does not matter.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_programs import compile_rounds_anew
from driving import sizes
from lab import PROMPTS, Lab, prefilled, run_rounds, true_rows
from sweeps import sweep
from tiny import latent_draft

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.speculative import round as round_module
from eagle3_jax.speculative import tree as tree_module
from eagle3_jax.speculative import tree_round
from eagle3_jax.speculative.tree import Tree, ancestors_of
from eagle3_tools.bench.common import engine_programs

CONFIG = sizes(2, eagle_topk=2, num_draft_tokens=5)
WIDTH, ROUNDS = 3, 3


def check_rows(lab: Lab) -> None:
    """The rows committed last are still to be overwritten in the draft's cache."""
    tokens, accepted = run_rounds(lab, ROUNDS)
    assert {count for counts in accepted for count in counts} == {0, 1, 2}
    for slot, known in enumerate(tokens):
        settled = len(known) - 2 - accepted[slot][-1]
        target_rows, draft_rows = true_rows(lab, known[:-1])
        found = lab.target_rows(slot, len(known) - 1), lab.draft_rows(slot, settled)
        for ours, theirs in zip(found, (target_rows, draft_rows[:, :settled]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.fixture(params=sweep(["grouped", "latent"], ["grouped"]))
def any_draft(request: pytest.FixtureRequest, target: Target, draft: Eagle3Draft) -> Eagle3Draft:
    return draft if request.param == "grouped" else latent_draft(target)


def test_both_caches_hold_the_rows_of_the_committed_path(
    target: Target, any_draft: Eagle3Draft
) -> None:
    check_rows(prefilled(target, any_draft, CONFIG))


@pytest.mark.parametrize("room", range(1, 5))
def test_no_node_passes_the_length_limit(target: Target, draft: Eagle3Draft, room: int) -> None:
    """Tokens are those of a longer answer; the limit ends them where it stands."""
    free, _ = run_rounds(prefilled(target, draft, CONFIG), ROUNDS)
    limit = len(PROMPTS[3]) + room
    tokens, _ = run_rounds(prefilled(target, draft, CONFIG, limit), ROUNDS)
    assert tokens[3] == free[3][:limit]


@pytest.fixture
def programs_as_patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    compile_rounds_anew(monkeypatch, engine_programs)
    yield monkeypatch


@pytest.mark.long
def test_the_order_of_nodes_changes_nothing(
    target: Target, draft: Eagle3Draft, programs_as_patched: pytest.MonkeyPatch
) -> None:
    """Every level backwards: other slots, other paths, the same tokens."""
    expected = run_rounds(prefilled(target, draft, CONFIG), ROUNDS)
    grow = round_module.propose_tree

    def backwards(*inputs: Any) -> Any:
        tree, pools = grow(*inputs)
        depths = ancestors_of(tree.parents, WIDTH - 1).sum(axis=-1)
        order = jnp.lexsort((-jnp.arange(depths.shape[1]) + 0 * depths, depths), axis=-1)
        tokens = jnp.take_along_axis(tree.tokens, order, axis=1)
        parents = jnp.take_along_axis(
            jnp.argsort(order, axis=1), jnp.take_along_axis(tree.parents, order, axis=1), axis=1
        )
        return Tree(tokens, parents), pools

    lab = prefilled(target, draft, CONFIG)
    programs_as_patched.setattr(round_module, "propose_tree", backwards)
    compile_rounds_anew(programs_as_patched, engine_programs)
    assert run_rounds(lab, ROUNDS) == expected


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


WRONG = [
    (tree_round, "_move_path", rows_stay),
    (tree_module, "ancestors_of", all_before),
    (tree_round, "take_path", first_features),
]


@pytest.mark.parametrize(("module", "name", "wrong"), sweep(WRONG, WRONG[:1]))
def test_the_proof_notices(
    target: Target,
    draft: Eagle3Draft,
    programs_as_patched: pytest.MonkeyPatch,
    module: Any,
    name: str,
    wrong: Any,
) -> None:
    programs_as_patched.setattr(module, name, wrong)
    with pytest.raises(AssertionError, match="tolerance"):
        check_rows(prefilled(target, draft, CONFIG))
