"""Which configuration reads which architecture: the registry of targets begins here.

`eagle3_jax.models.targets` has their modules, `convert.targets` the tensors of their checkpoints.
"""

from collections.abc import Callable, Mapping
from typing import Any

from eagle3_jax.config.brief import brief
from eagle3_jax.config.kimi import KimiConfig
from eagle3_jax.config.llama import LlamaConfig
from eagle3_jax.config.minimax import MiniMaxConfig
from eagle3_jax.config.target import TargetConfig, text_fields

READERS: Mapping[str, Callable[[Mapping[str, Any]], TargetConfig]] = {
    "kimi_k2": KimiConfig.from_hf,
    "deepseek_v3": KimiConfig.from_hf,
    "minimax_m2": MiniMaxConfig.from_hf,
    "llama": LlamaConfig.from_hf,
}
"""Published model_type -> what reads such a config.json."""


def read_target_config(config: Mapping[str, Any]) -> TargetConfig:
    """Reads a published config.json of any target.

    Raises ValueError for an architecture that is not known, and as its reader does.
    """
    model_type = text_fields(config).get("model_type")
    if not isinstance(model_type, str) or model_type not in READERS:
        raise ValueError(
            f"unknown target architecture: model_type must be one of {tuple(READERS)} "
            f"(Kimi-K2.5 nests it in text_config), got {brief(model_type)}"
        )
    return READERS[model_type](config)
