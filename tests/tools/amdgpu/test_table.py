"""The table of references is complete, and names only references that tests use."""

import re
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")

from eagle3_tools.amdgpu.witness.opcodes import COMPILED
from eagle3_tools.amdgpu.witness.pseudocode import why_unreadable
from eagle3_tools.amdgpu.witness.table import CALCULATOR, GROUPS, SMALL_KERNEL, witness_of

_WITHOUT = {"s_barrier", "s_endpgm", "s_setprio", "s_waitcnt"}


@pytest.mark.parametrize("mnemonic", COMPILED)
def test_every_compiled_opcode_has_a_witness_or_a_reason(mnemonic: str):
    witness = witness_of(mnemonic)
    assert witness.startswith("none: ") == (mnemonic in _WITHOUT)
    assert "no test of it" not in witness


def test_pseudocode_is_claimed_for_what_is_run_beside_it():
    claimed = {m for m in COMPILED if witness_of(m) == "AMD's pseudocode"}
    assert claimed == {m for m in COMPILED if why_unreadable(m) is None}
    groups = [m for group in GROUPS.values() for m in group]
    assert sorted(groups) == sorted(claimed)


def test_every_group_is_the_parameters_of_a_test():
    """Without a test of its group, an opcode would be listed as checked but not be."""
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    for group in ("BRANCHES", "SCALAR", "VECTOR"):
        assert f'parametrize("mnemonic", {group})' in tests
    for group in ("SCALAR_MEMORY", "LOCAL_MEMORY", "VECTOR_MEMORY"):
        assert re.search(rf'parametrize\("mnemonic", .*\b{group}\b', tests)
    for name in ("across lanes", "mode", "nothing"):
        assert all(f'"{mnemonic}"' in tests for mnemonic in GROUPS[name])


def test_an_opcode_that_nothing_explains_has_no_witness():
    assert witness_of("v_mfma_f64_16x16x4_f64") == "none: no test of it alone"
    assert witness_of("v_accvgpr_read") == witness_of("v_accvgpr_read_b32")
    assert set(CALCULATOR) < set(SMALL_KERNEL)
