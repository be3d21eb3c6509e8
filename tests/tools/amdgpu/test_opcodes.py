"""Every opcode of our programs has a second reference, and AMD's texts of them are readable."""

import re
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")

from eagle3_tools.amdgpu.witness.opcodes import COMPILED
from eagle3_tools.amdgpu.witness.pseudocode import evaluate
from eagle3_tools.amdgpu.witness.readings import (
    CORRECTIONS,
    Correction,
    amd_text,
    corrections_of,
    why_unreadable,
)
from eagle3_tools.amdgpu.witness.table import GROUPS, witness_of

_WITHOUT_WITNESS = {"s_barrier", "s_endpgm", "s_setprio", "s_waitcnt"}


@pytest.mark.parametrize("mnemonic", COMPILED)
def test_every_compiled_opcode_has_a_witness_or_a_reason(mnemonic: str):
    witness = witness_of(mnemonic)
    assert witness.startswith("none: ") == (mnemonic in _WITHOUT_WITNESS)
    assert "no test of it" not in witness
    assert (witness == "AMD's pseudocode") == (why_unreadable(mnemonic) is None)


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


def test_an_unreadable_opcode_is_refused():
    with pytest.raises(ValueError, match="readable text, got s_barrier"):
        evaluate("s_barrier", {})


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda each: each.opcodes + each.wrong)
def test_every_correction_finds_what_it_corrects(correction: Correction):
    corrected = filter(re.compile(correction.opcodes).fullmatch, COMPILED)
    texts = [_text_before(correction, mnemonic) for mnemonic in corrected]
    assert any(re.search(correction.wrong, text) for text in texts)


def _text_before(correction: Correction, mnemonic: str) -> str:
    """Return the opcode's text with all corrections before this one."""
    text = amd_text(mnemonic) or ""
    for each in corrections_of(mnemonic):
        if each == correction:
            break
        text = re.sub(each.wrong, each.right, text)
    return text
