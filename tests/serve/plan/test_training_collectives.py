"""What devices tell each other in a draft's update, counted in the compiled program."""

from dataclasses import replace

import jax
import pytest
from narrow_pair import HIDDEN, VOCAB, small_pair
from published_pairs import PUBLISHED

from eagle3_jax.training.lesson import CPU_BLOCK
from eagle3_tools.aot.collectives import collectives
from eagle3_tools.plan.compile.training_programs import AbstractProgram, training_programs
from eagle3_tools.plan.compile.training_step import DRAFTS, TARGETS, step_options

OPTIONS = step_options(PUBLISHED, TARGETS[0], DRAFTS[0])
LENGTH = 384


def small_update(draft: str, draft_vocab: int) -> AbstractProgram:
    options = replace(OPTIONS, unroll=2, pair=replace(OPTIONS.pair, max_model_len=LENGTH))
    pair = small_pair(draft, draft_vocab)
    return training_programs(options, pair, "gfx950", jax.devices())["update"]


@pytest.mark.parametrize(("draft", "draft_vocab"), [(DRAFTS[0], VOCAB // 2), (DRAFTS[1], VOCAB)])
def test_an_update_keeps_its_state_in_place_and_tells_sums_of_states_alone(
    draft: str, draft_vocab: int
) -> None:
    """On eight devices: moments, too, come out where they went in, and nothing is told that is as
    wide as a vocabulary or larger than the states of a row, but for the columns of a reduced one,
    which are of any device's part: a block of positions at a time."""
    program = small_update(draft, draft_vocab)
    update = jax.jit(program.function, donate_argnums=program.donate)
    compiled = update.lower(*program.shapes).compile()
    given, left = jax.tree.leaves(program.shapes[0]), jax.tree.leaves(compiled.output_shardings[0])
    moved = [
        shape.shape
        for shape, sharding in zip(given, left, strict=True)
        if not shape.sharding.is_equivalent_to(sharding, len(shape.shape))
    ]
    assert not moved
    found = collectives(compiled.as_text() or "")
    wide = [one for one in found if {*one.shape} & {VOCAB, draft_vocab}]
    reduced = draft_vocab if draft_vocab < VOCAB else 0
    assert all(one.nbytes <= CPU_BLOCK * reduced * 4 for one in wide)
    states = [one for one in found if one not in wide]
    # Of an embedding beside a state, which the layer reads.
    assert states and max(one.nbytes for one in states) <= LENGTH * 2 * HIDDEN * 4
