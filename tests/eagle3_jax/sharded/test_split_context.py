"""Latents that four devices divide, written and attended to at every border of parts and pages."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_devices import AXES, on_devices

from eagle3_jax.cache import KVPool, PageView, SplitPool, view_pages
from eagle3_jax.collectives import Axis
from eagle3_jax.layers import split_context
from eagle3_jax.layers.split_context import local_positions
from pallas_kernels import PagedKV
from pallas_kernels.paged.rows import scatter_rows

DEVICES, PART, ROWS = 4, 2, 4
HEADS, NOPE, KV_LORA, ROPE, VALUE, SCALE = 4, 3, 8, 4, 5, 0.25
LENGTHS = np.arange(20)
"""Of contexts before the rows: they begin and end everywhere in pages of 4 and of 8 tokens."""
PAGES_EACH, LONGEST = 6, 24
AT = LENGTHS[:, None] + np.arange(ROWS)
rng = np.random.default_rng(0)
CONTEXT = rng.normal(size=(len(LENGTHS), LONGEST, KV_LORA + ROPE)).astype(np.float32)
Q_NOPE, Q_ROPE = (
    rng.normal(size=(len(LENGTHS), ROWS, HEADS, width)).astype(np.float32) for width in (NOPE, ROPE)
)
KEY, VALUES = (
    rng.normal(size=(HEADS, *shape)).astype(np.float32)
    for shape in ((KV_LORA, NOPE), (KV_LORA, VALUE))
)
TABLE = 1 + rng.permutation(len(LENGTHS) * PAGES_EACH).reshape(-1, PAGES_EACH).astype(np.int32)


@cache
def expected() -> np.ndarray:
    """[batch, rows, heads, value] in float64: row i of a sequence sees `length + i + 1` tokens."""
    context, q_nope = CONTEXT.astype(np.float64), Q_NOPE.astype(np.float64)
    q = np.concatenate([np.einsum("bqhn,hcn->bqhc", q_nope, KEY), Q_ROPE], axis=-1)
    scores = np.einsum("bqhc,bsc->bqhs", q, context) * SCALE
    seen = np.arange(LONGEST) <= AT[..., None]
    weights = np.exp(np.where(seen[:, :, None], scores, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bqhs,bsc,hcv->bqhv", weights, context[..., :KV_LORA], VALUES)


def view_of(positions: np.ndarray, valid: np.ndarray, parts: int) -> PageView:
    return view_pages(jnp.asarray(TABLE), jnp.asarray(positions), jnp.asarray(valid), PART * parts)


def written(pool: jax.Array, parts: int, *, whole: bool = False) -> tuple[PagedKV, PageView]:
    """A device's part of a pool of NaN, or all of it, after the context, four rejected rows that
    reach further than any that is seen, and the rows in their place; and the last call's view."""
    before = np.broadcast_to(np.arange(LONGEST), (len(LENGTHS), LONGEST))
    rows = np.take_along_axis(CONTEXT, AT[..., None], axis=1)
    for positions, valid, latents in (
        (before, before < LENGTHS[:, None], CONTEXT),
        (AT + 1, AT + 1 < LONGEST, np.full_like(rows, np.nan)),
        (AT, AT >= 0, rows),
    ):
        view = view_of(positions, valid, parts)
        own = view if whole else split_context.own_part(view, SplitPool(pool, parts), AXES)
        pool = scatter_rows(pool, jnp.asarray(latents), own.write_pages, own.write_offsets)
    return PagedKV((pool,), (None,), own.page_table, own.positions), view


def attended(parts: int, *, prompt: bool = False) -> np.ndarray:
    """By four devices, of which so many divide a context; each has one head. prompt: as rows of
    a prompt's chunk, for which latents are gathered."""

    def on_each(pool: Any, q_nope: Any, q_rope: Any, key_kernel: Any, value_kernel: Any) -> Any:
        paged, view = written(pool, parts)
        group = split_context.ContextGroup(AXES, parts)
        kernels = {"key_kernel": key_kernel, "value_kernel": value_kernel}
        if prompt:
            chunk = q_nope, q_rope, paged, view, SCALE, group
            return split_context.attend_in_chunks(*chunk, **kernels)
        q_latent = jnp.einsum("bqhn,hcn->bqhc", q_nope, key_kernel)
        queries = q_latent, q_rope, paged, SCALE
        return split_context.attend_to_shares(*queries, value_kernel, group)

    pools = jnp.full((TABLE.size + 1, DEVICES * PART, KV_LORA + ROPE), jnp.nan)
    inputs = pools, *map(jnp.asarray, (Q_NOPE, Q_ROPE, KEY, VALUES))
    of_devices = on_devices(DEVICES, on_each, split=(1, 2, 2, 0, 0))(*inputs)
    return np.concatenate(np.asarray(of_devices), axis=2)


@pytest.mark.parametrize("parts", [2, 4])
def test_rows_at_any_border_see_what_one_device_would_show_them(parts: int) -> None:
    np.testing.assert_allclose(attended(parts), expected(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("parts", [2, 4])
def test_so_do_rows_of_a_prompt_whose_context_is_gathered_in_chunks(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_context, "GATHERED_SLOTS", 8)
    np.testing.assert_allclose(attended(parts, prompt=True), expected(), rtol=0, atol=1e-5)


def test_so_do_those_of_a_device_that_goes_through_a_whole_context_in_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages of 4 tokens, two of them at a time."""
    monkeypatch.setattr(split_context, "GATHERED_SLOTS", 8)

    @jax.jit
    def attend(pool: Any, q_nope: Any, q_rope: Any, key_kernel: Any, value_kernel: Any) -> Any:
        paged, view = written(pool, 2, whole=True)
        assert split_context.goes_in_chunks(paged, None)
        kernels = {"key_kernel": key_kernel, "value_kernel": value_kernel}
        return split_context.attend_in_chunks(q_nope, q_rope, paged, view, SCALE, None, **kernels)

    pool = jnp.full((TABLE.size + 1, 2 * PART, KV_LORA + ROPE), jnp.nan)
    found = attend(pool, *map(jnp.asarray, (Q_NOPE, Q_ROPE, KEY, VALUES)))
    np.testing.assert_allclose(found, expected(), rtol=0, atol=1e-5)


def one_more_on_one_device(pages: PageView, pool: KVPool, axis: Axis) -> PageView:
    own = RIGHT_PART(pages, pool, axis)
    return replace(own, positions=own.positions + (jax.lax.axis_index(axis) == 2))


def without_weights(shares: jax.Array, value_kernel: jax.Array) -> jax.Array:
    """The plain mean of the devices' means."""
    mean = shares[..., :KV_LORA].mean(0)
    return jnp.einsum("bqhc,hcv->bqhv", mean, value_kernel)


RIGHT_PART = split_context.own_part


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("own_part", one_more_on_one_device),
        ("share_values", without_weights),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_position_and_a_merge_without_weights_are_noticed(
    name: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_context, name, wrong)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(attended(4), expected(), rtol=0, atol=1e-3)


LAST = 2**31 - 2
POSITIONS = np.unique(
    np.concatenate([np.arange(600), np.random.default_rng(0).integers(0, LAST, 4000), [LAST]])
)


@pytest.mark.parametrize("part_size", [1, 3, 16, 64])
@pytest.mark.parametrize("parts", [1, 2, 8])
def test_every_visible_slot_is_held_by_one_device(part_size: int, parts: int) -> None:
    positions = jnp.asarray(POSITIONS, jnp.int32)
    seen = np.stack(
        [np.asarray(local_positions(positions, part_size, parts, d)) for d in range(parts)]
    ).astype(np.int64)
    assert np.array_equal((seen + 1).sum(0), POSITIONS + 1)
    # The last of all lies where it is written: behind what its device holds of earlier pages.
    page, offset = np.divmod(POSITIONS, part_size * parts)
    owner, place = np.divmod(offset, part_size)
    assert np.array_equal(seen[owner, np.arange(len(owner))], page * part_size + place)
