"""Laws that hold in every world. The twin of each law, in test_twins.py, breaks its mechanism."""

import math
from collections.abc import Callable

from catalogue import RAN, note_operations
from image_traffic import CUTS, note_cuts
from record import Record
from world import World

from eagle3_tools.bench.studies.equal import REQUESTS_PER_TIE

Test = Callable[[Record], None]
OPERATIONS = (
    *("cache_latents", "absorb_query", "mla_decode", "route", "grouped_mlp"),
    *("cache_heads", "gqa_decode", "logits_argmax"),
)


def only_where(fits: Callable[[World], bool]) -> Callable[[Test], Test]:
    """Has a law taken in these worlds alone."""

    def mark(test: Test) -> Test:
        vars(test)["fits"] = fits
        return test

    return mark


def test_speculation_changes_no_answer(record: Record) -> None:
    """Neither do batches, neighbours that are cancelled, preemption or pages that are found.

    A difference must be a tie by the rule of docs/architecture.md, in at most 1 answer of 500; in
    exact mode there is none.
    """
    requests, world = record.requests, record.world
    found = world.differences(requests, record.wild, record.plain)
    allowed = 0 if world.config.exact else math.ceil(len(requests) / REQUESTS_PER_TIE)
    assert len(found) <= allowed, found


def test_traffic_is_wild(record: Record) -> None:
    """Requests were cancelled and preempted, and prompts found in caches; drafts were accepted and
    rejected; kernels ran where they were asked for, and chunks began within images."""
    stats, world = record.wild_stats, record.world
    assert record.wild.cancelled, "nothing was cancelled"
    assert stats.num_preemptions, "nothing was preempted"
    assert stats.prefix_cache_hits, "no prompt began like another"
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    if world.config.num_lookup_tokens:
        assert 0 < stats.num_accepted_lookup_tokens < stats.num_lookup_draft_tokens
        others = stats.num_accepted_tokens - stats.num_accepted_lookup_tokens
        assert others > 0 or world.models().draft is None
    if world.prepare is note_operations:
        assert {f"{name} runs as pallas" for name in OPERATIONS} <= RAN
    if world.prepare is note_cuts:
        assert CUTS, "no image was cut"
        everywhere = world.long and not world.config.exact
        assert not everywhere or {*range(1, 12)} == CUTS, "not cut everywhere"


def test_pages_and_slots_come_back(record: Record) -> None:
    """An engine without requests holds no page, no slot, no round in flight and no copy."""
    _ = record.wild, record.steady
    assert record.leaks == []


def test_counters_add_up(record: Record) -> None:
    """Counters are the sums of what answers say."""
    steady = record.steady
    before, after, answers = steady.before, steady.after, steady.answers.values()
    accepted = after.num_accepted_tokens - before.num_accepted_tokens
    assert accepted == sum(sum(answer.accepted) for answer in answers)
    generated = after.generation_tokens - before.generation_tokens
    assert generated == sum(len(answer.token_ids) for answer in answers)
    prompts = [r for r in record.requests if r.request_id in steady.answers]
    assert after.prompt_tokens - before.prompt_tokens == sum(len(r.prompt_ids) for r in prompts)
    by_position = after.num_accepted_per_pos
    assert after.num_accepted_tokens == sum(by_position)
    assert list(by_position) == sorted(by_position, reverse=True)
    assert after.num_accepted_tokens <= after.num_draft_tokens


@only_where(lambda world: world.config.data_parallel_size == 1)
def test_events_rebuild_the_index(record: Record) -> None:
    """A copy that knows events alone has every key in every medium that the engine has it in."""
    _ = record.wild, record.steady
    copied, known = record.places
    assert copied == known and known


def test_nothing_compiles_after_warm_up(record: Record) -> None:
    """Every program that ran is one that warm-up compiles, and only new ones compile. On one
    device the steady pass runs under a guard against arrays that move by themselves."""
    steady, executor = record.steady, record.engine._runner.executor
    assert {*executor.compiled} <= {*executor.programs}
    assert steady.compilations <= steady.programs


@only_where(lambda world: world.repeats and world.config.data_parallel_size == 1)
def test_stale_rows_are_never_read(record: Record) -> None:
    """NaN past the committed rows, in scratch and in slots changes neither tokens nor acceptance:
    rows of rejected drafts and of earlier owners of pages."""
    assert record.spoiled.rounds == record.steady.rounds, "stale rows were read"
