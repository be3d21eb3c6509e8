"""MiniMax's widths that are written down against the published config.json files."""

from dataclasses import replace

from published_pairs import published

from eagle3_jax.config import DraftConfig, MiniMaxConfig
from eagle3_tools.plan.data.minimax_m25 import DRAFT, FP8_BLOCKS, TARGET


def test_minimax_is_the_published_one() -> None:
    config = published("minimax-m2.5", "config")
    assert MiniMaxConfig.from_hf(config) == TARGET
    assert FP8_BLOCKS.items() <= config["quantization_config"].items()


def test_its_draft_is_the_published_one() -> None:
    config = published("minimax-m2.5-eagle3", "config")
    found = DraftConfig.from_hf(config, num_target_layers=TARGET.num_hidden_layers)
    assert replace(found, max_position_embeddings=DRAFT.max_position_embeddings) == DRAFT
