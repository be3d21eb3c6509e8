"""Which directories a pair is read from, where it is named by hub ids."""

from pathlib import Path

import pytest
from local_hub import local_hub
from oracle_files import ORACLES

from serve.demo import find_pair
from serve.options.serve_flags import parse_serve_flags

DRAFTS = ["--speculative-config.num_speculative_tokens", "2", "--speculative-config.model"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["org/draft"], "this is an EAGLE-3 draft"),
        (["org/kimi", *DRAFTS, "org/kimi"], "this is a target"),
        (["org/draft", *DRAFTS, "org/kimi"], "this is an EAGLE-3 draft"),
    ],
)
def test_what_goes_in_the_others_place_is_refused_before_its_weights_are_downloaded(
    tmp_path: Path, words: list[str], problem: str
) -> None:
    options, _ = parse_serve_flags(words)
    with local_hub(tmp_path / "cache") as hub:
        hub.add("org/kimi", ORACLES / "kimi_bf16")
        hub.add("org/draft", ORACLES / "draft_mha_bf16")
        with pytest.raises(ValueError, match=problem):
            find_pair(options)
        assert hub.downloaded() == ["config.json"]


def test_a_pair_is_downloaded_whole_and_its_draft_only_if_it_drafts(tmp_path: Path) -> None:
    with local_hub(tmp_path / "cache") as hub:
        hub.add("org/kimi", ORACLES / "kimi_bf16")
        hub.add("org/draft", ORACLES / "draft_mha_bf16")
        alone, _ = parse_serve_flags(["org/kimi"])
        assert find_pair(alone).draft is None
        assert "model.safetensors" not in hub.downloaded()
        options, _ = parse_serve_flags(["org/kimi", *DRAFTS, "org/draft"])
        found = find_pair(options)
        assert found.draft is not None and (found.draft / "model.safetensors").is_file()
        assert found.tokenizer == found.target
