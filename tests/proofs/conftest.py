"""The tiny pair and the length of the proofs: short in the suite, long with --long."""

import pytest
from tiny import tiny_draft, tiny_target

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether the long form was asked for."""
    return bool(request.config.getoption("long"))


@pytest.fixture(scope="session")
def target() -> KimiTarget:
    return tiny_target()


@pytest.fixture(scope="session")
def draft(target: KimiTarget) -> Eagle3Draft:
    return tiny_draft(target)
