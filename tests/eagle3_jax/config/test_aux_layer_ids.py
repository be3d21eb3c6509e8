"""Published ids of aux layers, in both conventions."""

import pytest
from published_configs import read_draft

from eagle3_jax.config import (
    canonical_aux_layer_ids,
    default_aux_layer_ids,
)


@pytest.mark.parametrize(
    ("layers", "explicit", "canonical"),
    [
        (61, None, (2, 30, 58)),
        (62, None, (2, 31, 59)),
        (61, [1, 29, 57], (2, 30, 58)),
        (61, [2, 30, 58], (2, 30, 58)),
        (62, [1, 30, 58], (2, 31, 59)),
        (4, [0, 1, 2], (1, 2, 3)),
        (4, [3], (4,)),
        (8, [2, 4, 5], (2, 4, 5)),
    ],
)
def test_explicit_ids_are_outputs_unless_they_are_the_default_inputs(
    layers: int, explicit: list[int] | None, canonical: tuple[int, ...]
) -> None:
    assert canonical_aux_layer_ids(explicit, layers) == canonical
    for place in ("eagle_config", None):
        named = {"eagle_aux_hidden_state_layer_ids": explicit}
        config = read_draft(layers, **({place: named} if place else named))
        assert config.aux_layer_ids == canonical


def test_a_convention_overrides_the_reading() -> None:
    assert canonical_aux_layer_ids([2, 30, 58], 61, "after") == (3, 31, 59)
    assert canonical_aux_layer_ids([1, 29, 57], 61, "before") == (1, 29, 57)
    assert canonical_aux_layer_ids(None, 61, "after") == default_aux_layer_ids(61)


@pytest.mark.parametrize("ids", [[61], [-2], [], [1, 2, 99]])
def test_ids_outside_the_target_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="61"):
        canonical_aux_layer_ids(ids, 61)


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(ValueError, match="sideways"):
        canonical_aux_layer_ids(None, 61, "sideways")  # pyright: ignore[reportArgumentType]
