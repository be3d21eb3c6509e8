"""The tiny pair, built once: programs are compiled for shapes, so one pair serves all tests."""

import pytest
from shared_pair import shared_draft, shared_target

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target


@pytest.fixture(scope="session")
def target() -> Target:
    return shared_target()


@pytest.fixture(scope="session", params=["grouped"])
def draft(request: pytest.FixtureRequest, target: Target) -> Eagle3Draft:
    """With grouped-query attention, unless a test asks for more kinds by name."""
    return shared_draft(request.param, target)
