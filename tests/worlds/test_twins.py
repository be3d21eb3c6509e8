"""Twins of the laws: each breaks a law's mechanism, and the law must fail."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import test_laws as laws
from broken_programs import compile_rounds_anew
from broken_verify import BROKEN, one_more
from catalogue import WORLDS
from driving import drive, sizes
from image_traffic import SHOWN
from jax import Array
from record import Record
from sweeps import sweep
from tiny_vision import PAD, with_images
from traffic import Run
from world import World

from eagle3_jax.cache import KVPool, PageView
from eagle3_jax.collectives import Axis, own_rows_sum
from eagle3_jax.engine.grammars.llguidance_grammars import LLGuidanceMatcher
from eagle3_jax.engine.kv import prefix_cache
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.programs import executor
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.layers import gqa, mla, moe, split_context
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative import round as round_module
from pallas_kernels.paged.partial import MASS

pytestmark = pytest.mark.usefixtures("room_after_each")
BY_NAME = {world.name: world for world in WORLDS}
COUNT = 8


def world_test(name: str, *others: str) -> pytest.MarkDecorator:
    """Parametrize a test with these worlds, in the process that has their programs."""
    worlds = [BY_NAME[each] for each in (name, *others)]
    return pytest.mark.parametrize(
        "world",
        [pytest.param(w, id=w.name, marks=pytest.mark.xdist_group(w.program)) for w in worlds],
    )


@world_test("chain")
@pytest.mark.parametrize("wrong", sweep(BROKEN, [one_more]), ids=lambda f: f.__name__)
def test_a_wrong_verify_is_noticed(
    world: World, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record.of(world, COUNT)
    assert record.plain
    monkeypatch.setattr(round_module, "verify", wrong)
    compile_rounds_anew(monkeypatch, executor)
    with pytest.raises(AssertionError, match="not a tie"):
        laws.test_speculation_changes_no_answer(record)


@world_test("chain")
@pytest.mark.parametrize(
    ("layer", "name"), sweep([(mla, "mla_decode"), (gqa, "gqa_decode")], [(mla, "mla_decode")])
)
def test_a_row_read_too_far_is_noticed(
    world: World, layer: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attention of the target or the draft sees one slot beyond its position."""
    exact = getattr(layer, name)

    def too_far(*inputs: Any, **options: Any) -> Array:
        *queries, paged = inputs
        return exact(*queries, replace(paged, positions=paged.positions + 1), **options)

    monkeypatch.setattr(layer, name, too_far)
    compile_rounds_anew(monkeypatch, executor)
    with pytest.raises(AssertionError, match="stale rows were read"):
        laws.test_stale_rows_are_never_read(Record.of(world, COUNT))


@world_test("chain")
def test_a_page_that_does_not_come_back_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = PagePool.release
    monkeypatch.setattr(PagePool, "release", lambda pool, pages: release(pool, pages[1:]))
    with pytest.raises(AssertionError, match="pages"):
        laws.test_pages_and_slots_come_back(Record.of(world, 2))


@world_test("chain")
def test_a_miscounted_token_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Sequence.commit
    monkeypatch.setattr(Sequence, "commit", lambda *inputs: take(*inputs) + 1)
    with pytest.raises(AssertionError):
        laws.test_counters_add_up(Record.of(world, 2))


@world_test("chain")
def test_an_eviction_that_no_event_tells_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KVEventLog, "removed", lambda *_: None)
    with pytest.raises(AssertionError):
        laws.test_events_rebuild_the_index(Record.of(world, COUNT))


@world_test("chain")
def test_a_compilation_in_service_is_noticed(world: World) -> None:
    """An operation outside of programs compiles."""
    record = Record.of(replace(world, prepare=lambda _: compile_anew()), 2)
    with pytest.raises(AssertionError):
        laws.test_nothing_compiles_after_warm_up(record)


def compile_anew() -> None:
    jax.jit(lambda x: x + 41)(jax.device_put(1.0))


def first_mask_everywhere(matcher: Any, masks: Any, drafts: list[int]) -> list[int]:
    """Fill every row as if no drafts preceded it."""
    FILL(matcher, masks[:1], [])
    masks[1:] = masks[0]
    return drafts


FILL = LLGuidanceMatcher.fill


@pytest.mark.long
@world_test("grammar, k by batch")
def test_masks_that_do_not_follow_the_drafts_are_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record.of(world, 2 * COUNT)
    assert record.plain
    monkeypatch.setattr(LLGuidanceMatcher, "fill", first_mask_everywhere)
    with pytest.raises(AssertionError):
        laws.test_speculation_changes_no_answer(record)


def position_off_by_one(pages: PageView, pool: KVPool, axis: Axis) -> PageView:
    """Show all devices except the first one slot less than they should see, or scratch."""
    own = split_context.own_part(pages, pool, axis)
    if axis is None:  # the reference, which has whole contexts
        return own
    first = jax.lax.axis_index(axis) == 0
    return replace(own, positions=jnp.where(first, own.positions, own.positions - 1))


def values_without_weights(shares: Array, value_kernel: Array) -> Array:
    """Return the unweighted mean of the devices' means."""
    return jnp.einsum("bqhc,hcd->bqhd", shares[..., : value_kernel.shape[1]].mean(0), value_kernel)


def joined_without_weights(shares: Array) -> Array:
    """Return the unweighted mean of the devices' means."""
    return jnp.mean(shares[..., :-MASS], axis=0)


def first_head(units: int, axis: Axis) -> int:
    """Give every device the first KV head."""
    return 0


def sums_of_a_neighbour(x: Array, axis: Axis) -> Array:
    """Give every replica the next one's rows."""
    assert axis is not None, "replicas have an axis"
    return own_rows_sum(jnp.roll(x, x.shape[0] // jax.lax.axis_size(axis), axis=0), axis)


BROKEN_DEVICES = [
    ("2 replicas, exact", moe, "own_rows_sum", sums_of_a_neighbour),
    ("2 parts, grouped, exact", mla, "own_part", position_off_by_one),
    ("2 parts, grouped, exact", split_context, "share_values", values_without_weights),
    ("2 parts, float8", mla, "own_part", position_off_by_one),
    ("2 parts, float8", split_context, "share_values", values_without_weights),
    ("shared heads of 2 parts, exact", gqa, "own_unit", first_head),
    ("shared heads of 2 parts, exact", gqa, "own_part", position_off_by_one),
    ("shared heads of 2 parts, exact", split_context, "join_shares", joined_without_weights),
]


@pytest.mark.long
@pytest.mark.xdist_group("devices")
@pytest.mark.parametrize(("name", "module", "function", "wrong"), BROKEN_DEVICES)
def test_what_devices_tell_each_other_wrongly_is_noticed(
    name: str, module: Any, function: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/eagle3_jax/sharded/test_split_context.py is the short form for split contexts."""
    record = Record.of(BY_NAME[name], COUNT)
    assert record.plain
    monkeypatch.setattr(module, function, wrong)
    compile_rounds_anew(monkeypatch, executor)
    with pytest.raises(AssertionError, match="not a tie"):
        laws.test_speculation_changes_no_answer(record)


@pytest.mark.long
@pytest.mark.xdist_group("devices")
def test_pages_that_other_images_share_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send prompts that differ only in images of the same grid, in sequence and without drafts."""
    world = BY_NAME["seeing, draft too, 2 devices"]
    world = replace(world, models=world.alone, config=sizes(0))
    options: dict[str, Any] = {"max_tokens": 16, "stop_token_ids": [PAD], "ignore_eos": True}
    stem = [5, 9, 2, 7, 11, 3, 8, 1]
    requests = [
        with_images(f"{i}", [stem, SHOWN[i % 2], [9]], SamplingParams(seed=i, **options))
        for i in range(8)
    ]
    plain = world.plain(requests)
    monkeypatch.setattr(prefix_cache, "images_in", lambda *_: ())
    answers = drive(world.engine(), requests, arrival_gap=4)
    with pytest.raises(AssertionError, match="not a tie"):
        world.differences(requests, Run(answers, set()), plain)
