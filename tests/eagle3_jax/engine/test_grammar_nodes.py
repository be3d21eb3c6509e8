"""Masks of a tree of drafts: each node's is that of the chain which leads to it."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spelling_tokenizer import EOS, PIECES, SpellingTokenizer
from tiny import VOCAB

from eagle3_jax.engine.grammars.interface import Matcher
from eagle3_jax.engine.grammars.loading import load_grammars
from eagle3_jax.engine.grammars.masking import fill_nodes, paths_of
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from eagle3_jax.sampling.token_mask import open_masks
from eagle3_jax.speculative.tree.nodes import chains_as_trees

pytest.importorskip("llguidance")
FORM = StructuredOutputs(regex="(ab|ba|cd){2,9}")
PARENTS = st.lists(st.integers(0, 9), max_size=9).map(
    lambda x: [p % (i + 1) for i, p in enumerate(x)]
)


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    grammars = load_grammars(SpellingTokenizer(), VOCAB, (EOS,))
    assert grammars
    return grammars.compile(FORM).start()


def alone(matcher: Matcher, drafts: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    masks = open_masks(VOCAB, 1 + len(drafts))
    return masks, matcher.fill(masks, drafts)


@given(
    PARENTS, st.lists(st.sampled_from([PIECES.index(c) for c in "abcd"]), min_size=9, max_size=9)
)
def test_a_nodes_mask_is_that_of_the_chain_to_it(
    matcher: Matcher, parents: list[int], tokens: list[int]
) -> None:
    masks = open_masks(VOCAB, 1 + len(parents))
    drafts = fill_nodes(matcher, masks, tokens[: len(parents)], parents)
    for node in range(1, 1 + len(parents)):
        path = [node]
        while parents[path[0] - 1]:
            path.insert(0, parents[path[0] - 1])
        expected, followed = alone(matcher, [tokens[i - 1] for i in path])
        np.testing.assert_array_equal(masks[[0, *path]], expected)
        assert [drafts[i - 1] for i in path] == followed


def test_a_chain_has_one_path_and_a_root_alone_none() -> None:
    tree = chains_as_trees(np.array([[7, 8, 9]], np.int32))
    assert tree.tokens.tolist() == [[0, 7, 8, 9]]
    assert [*paths_of(tree.parents[0, 1:].tolist())] == [[1, 2, 3]]
    assert [*paths_of([])] == [[]]
    assert [*paths_of([0, 0, 1, 1, 2])] == [[1, 3], [1, 4], [2, 5]]
