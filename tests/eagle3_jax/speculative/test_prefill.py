"""Chunked prefill against passes without a cache."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from driving import sizes
from lab import PAGES, Lab, one_row
from shared_pair import pair_on_one_device
from tiny import (
    DRAFT,
    VOCAB,
    copying_draft,
    tiny_draft,
)

from eagle3_jax.cache import SCRATCH_PAGE, rows_and_scale, view_pages
from eagle3_jax.full_pass import draft_forward, forward
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target

PROMPT = [(11 * i + 5) % VOCAB for i in range(19)]
SPLITS = [(8, 8, 3), (1, 8, 2, 8), (7, 7, 5), (8, 8, 2, 1)]

both_attentions = pytest.mark.parametrize("draft", ["grouped", "latent"], indirect=True)


@pytest.fixture(scope="module")
def one_pass(draft: Eagle3Draft) -> dict[str, np.ndarray]:
    """Logits and aux features without a cache; the draft's pools written in one pass."""
    target, draft = pair_on_one_device("latent" if draft.config.latent else "grouped")
    ids = jnp.asarray([PROMPT])
    out = forward(target, ids, aux_layer_ids=draft.config.aux_layer_ids)
    rows = len(PROMPT) - 1

    @jax.jit
    def draft_kv(aux: jax.Array, tokens: jax.Array) -> jax.Array:
        positions = jnp.arange(rows)[None]
        pages = view_pages(jnp.zeros((1, 1), jnp.int32), positions, positions >= 0, rows)
        pools = tuple(jnp.zeros((1, rows, *row)) for row in draft.pool_rows)
        _, pools = draft(tokens, draft.fuse(aux), positions, pools, pages)
        return jnp.concatenate([rows_and_scale(pool)[0] for pool in pools])

    return {
        "token": np.asarray(out.logits[0, -1].argmax()),
        "aux": np.asarray(out.aux_hidden[0, -1]),
        "draft_kv": np.asarray(draft_kv(out.aux_hidden[:, :-1], ids[:, 1:])),
    }


@both_attentions
@pytest.mark.parametrize("chunks", SPLITS, ids=str)
def test_any_split_gives_what_one_pass_gives(
    target: Target, draft: Eagle3Draft, one_pass: dict[str, np.ndarray], chunks: tuple[int, ...]
) -> None:
    """The draft's row i pairs the features of i with token i + 1, across chunks too."""
    lab = Lab(target, draft, sizes(3))
    report = lab.prefill(2, PROMPT, one_row(), chunks=chunks)
    assert report == [int(one_pass["token"]), 1]
    np.testing.assert_allclose(
        lab.draft_rows(2, len(PROMPT) - 1), one_pass["draft_kv"], rtol=1e-4, atol=1e-4
    )
    slots = lab.snapshot().slots
    np.testing.assert_allclose(slots.aux_hidden[2, 0], one_pass["aux"], rtol=1e-4, atol=1e-4)
    assert slots.verified_tokens[2, 0] == one_pass["token"]
    assert (slots.seq_lens[2], slots.num_accepted[2]) == (len(PROMPT), 0)
    assert slots.finished.tolist() == [True, True, False, True, True]


def test_only_the_last_chunk_reports_a_token_and_opens_the_slot(
    target: Target, draft: Eagle3Draft
) -> None:
    lab = Lab(target, draft, sizes(3))
    assert lab.prefill(0, PROMPT, one_row(), chunks=(8, 8))[1] == 0
    assert lab.snapshot().slots.finished.all()


def test_a_chunk_writes_its_own_pages_and_scratch_alone(target: Target, draft: Eagle3Draft) -> None:
    lab = Lab(target, draft, sizes(3))
    lab.prefill(1, PROMPT, one_row())
    state = lab.snapshot()
    others = sorted(set(range(28)) - set(PAGES[1]) - {SCRATCH_PAGE})
    for pool in (*state.target_pools, *state.draft_pools):
        rows, _ = rows_and_scale(pool)
        assert not rows[others].any()
        assert not rows[PAGES[1][4], 3].any()


@pytest.mark.parametrize(("stop_ids", "max_len"), [((), 20), ((0,), 24), ((), 24)])
def test_an_answer_may_end_with_its_first_token(
    target: Target,
    draft: Eagle3Draft,
    one_pass: dict[str, np.ndarray],
    stop_ids: tuple[int, ...],
    max_len: int,
) -> None:
    """By a stop id or because no other token fits."""
    stops = [int(one_pass["token"]) for _ in stop_ids]
    lab = Lab(target, draft, sizes(3))
    lab.prefill(0, PROMPT, one_row(stop_ids=stops), max_len=max_len)
    assert bool(lab.snapshot().slots.finished[0]) == (bool(stops) or max_len == 20)


def test_a_draft_knows_positions_past_its_own_context(target: Target) -> None:
    """Positions are the target's: what a draft's config says of its length cuts nothing."""
    tokens = jnp.asarray([[(13 * i + 2) % VOCAB for i in range(21)]])
    aux = forward(target, tokens, aux_layer_ids=DRAFT.aux_layer_ids).aux_hidden
    short = copying_draft(replace(DRAFT, max_position_embeddings=8))
    short.embed_tokens, short.lm_head = target.embed_tokens, target.lm_head
    expected, _ = draft_forward(tiny_draft(target), tokens, aux)
    np.testing.assert_array_equal(draft_forward(short, tokens, aux)[0], expected)
