"""A fixture for figures of separate programs."""

import pytest

from eagle3_tools.plan.data import fixed_costs


@pytest.fixture
def every_sum_starts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start large sums as fast as small ones, as the separate programs do."""
    monkeypatch.setattr(fixed_costs, "SHOTS_BYTES", 1 << 62)
