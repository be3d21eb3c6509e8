"""Whole speculative generations against transcripts of EAGLE's own loop."""

import pytest
from engine_rounds import LONG_CHAINS, SHORT_CHAINS, check_cache_free, check_engine
from oracle_files import ALL_DRAFTS

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target

SHORT = ("draft_mha_d2t_bf16", "draft_mla_bf16", "draft_mha_fp8_ptpc_actquant")
"""Both kinds of attention, a reduced vocabulary and quantised weights and activations."""
every_draft = pytest.mark.parametrize(
    ("draft", "name"), list(zip(ALL_DRAFTS, ALL_DRAFTS, strict=True)), indirect=["draft"]
)


@every_draft
def test_candidates_and_accepted_counts_are_eagles(
    target: Target, draft: Eagle3Draft, name: str
) -> None:
    """Of the tests' own loop, which has no cache."""
    check_cache_free(target, draft, name, LONG_CHAINS)


@every_draft
def test_the_engines_rounds_are_eagles(
    target: Target,
    draft: Eagle3Draft,
    name: str,
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name not in SHORT and not pytestconfig.getoption("long"):
        pytest.skip("part of the long form")
    check_engine(target, draft, name, SHORT_CHAINS, monkeypatch)
