"""The golden pair, loaded once."""

import pytest
from oracle_files import ORACLES, QUANTIZED_DRAFTS, WEIGHT_ONLY

from convert import load_draft, load_target
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target


@pytest.fixture(scope="session")
def target() -> Target:
    return load_target(ORACLES / "kimi_bf16")


@pytest.fixture(scope="session")
def draft(request: pytest.FixtureRequest, target: Target) -> Eagle3Draft:
    """The draft whose golden file is the parameter."""
    name: str = request.param
    return load_draft(
        ORACLES / QUANTIZED_DRAFTS.get(name, name),
        target,
        quantize_activations=not name.endswith(WEIGHT_ONLY),
    )
