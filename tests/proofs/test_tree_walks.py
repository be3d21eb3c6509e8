"""Proof (f) without models: whatever the tree, the plain tokens are committed.

Random trees with random parents hang over a table of logits. What is committed must be the longest
path that plain decoding would have said, and plain decoding's next token.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slot_rows import decoding_rows, option_rows
from test_enumeration import OPTIONS
from tree_decoding import PROMPT, Decoder, repeated
from tree_model import TreeModel

from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative.propose_tree import child_log_probs
from eagle3_jax.speculative.state import SlotRows
from eagle3_jax.speculative.tree import Tree, Walk, place_nodes, walk

VOCAB, LEVELS, NODES, TREES, SEEDS = 4, 3, 10, 250, 3
ROOM = 99
Verdict = Callable[[jax.Array, Tree, jax.Array, SlotRows], Walk]


def random_trees(rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and parents [batch, NODES] of trees at most LEVELS deep, no two siblings equal."""
    tokens, parents, depths = (np.zeros((batch, NODES), np.int32) for _ in range(3))
    each, taken = np.arange(batch), np.zeros((batch, NODES, VOCAB), bool)
    for node in range(1, NODES):
        wrong, above = np.ones(batch, bool), (each, parents[:, node])
        while wrong.any():
            parents[wrong, node] = rng.integers(0, node, wrong.sum())
            tokens[wrong, node] = rng.integers(0, VOCAB, wrong.sum())
            wrong = taken[*above, tokens[:, node]] | (depths[above] == LEVELS)
        taken[*above, tokens[:, node]] = True
        depths[:, node] = depths[above] + 1
    return tokens, parents


def paths_of(tokens: np.ndarray, parents: np.ndarray) -> list[list[list[int]]]:
    """Return each node's tokens from below the root down to it, by following parents."""
    found = []
    for row, links in zip(tokens.tolist(), parents.tolist(), strict=True):
        paths: list[list[int]] = [[]]
        for node in range(1, NODES):
            paths.append([*paths[links[node]], row[node]])
        found.append(paths)
    return found


def check_walks(verdict: Verdict, room: int = ROOM) -> None:
    """room: tokens the answers may have; deeper nodes can't be committed."""
    requests = [
        SamplingParams(**{**vars(option), "seed": seed})
        for option in OPTIONS
        for seed in range(SEEDS)
    ]
    options = option_rows(requests, PROMPT)
    model = TreeModel(VOCAB, LEVELS + 1, seed=5)
    plain = np.repeat(Decoder(model, options).plain(LEVELS + 1), TREES, axis=0)
    tokens, parents = random_trees(np.random.default_rng(6), len(plain))
    tokens[:, 0] = plain[:, 0]  # The root is no child of itself, though it has the token wanted.
    paths = paths_of(tokens, parents)
    lengths = np.array([[len(path) for path in of_tree] for of_tree in paths])
    history = np.array([[path + [0] * (LEVELS - len(path)) for path in p] for p in paths])
    flat = model.logits(history.reshape(-1, LEVELS), lengths.reshape(-1))
    start = np.full(len(plain), len(PROMPT) - 1)
    most = np.full(len(plain), len(PROMPT) + room)
    rows = decoding_rows(repeated(options, TREES), start, most, LEVELS)
    tree = Tree(jnp.asarray(tokens), jnp.asarray(parents))
    logits = jnp.asarray(flat.reshape(len(plain), NODES, VOCAB))
    nodes = place_nodes(tree, LEVELS)
    np.testing.assert_array_equal(nodes.depths, lengths)
    np.testing.assert_array_equal(nodes.paths, history)
    found = jax.jit(verdict)(logits, tree, nodes.depths, rows).result
    agree = np.array(
        [
            max(len(path) for path in of_tree if path == said[: len(path)] and len(path) < room)
            for of_tree, said in zip(paths, plain.tolist(), strict=True)
        ]
    )
    np.testing.assert_array_equal(found.num_accepted, agree)
    committed = np.arange(LEVELS + 1) <= agree[:, None]
    np.testing.assert_array_equal(np.asarray(found.token_ids)[committed], plain[committed])
    assert set(agree.tolist()) == set(range(min(LEVELS, room - 1) + 1))


def any_parent(logits: jax.Array, tree: Tree, depths: jax.Array, rows: SlotRows) -> Walk:
    """Follows a node of the next depth with the token wanted, whoever its parent is."""
    first_above = jnp.argmax(depths[:, None] == depths[..., None] - 1, axis=-1)
    return walk(logits, Tree(tree.tokens, first_above), depths, rows)


def position_by_node(logits: jax.Array, tree: Tree, depths: jax.Array, rows: SlotRows) -> Walk:
    """Draws nodes with the noise of their own slots, not of their positions."""
    slots = jnp.broadcast_to(jnp.arange(NODES), depths.shape)
    return walk(logits, tree, slots, rows)


def test_whatever_the_tree_the_plain_tokens_are_committed() -> None:
    check_walks(walk)


@pytest.mark.parametrize("room", [1, 2, 3])
def test_no_path_is_longer_than_there_is_room_for(room: int) -> None:
    check_walks(walk, room)


@pytest.mark.parametrize("wrong", [any_parent, position_by_node], ids=lambda f: f.__name__)
def test_the_proof_over_trees_notices(wrong: Verdict) -> None:
    with pytest.raises(AssertionError, match="not equal"):
        check_walks(wrong)


def test_no_child_scores_above_its_parent_and_none_is_nan() -> None:
    """Also where the draft's logits are NaN, infinite or all barred: ancestors stay kept."""
    rng = np.random.default_rng(0)
    logits = 5 * rng.normal(size=(len(OPTIONS), 6, 33)).astype(np.float32)
    logits[:, 1, 3], logits[:, 2, 4], logits[:, 3, 5], logits[:, 4] = (
        np.nan,
        np.inf,
        -np.inf,
        -np.inf,
    )
    positions = jnp.broadcast_to(jnp.arange(6), logits.shape[:2])
    found = child_log_probs(jnp.asarray(logits), positions, option_rows(OPTIONS, PROMPT))
    assert (np.asarray(found) <= 0).all()


def test_at_temperature_zero_scores_are_the_drafts_log_probabilities() -> None:
    """Whatever cuts the request has: they can't change what a greedy target picks."""
    greedy = SamplingParams(temperature=0, top_p=0.3, top_k=2, min_p=0.4, seed=3)
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(1, 2, 9)), jnp.float32)
    found = child_log_probs(logits, jnp.array([[4, 5]]), option_rows([greedy], PROMPT))
    np.testing.assert_allclose(found, jax.nn.log_softmax(logits), atol=1e-6)
