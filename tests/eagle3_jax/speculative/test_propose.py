"""The drafts of a round against cache-free passes of the draft over the same tokens."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from driving import sizes
from lab import PAGES, Lab, one_row
from tiny import (
    DRAFT,
    VOCAB,
    attentive_draft,
    attentive_latent_draft,
    copying_draft,
    reduced_draft,
    tiny_draft,
)

from eagle3_jax.full_pass import draft_forward, forward
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.sampling.sampler import sample
from eagle3_jax.speculative.propose import propose
from eagle3_jax.speculative.state import DecodeState

K, MAX_ROWS = 3, 40
PROMPT = [(13 * i + 2) % VOCAB for i in range(7)]

Chain = Callable[[list[int], SamplingRows], list[int]]


def padded(rows: list[int] | np.ndarray) -> jax.Array:
    """Rows and zeros up to MAX_ROWS: causal passes don't see them."""
    array = np.asarray(rows)
    fill = [(0, MAX_ROWS - len(array))] + [(0, 0)] * (array.ndim - 1)
    return jnp.asarray(np.pad(array, fill))[None]


def cache_free_chain(draft: Eagle3Draft, target: Target) -> Chain:
    """K drafts after some tokens, each by a whole pass without a cache.

    Rows of known tokens have the target's features; later rows have the draft's own state.
    """

    @jax.jit
    def step(tokens: jax.Array, states: jax.Array, row: jax.Array, options: SamplingRows):
        hidden, _ = draft(tokens, states, jnp.arange(MAX_ROWS)[None])
        logits = jax.lax.dynamic_slice_in_dim(draft.logits(hidden), row, 1, axis=1)
        token = sample(logits, (row + 2)[None, None], options, draft.target_ids)
        return token[0, 0], logits[0, 0], hidden[0, row]

    def chain(tokens: list[int], options: SamplingRows) -> list[int]:
        known = len(tokens) - 1
        ids = draft.config.aux_layer_ids
        aux = forward(target, padded(tokens[:-1]), aux_layer_ids=ids).aux_hidden
        logits, _ = draft_forward(draft, padded(tokens[1:]), aux)
        states = np.array(draft.fuse(aux)[0])
        row_tokens = list(tokens[1:])
        for row in range(known - 1, known - 1 + K):
            inputs = padded(row_tokens), jnp.asarray(states)[None], jnp.int32(row)
            token, step_logits, states[row + 1] = step(*inputs, options)
            if row == known - 1:
                np.testing.assert_allclose(step_logits, logits[0, row], rtol=1e-4, atol=1e-4)
            row_tokens.append(int(token))
        return row_tokens[-K:]

    return chain


@pytest.mark.parametrize(
    "make_draft", [attentive_draft, attentive_latent_draft, reduced_draft], ids=lambda f: f.__name__
)
def test_drafts_in_a_round_are_those_of_cache_free_passes(
    target: Target, make_draft: Callable[[Target], Eagle3Draft]
) -> None:
    """Greedy and sampled, after prefill and after rounds that accepted and rejected drafts."""
    draft = make_draft(target)
    config = sizes(K, num_pages=None) if make_draft is reduced_draft else sizes(K)
    chain = cache_free_chain(draft, target)

    @jax.jit
    def proposed(state: DecodeState, table: jax.Array) -> jax.Array:
        row = jax.tree.map(lambda x: x[:1], state.slots)
        return propose(draft, row, state.draft_pools, table, jnp.ones(1, bool), K)[0].ids

    table = np.zeros((1, config.pages_per_seq), np.int32)
    table[0, : len(PAGES[0])] = PAGES[0]
    for options in (one_row(), one_row(1.0, seed=4)):
        lab = Lab(target, draft, config)
        lab.prefill(0, PROMPT, options)
        tokens = [*PROMPT, int(lab.snapshot().slots.verified_tokens[0, 0])]
        for _ in range(3):
            drafts = proposed(lab.state, jnp.asarray(table))[0].tolist()
            assert drafts == chain(tokens, options)
            report = lab.round([0])[0]
            committed = report[: report[K + 1]].tolist()
            assert committed[:-1] == drafts[: len(committed) - 1]
            tokens += committed


def test_a_draft_knows_positions_past_its_own_context(target: Target) -> None:
    """Positions are the target's: what a draft's config says of its length cuts nothing."""
    tokens = jnp.asarray([PROMPT * 3])
    aux = forward(target, tokens, aux_layer_ids=DRAFT.aux_layer_ids).aux_hidden
    short = copying_draft(replace(DRAFT, max_position_embeddings=8))
    short.embed_tokens, short.lm_head = target.embed_tokens, target.lm_head
    expected, _ = draft_forward(tiny_draft(target), tokens, aux)
    np.testing.assert_array_equal(draft_forward(short, tokens, aux)[0], expected)
