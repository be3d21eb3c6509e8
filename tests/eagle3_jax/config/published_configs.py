"""Published configurations, as their authors wrote them."""

import json
from typing import Any

from oracle_files import ORACLES

from eagle3_jax.config import DraftConfig


def published(name: str) -> dict[str, Any]:
    """The configuration of this checkpoint."""
    return json.loads((ORACLES / "published" / f"{name}.config.json").read_text(encoding="utf-8"))


KIMI = published("kimi-k2.5")
KIMI_TEXT = KIMI["text_config"]
MINIMAX = published("minimax-m2.5")
DRAFT = published("kimi-k2.5-eagle3")
LATENT = published("kimi-k2.5-eagle3-mla")
SPECULATORS = published("speculators-eagle3.example")


def read_draft(num_target_layers: int = 61, **changes: Any) -> DraftConfig:
    """The published draft with some fields changed."""
    return DraftConfig.from_hf({**DRAFT, **changes}, num_target_layers=num_target_layers)


def read_latent(**changes: Any) -> DraftConfig:
    """The published draft with latent attention, with some fields changed."""
    return DraftConfig.from_hf({**LATENT, **changes}, num_target_layers=61)
