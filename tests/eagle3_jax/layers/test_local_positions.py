"""Where a position lies among devices that divide pages, against counting one slot at a time."""

import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.layers.split_context import local_positions

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


@pytest.mark.parametrize("device", range(3))
def test_local_positions_count_what_a_device_holds(device: int) -> None:
    part_size, parts = 2, 3
    held = np.cumsum((np.arange(40) // part_size) % parts == device)
    local = local_positions(jnp.arange(40), part_size, parts, device)
    assert np.array_equal(np.asarray(local), held - 1)
