"""The tiny pair and the length of the proofs: short in the suite, long with --long."""

import pytest
from shared_pair import shared_draft, shared_target

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("long"))


@pytest.fixture(scope="session")
def target() -> Target:
    return shared_target()


@pytest.fixture(scope="session")
def draft(target: Target) -> Eagle3Draft:
    return shared_draft("grouped", target)
