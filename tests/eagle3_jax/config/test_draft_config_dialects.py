"""Drafts whose authors lay their configuration out in another way."""

from dataclasses import replace
from typing import Any

import pytest
from published_configs import DRAFT, SPECULATORS, read_draft

from eagle3_jax.config import (
    DraftConfig,
)


def test_speculators_nests_the_layer() -> None:
    config = DraftConfig.from_hf(SPECULATORS, num_target_layers=61)
    expected = read_draft(draft_vocab_size=32000, num_key_value_heads=8)
    expected = replace(expected, max_position_embeddings=2048)
    assert config == replace(expected, fc_norm=True, norm_before_residual=True)


@pytest.mark.parametrize(
    ("written", "read"), [({}, True), ({"norm_before_residual": False}, False)]
)
def test_speculators_norms_before_the_residual_unless_told_not_to(
    written: dict[str, bool], read: bool
) -> None:
    """As vLLM reads it."""
    bare = {k: v for k, v in SPECULATORS.items() if k != "norm_before_residual"}
    config = DraftConfig.from_hf({**bare, **written}, num_target_layers=61)
    assert config.norm_before_residual is read


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "dflash"}, "speculators_model_type.*'dflash'"),
        ({"transformer_layer_config": None}, "must have a transformer_layer_config"),
        ({"transformer_layer_config": {"model_type": "qwen3"}}, "model_type.*'qwen3'"),
        ({"transformer_layer_config": {"model_type": "llama"}}, "lacks vocab_size"),
        ({"norm_output": "yes"}, "norm_output"),
    ],
)
def test_speculators_of_another_kind_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftConfig.from_hf({**SPECULATORS, **changes}, num_target_layers=61)


def test_safeailab_names_its_drafts_like_a_plain_llama() -> None:
    """Only the draft vocabulary tells them apart."""
    plain = {k: v for k, v in DRAFT.items() if k != "draft_vocab_size"}
    theirs = {**plain, "architectures": ["LlamaForCausalLM"]}
    config = DraftConfig.from_hf({**theirs, "draft_vocab_size": 32000}, num_target_layers=61)
    assert config == read_draft(draft_vocab_size=32000)
    with pytest.raises(ValueError, match="this is a target"):
        DraftConfig.from_hf(theirs, num_target_layers=61)
