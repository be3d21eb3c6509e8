"""Whole speculative generations against transcripts of EAGLE's own loop."""

import pytest
from engine_rounds import LONG_CHAINS, SHORT_CHAINS, check_cache_free, check_engine
from oracle_files import ALL_DRAFTS
from sweeps import sweep

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target

EVERY = [(name, name) for name in ALL_DRAFTS]
SHORT = [("draft_mla_bf16",) * 2, ("draft_mha_fp8_ptpc_actquant",) * 2]
"""Both kinds of attention, and quantised weights and activations."""


@pytest.mark.parametrize(("draft", "name"), EVERY, indirect=["draft"])
def test_candidates_and_accepted_counts_are_eagles(
    target: Target, draft: Eagle3Draft, name: str
) -> None:
    """Of the tests' own loop, which has no cache."""
    check_cache_free(target, draft, name, LONG_CHAINS)


@pytest.mark.parametrize(("draft", "name"), sweep(EVERY, SHORT), indirect=["draft"])
def test_the_engines_rounds_are_eagles(
    target: Target, draft: Eagle3Draft, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_engine(target, draft, name, SHORT_CHAINS, monkeypatch)
