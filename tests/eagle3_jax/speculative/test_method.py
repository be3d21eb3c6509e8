"""What a method may be, and the schedule of synthetic acceptance."""

from typing import Any

import pytest

from eagle3_jax.engine import EngineConfig
from eagle3_jax.speculative.method import COUPLED, speculation_method


@pytest.mark.parametrize(
    ("length", "k", "rates"),
    [
        (1.0, 3, (0.0, 0.0, 0.0)),
        (2.0, 3, (1.0, 0.0, 0.0)),
        (2.88, 3, (1.0, 0.88, 0.0)),
        (4.0, 3, (1.0, 1.0, 1.0)),
        (3.5, 6, (1.0, 1.0, 0.5, 0.0, 0.0, 0.0)),
    ],
)
def test_a_synthetic_length_is_the_schedule_of_least_variance(
    length: float, k: int, rates: tuple[float, ...]
) -> None:
    method = speculation_method("synthetic", k, length)
    assert method.synthetic_acceptance_rates == pytest.approx(rates)
    assert 1 + sum(method.synthetic_acceptance_rates or ()) == pytest.approx(length)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rejection_sample_method": "block"}, "one of coupled, standard, synthetic; got 'block'"),
        ({"synthetic_acceptance_length": 2.0}, "need rejection_sample_method 'synthetic'"),
        (
            {"rejection_sample_method": "standard", "synthetic_acceptance_rates": (0.5, 0.2, 0.1)},
            "need rejection_sample_method 'synthetic'",
        ),
        ({"rejection_sample_method": "synthetic"}, "got 0 of them"),
        (
            {
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": 2.0,
                "synthetic_acceptance_rates": (0.5, 0.2, 0.1),
            },
            "got 2 of them",
        ),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 4.5},
            r"\[1, 4\]; got 4.5",
        ),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": float("nan")},
            r"\[1, 4\]; got nan",
        ),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": (0.5, 0.6, 0.1)},
            "do not rise",
        ),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": (0.5, 0.2)},
            "3 numbers",
        ),
        ({"rejection_sample_method": "standard", "exact": True}, "exact mode promises"),
    ],
)
def test_methods_that_contradict_themselves_are_refused(
    fields: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        EngineConfig(**fields)


def test_an_engine_is_coupled_unless_told_otherwise() -> None:
    assert EngineConfig().method == COUPLED
    assert hash(EngineConfig().method) == hash(COUPLED)
