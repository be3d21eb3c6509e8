"""Edges of rejection sampling and of synthetic acceptance that enumeration does not reach."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lab import one_row
from slot_rows import decoding_rows

from eagle3_jax.sampling.noise import Stream, uniform
from eagle3_jax.sampling.sampler import NO_CANDIDATE, NOT_FINITE, sample
from eagle3_jax.speculative import rejection
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.rejection import verify_by_rejection
from eagle3_jax.speculative.state import SlotRows
from eagle3_jax.speculative.synthetic import verify_synthetic

VOCAB, SEQ_LEN, LAST_UNIFORM = 4, 10, 1 - 2.0**-24
VERIFY = jax.jit(verify_by_rejection)
FORCE = jax.jit(verify_synthetic, static_argnums=3)


def rows(batch: int, k: int, num_drafts: Any = None, **options: Any) -> SlotRows:
    """Rows at length SEQ_LEN with room enough, row i of seed i."""
    repeated: Any = jax.tree.map(lambda x: jnp.repeat(x, batch, axis=0), one_row(**options))
    seeds = jnp.stack([jnp.arange(batch), jnp.zeros(batch, int)], axis=1).astype(jnp.uint32)
    at = np.full(batch, SEQ_LEN)
    made = decoding_rows(replace(repeated, seed=seeds), at, at + 89, k)
    wanted = made.num_drafts if num_drafts is None else jnp.asarray(num_drafts, jnp.int32)
    return replace(made, num_drafts=wanted)


def one_draft(p: list[float], q: list[float], draft: int, batch: int) -> tuple[jax.Array, Drafts]:
    """Logits and drafts of `batch` equal rows with one draft each."""
    logits = jnp.log(jnp.broadcast_to(jnp.array(p, jnp.float32), (batch, 2, VOCAB)))
    distribution = jnp.broadcast_to(jnp.array(q, jnp.float32), (batch, 1, VOCAB))
    return logits, Drafts(jnp.full((batch, 1), draft, jnp.int32), distribution)


def fixed(value: float, _: jax.Array, positions: jax.Array) -> jax.Array:
    return jnp.full(positions.shape, value)


@pytest.mark.parametrize(
    ("p", "q", "u", "accepted"),
    [
        (0.0, 0.5, 0.0, 0),  # what the target would never say, at the least u
        (0.5, 0.0, 0.0, 0),  # what was never drawn
        (0.5, 0.5, LAST_UNIFORM, 1),  # equal distributions, at the largest u
        (0.5, 1.0, 0.5, 0),  # u = p / q is not below it
        (0.5, 1.0, 0.5 - 2.0**-24, 1),
    ],
)
def test_a_draft_is_accepted_iff_u_is_below_p_over_q(
    p: float, q: float, u: float, accepted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection, "uniform", partial(fixed, u))
    inputs = one_draft([p, 1 - p, 0, 0], [q, 0, 1 - q, 0], 0, batch=1)
    result = jax.jit(lambda *x: verify_by_rejection(*x))(*inputs, rows(1, 1, temperature=1.0))
    assert int(result.num_accepted[0]) == accepted


def test_where_nothing_is_left_of_p_the_token_comes_from_p() -> None:
    distribution = [0.5, 0.5, 0.0, 0.0]
    inputs = one_draft(distribution, distribution, 2, batch=4000)
    result = VERIFY(*inputs, rows(4000, 1, temperature=1.0))
    assert not np.asarray(result.num_accepted).any()
    share = np.bincount(np.asarray(result.token_ids)[:, 0], minlength=VOCAB) / 4000
    np.testing.assert_allclose(share, distribution, atol=4 * np.sqrt(0.25 / 4000))


def test_without_valid_drafts_a_row_is_plain_decoding_token_for_token() -> None:
    batch, k = 32, 2
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(batch, k + 1, VOCAB)), jnp.float32)
    distribution = jnp.full((batch, k, VOCAB), 1 / VOCAB)
    state = rows(batch, k, num_drafts=[0] * batch, temperature=1.0)
    drafts = Drafts(jnp.zeros((batch, k), jnp.int32), distribution)
    result = VERIFY(logits, drafts, state)
    plain = jax.jit(sample)(logits[:, :1], jnp.full((batch, 1), SEQ_LEN + 1), state.options)
    np.testing.assert_array_equal(result.token_ids[:, :1], plain)
    assert not np.asarray(result.num_accepted).any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("bad", "code"), [(jnp.nan, NOT_FINITE), (-jnp.inf, NO_CANDIDATE)])
def test_a_row_that_cannot_choose_accepts_nothing_and_says_why(
    bad: float, code: int, temperature: float
) -> None:
    logits, drafts = one_draft([0.5, 0.5, 0, 0], [1, 0, 0, 0], 0, batch=2)
    logits = logits.at[0].set(bad)
    batch = rows(2, 1, temperature=temperature)
    result = VERIFY(logits, drafts, batch)
    assert int(result.num_accepted[0]) == 0 and int(result.token_ids[0, 0]) == code
    assert bool(result.finished[0]) and int(result.token_ids[1, 0]) >= 0
    forced = FORCE(logits, drafts.ids, batch, (1.0,))
    assert int(forced.num_accepted[0]) == 0 and int(forced.token_ids[0, 0]) == code
    assert int(forced.num_accepted[1]) == 1


def test_a_block_is_as_likely_to_reach_a_row_that_fails_as_any_other() -> None:
    """Its drafts' weight is 1/2, whatever the row behind them holds."""
    batch, p, q = 4000, jnp.array([0.5, 0.5, 0, 0]), jnp.array([1.0, 0, 0, 0])
    logits = jnp.broadcast_to(jnp.log(p), (batch, 3, VOCAB)).at[:, 1].set(jnp.nan)
    drafts = Drafts(jnp.zeros((batch, 2), jnp.int32), jnp.broadcast_to(q, (batch, 2, VOCAB)))
    result = jax.jit(partial(verify_by_rejection, block=True))(
        logits, drafts, rows(batch, 2, temperature=1.0)
    )
    accepted, tokens = np.asarray(result.num_accepted), np.asarray(result.token_ids)
    assert abs((accepted == 1).mean() - 0.5) < 4 * np.sqrt(0.25 / batch)
    assert set(accepted) == {0, 1} and (tokens[accepted == 1, 1] == NOT_FINITE).all()


def test_the_streams_of_a_seed_are_independent_uniforms() -> None:
    seeds = jnp.stack([jnp.arange(2000), jnp.zeros(2000, int)], axis=1).astype(jnp.uint32)
    streams = [seeds, *(stream.seed(seeds) for stream in Stream)]
    starts = jnp.full(2000, SEQ_LEN)
    streams += [stream.seed(seeds, starts + i) for stream in Stream for i in range(2)]
    drawn = np.stack([np.asarray(uniform(s, jnp.arange(8)[None])).ravel() for s in streams])
    assert (drawn >= 0).all() and (drawn < 1).all()
    assert np.abs(drawn.mean(axis=1) - 0.5).max() < 4 * np.sqrt(1 / 12 / drawn.shape[1])
    correlation = np.corrcoef(drawn) - np.eye(len(streams))
    assert np.abs(correlation).max() < 4.5 / np.sqrt(drawn.shape[1])


def test_synthetic_rates_are_those_of_whole_prefixes_and_the_target_goes_on() -> None:
    batch, rates = 6000, (0.9, 0.9, 0.3)
    logits = jnp.zeros((batch, 4, VOCAB)).at[:, :, 3].set(9.0)
    drafts = jnp.tile(jnp.array([[0, 1, 2]], jnp.int32), (batch, 1))
    result = FORCE(logits, drafts, rows(batch, 3), rates)
    accepted = np.asarray(result.num_accepted)
    for i, rate in enumerate(rates):
        assert abs((accepted > i).mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / batch)
    tokens, kept = np.asarray(result.token_ids), np.arange(3) < accepted[:, None]
    np.testing.assert_array_equal(tokens[:, :3][kept], np.asarray(drafts)[kept])
    assert (tokens[np.arange(batch), accepted] == 3).all()
    assert set(accepted[: batch // 10]) == {0, 2, 3}


def test_synthetic_acceptance_keeps_what_ends_or_bars_a_token() -> None:
    logits = jnp.zeros((2, 4, VOCAB)).at[1, 1, 1].set(-jnp.inf)
    drafts = jnp.tile(jnp.array([[0, 1, 2]], jnp.int32), (2, 1))
    state = rows(2, 3, num_drafts=[3, 3], stop_ids=[1])
    result = FORCE(logits, drafts, state, (1.0, 1.0, 1.0))
    assert result.num_accepted.tolist() == [3, 1]
    assert bool(result.finished[0])
    short = FORCE(logits, drafts, rows(2, 3, num_drafts=[1, 0]), (1.0, 1.0, 1.0))
    assert short.num_accepted.tolist() == [1, 0]
