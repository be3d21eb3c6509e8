"""The unroll is the chain of inference from every row at once; training lowers its loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_pair import DRAFT, LATENT_DRAFT, louder, random_batch, tiny_draft, tiny_target

from eagle3_jax.full_pass import draft_forward, forward
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.training.draft import draft_step, draft_vocabulary, lesson, split_draft
from eagle3_jax.training.loop import TrainState
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.unroll import unroll

STEPS = 4
run_unroll = nnx.jit(partial(unroll, num_steps=STEPS))


@pytest.fixture(scope="module")
def target() -> Target:
    target = tiny_target()
    louder(target.lm_head, 5.0)  # a decided teacher
    return target


@pytest.fixture(scope="module", params=["grouped"])
def draft(request: pytest.FixtureRequest, target: Target) -> Eagle3Draft:
    config = {"grouped": DRAFT, "latent": LATENT_DRAFT}[request.param]
    draft = tiny_draft(target, config=config)
    louder(draft.midlayer, 6.0)
    return draft


@pytest.mark.parametrize("draft", ["grouped", "latent"], indirect=True)
def test_step_j_equals_the_chain_inference_would_run(target: Target, draft: Eagle3Draft) -> None:
    """For one segment and each starting row r: features up to r, then the draft's own states."""
    length = 12
    token_ids = jax.random.randint(jax.random.key(0), (1, length + 1), 0, 40)
    aux = forward(target, token_ids, aux_layer_ids=draft.config.aux_layer_ids).aux_hidden[:, :-1]
    next_ids, positions = token_ids[:, 1:], jnp.arange(length)[None]
    states = run_unroll(draft, next_ids, aux, positions, jnp.ones((1, length), jnp.int32))
    np.testing.assert_allclose(states[0], draft_forward(draft, next_ids, aux)[1], atol=1e-5)

    @nnx.jit
    def one_pass(draft, inputs):
        return draft(next_ids, inputs, positions)[0]

    fused = draft.fuse(aux)
    for start in (0, 1, 4, length - STEPS):
        inputs = fused  # rows after the last one of the chain are not seen: attention is causal
        for step in range(STEPS):
            row = start + step
            out = one_pass(draft, inputs)[0, row]
            np.testing.assert_allclose(states[step][0, row], out, atol=2e-5)
            inputs = inputs.at[0, (row + 1) % length].set(out)


def test_segments_do_not_see_each_other(draft: Eagle3Draft) -> None:
    ids = jax.random.randint(jax.random.key(1), (1, 16), 0, 40)
    aux = jax.random.normal(jax.random.key(2), (1, 16, 96))
    packed_positions = jnp.tile(jnp.arange(8), 2)[None]
    segments = jnp.repeat(jnp.asarray([1, 2]), 8)[None]
    packed = run_unroll(draft, ids, aux, packed_positions, segments)
    ones = jnp.ones((1, 8), jnp.int32)
    alone = run_unroll(draft, ids[:, 8:], aux[:, 8:], packed_positions[:, :8], ones)
    for step in range(STEPS):
        np.testing.assert_allclose(packed[step][:, 8 + step :], alone[step][:, step:], atol=1e-5)


def test_a_lesson_lines_the_target_up_with_the_drafts_rows(
    target: Target, draft: Eagle3Draft
) -> None:
    batch = random_batch(3)
    taught = nnx.jit(lesson)(target, draft, batch)
    tokens = jnp.asarray(batch.token_ids[:1, :8])
    size = int((batch.segments[0] == 1).sum())
    logits = forward(target, tokens).logits[0]
    ids = np.asarray(draft.target_ids)
    for row in range(min(size, 8) - 1):
        expected = jax.nn.softmax(logits[row + 1])
        np.testing.assert_allclose(taught.probs[0, row], expected[ids], atol=1e-4)
        winner = int(jnp.argmax(expected))
        assert int(taught.best[0, row]) == (ids.tolist().index(winner) if winner in ids else -1)
    assert taught.wanted[0, : size - 2].tolist() == [float(i >= 2) for i in range(size - 2)]
    assert not taught.wanted[0, size - 2 : size].any()


def test_the_commonest_ids_make_the_draft_vocabulary() -> None:
    counts = np.asarray([5, 0, 9, 1, 5, 7])
    d2t = draft_vocabulary(counts, 4)
    assert (np.arange(4) + d2t).tolist() == [0, 2, 4, 5]


def test_loss_falls_and_shared_embedding_and_target_stay(target: Target) -> None:
    graphdef, params, rest = split_draft(tiny_draft(target))
    target_graphdef, target_state = nnx.split(target)
    optimizer = adamw(1e-2, 30, warmup=5)
    step = jax.jit(draft_step(optimizer, graphdef, target_graphdef, 3))
    state, history = TrainState(params, optimizer.init(params)), []
    for _ in range(30):
        state, metrics = step(state, (rest, target_state), random_batch(0))
        history.append(metrics)
    losses = [float(metrics.loss) for metrics in history]
    assert losses[-1] < 0.7 * losses[0]
    assert "embed_tokens" in rest and "embed_tokens" not in state.params
    assert 1 <= float(history[-1].accept_length) <= 4
