"""Whole speculative generations against transcripts of EAGLE's own loop."""

import pytest
from cache_free import Round, speculate
from oracle_files import ALL_DRAFTS, golden_json
from tolerances import CLEAR_MARGIN

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target

SETTINGS = {"steps3_topk1_tokens4": 3, "steps6_topk1_tokens7": 6}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    ("draft", "name"), list(zip(ALL_DRAFTS, ALL_DRAFTS, strict=True)), indirect=["draft"]
)
def test_candidates_and_accepted_counts_are_eagles(
    target: Target, draft: Eagle3Draft, name: str, setting: str
) -> None:
    transcripts = golden_json(name)["transcripts"][setting]
    clear = [t for t in transcripts if t["min_draft_margin"] > CLEAR_MARGIN]
    assert len(clear) >= 3
    for transcript in clear:
        expected = [
            Round(s["candidates"][0], s["accepted"], s["next"]) for s in transcript["steps"]
        ]
        got = speculate(
            target,
            draft,
            transcript["prompt"],
            num_draft=SETTINGS[setting],
            num_rounds=len(expected),
        )
        assert got == expected
