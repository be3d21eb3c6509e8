"""A twin of each law: its mechanism is broken, and the law fails."""

from dataclasses import replace
from typing import Any

import jax
import pytest
import test_laws as laws
from broken_programs import compile_rounds_anew
from broken_verify import BROKEN, one_more
from catalogue import WORLDS
from jax import Array
from record import Record
from sweeps import sweep
from world import World

from eagle3_jax.engine.grammars.llguidance_grammars import LLGuidanceMatcher
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.programs import executor
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.layers import gqa, mla
from eagle3_jax.speculative import round as round_module

BY_NAME = {world.name: world for world in WORLDS}
COUNT = 8


def world_test(name: str, *others: str) -> pytest.MarkDecorator:
    """Of these worlds, in the process that has their programs."""
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
@pytest.mark.parametrize(("layer", "name"), [(mla, "mla_decode"), (gqa, "gqa_decode")])
def test_a_row_read_too_far_is_noticed(
    world: World, layer: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the target's attention and in the draft's, which sees one slot past its position."""
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
    give_back = PagePool.give_back
    monkeypatch.setattr(PagePool, "give_back", lambda pool, pages: give_back(pool, pages[1:]))
    with pytest.raises(AssertionError, match="pages"):
        laws.test_pages_and_slots_come_back(Record.of(world, 2))


@world_test("chain")
def test_a_miscounted_token_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Sequence.take
    monkeypatch.setattr(Sequence, "take", lambda *inputs: take(*inputs) + 1)
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
    """Such as of an operation outside of programs."""
    record = Record.of(replace(world, prepare=lambda _: compile_anew()), 2)
    with pytest.raises(AssertionError):
        laws.test_nothing_compiles_after_warm_up(record)


def compile_anew() -> None:
    jax.jit(lambda x: x + 41)(1.0)


def first_mask_everywhere(matcher: Any, masks: Any, drafts: list[int]) -> list[int]:
    """Fills every row as if there were no drafts before it."""
    FILL(matcher, masks[:1], [])
    masks[1:] = masks[0]
    return drafts


FILL = LLGuidanceMatcher.fill


@world_test("grammar", "grammar and tree")
def test_masks_that_do_not_follow_the_drafts_are_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record.of(world, 2 * COUNT)
    assert record.plain
    monkeypatch.setattr(LLGuidanceMatcher, "fill", first_mask_everywhere)
    with pytest.raises(AssertionError):
        laws.test_speculation_changes_no_answer(record)
