"""Every proof target of the Makefile records that it passed, and the paths it covers exist."""

import re
from pathlib import Path

import pytest
from proof_record import COVERS

ROOT = Path(__file__).parents[1]
RECIPES = dict(re.findall(r"^([\w-]+):.*\n((?:\t.*\n)*)", (ROOT / "Makefile").read_text(), re.M))
PROOFS = {name for name in RECIPES if name.startswith("prove") and name != "prove-status"}


@pytest.mark.parametrize("target", sorted(PROOFS | COVERS.keys()))
def test_each_proof_ends_with_its_record_and_covers_what_exists(target: str) -> None:
    assert "$(PASSED) $@" in RECIPES[target].splitlines()[-1]
    assert all((ROOT / path).exists() for path in COVERS[target])
