"""Which configuration reads which architecture: the registry of targets begins here.

`eagle3_jax.models.targets` has their modules, `convert.models.targets` the tensors of their
checkpoints.
"""

from collections.abc import Callable, Mapping
from typing import Any

from eagle3_jax.config.brief import brief
from eagle3_jax.config.draft_layouts import is_draft, refuse_draft
from eagle3_jax.config.kimi import KimiConfig
from eagle3_jax.config.llama import LlamaConfig
from eagle3_jax.config.minimax import MiniMaxConfig
from eagle3_jax.config.published import require_values
from eagle3_jax.config.target import TargetConfig, text_fields

READERS: Mapping[str, Callable[[Mapping[str, Any]], TargetConfig]] = {
    "kimi_k2": KimiConfig.from_hf,
    "deepseek_v3": KimiConfig.from_hf,
    "minimax_m2": MiniMaxConfig.from_hf,
    "llama": LlamaConfig.from_hf,
}
"""Published model_type -> what reads such a config.json."""


_ARCHITECTURES = {
    "kimi_k2": "DeepseekV3ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
}
"""What `architectures` says beside each model_type; Llama's, which drafts share, has a reader that
tells them apart."""
_AROUND_TEXT = {
    "model_type": ("kimi_k25", None),
    "architectures": (["KimiK25ForConditionalGeneration"], None),
}
"""What a file with a text_config calls itself; another model may run the same text otherwise."""


def refuse_target(config: Mapping[str, Any]) -> None:
    """Raises ValueError for a config.json in the place of a draft's that is a target's."""
    model_type = text_fields(config).get("model_type")
    if isinstance(model_type, str) and model_type in READERS and not is_draft(config):
        raise ValueError(
            f"this is a target (model_type {model_type!r}), not an EAGLE-3 draft for one: give it "
            "in the target's place, and as its draft one that was made for it"
        )


def read_target_config(config: Mapping[str, Any]) -> TargetConfig:
    """Reads a published config.json of any target.

    Raises ValueError for an architecture that is not known, whether the file or its text_config
    names it, and as its reader does.
    """
    refuse_draft(config)
    text = text_fields(config)
    model_type = text.get("model_type")
    if not isinstance(model_type, str) or model_type not in READERS:
        raise ValueError(
            f"unknown target architecture: model_type must be one of {tuple(READERS)} "
            f"(Kimi-K2.5 nests it in text_config), got {brief(model_type)}"
        )
    if text is not config:
        require_values(config, _AROUND_TEXT)
    if model_type in _ARCHITECTURES:
        require_values(text, {"architectures": ([_ARCHITECTURES[model_type]], None)})
    return READERS[model_type](config)
