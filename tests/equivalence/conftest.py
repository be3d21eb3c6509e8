"""The golden pair, loaded once."""

import pytest
from oracle_files import ORACLES

from convert import load_draft, load_target
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget


@pytest.fixture(scope="session")
def target() -> KimiTarget:
    return load_target(ORACLES / "kimi_bf16", dtype="float32")


@pytest.fixture(scope="session")
def draft(request: pytest.FixtureRequest, target: KimiTarget) -> Eagle3Draft:
    return load_draft(ORACLES / request.param, target, dtype="float32")
