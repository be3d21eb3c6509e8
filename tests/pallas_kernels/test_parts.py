"""How many parts contexts have: what fills a GPU, or in exact mode what follows from the row."""

import jax.numpy as jnp
import pytest

from pallas_kernels import PagedKV, gpu
from pallas_kernels.exact import exact_bits
from pallas_kernels.mla_decode.pallas import choose_tiles
from pallas_kernels.paged.context_part import AttentionTiles
from pallas_kernels.paged.parts import COMPUTE_UNITS, MOST_PARTS, parts_that_fill

BATCHES = (1, 4, 16, 48, 64, 256)


def tiles_of(batch: int, rows: int) -> AttentionTiles:
    pool, table = jnp.zeros((2, 64, 576), jnp.bfloat16), jnp.zeros((batch, 1), jnp.int32)
    paged = PagedKV((pool,), (None,), table, jnp.zeros((batch, 1), jnp.int32))
    return choose_tiles(batch, rows, 512, jnp.bfloat16, paged)


@pytest.mark.parametrize("arch", COMPUTE_UNITS)
@pytest.mark.parametrize("batch", BATCHES)
def test_programs_of_64_rows_are_one_for_each_compute_unit_or_fewer_than_two_rounds(
    arch: str, batch: int
):
    with gpu.assume(arch):
        programs = batch * tiles_of(batch, 64).splits
        assert programs <= max(batch, COMPUTE_UNITS[arch])
        assert tiles_of(batch, 64).splits == MOST_PARTS or 2 * programs > COMPUTE_UNITS[arch]


def test_parts_are_a_power_of_two_and_at_least_one():
    found = {parts_that_fill(programs) for programs in range(1, 400)}
    assert found == {1, 2, 4, 8, 16, 32}


@pytest.mark.parametrize("rows", [8, 16, 64, 112, 1024])
def test_exact_bits_are_cut_by_the_row_alone(rows: int):
    with exact_bits(True):
        alike = {tiles_of(batch, rows) for batch in BATCHES}
    assert len(alike) == 1
    assert len({tiles_of(batch, rows) for batch in BATCHES}) > 1
