"""Directories of a pair that is named by hub ids."""

import json
from pathlib import Path

import pytest
from local_hub import local_hub
from oracle_files import ORACLES

from serve.demo import find_pair
from serve.options.serve_flags import parse_serve_flags

KIMI = ORACLES / "kimi_bf16"
K3 = {"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear"}}
DRAFTS = ["--speculative-config.num_speculative_tokens", "2", "--speculative-config.model"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["org/draft"], "this is an EAGLE-3 draft"),
        (["org/kimi", *DRAFTS, "org/kimi"], "this is a target"),
        (["org/draft", *DRAFTS, "org/kimi"], "this is an EAGLE-3 draft"),
        (["org/k3"], "this is Kimi-K3, which is not supported"),
    ],
)
def test_what_does_not_go_in_its_place_is_refused_before_its_weights_are_downloaded(
    tmp_path: Path, words: list[str], problem: str
) -> None:
    options, _ = parse_serve_flags(words)
    (tmp_path / "config.json").write_text(json.dumps(K3), encoding="utf-8")
    with local_hub(tmp_path / "cache") as hub:
        hub.add("org/kimi", KIMI)
        hub.add("org/draft", ORACLES / "draft_mha_bf16")
        hub.add("org/k3", tmp_path)
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
