"""Registry of target configurations by `model_type`.

`eagle3_jax.models.targets` registers the models' modules, and `convert.models.targets` the tensors
of their checkpoints.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from eagle3_jax.config.draft_layouts import is_draft, refuse_draft
from eagle3_jax.config.fields import DECODER, Fields
from eagle3_jax.config.kimi import KIMI_FIELDS, KimiConfig
from eagle3_jax.config.llama import LLAMA_FIELDS, LlamaConfig
from eagle3_jax.config.minimax import MINIMAX_FIELDS, MiniMaxConfig
from eagle3_jax.config.published import brief, read_mapping, require_values
from eagle3_jax.config.target import TargetConfig, text_fields
from eagle3_jax.config.vision import PLACEHOLDER, VISION_FIELDS

READERS: Mapping[str, tuple[Callable[[Mapping[str, Any]], TargetConfig], Fields]] = {
    "kimi_k2": (KimiConfig.from_hf, KIMI_FIELDS),
    "deepseek_v3": (KimiConfig.from_hf, KIMI_FIELDS),
    "minimax_m2": (MiniMaxConfig.from_hf, MINIMAX_FIELDS),
    "llama": (LlamaConfig.from_hf, LLAMA_FIELDS),
}
"""Published model_type -> function that reads its config.json, and the fields it knows."""
UNSUPPORTED = {
    "Kimi-K3": "most of its layers have linear attention (Kimi Delta Attention), the others latent "
    "attention without rotary positions and with an output gate",
    "Kimi-Linear": "most of its layers have linear attention (Kimi Delta Attention), the others "
    "latent attention without rotary positions",
    "MiniMax-M3": "its attention selects blocks of the context by an index (MiniMax Sparse "
    "Attention), and its norms and its activation are others than MiniMax-M2's",
}
"""Unsupported models with names similar to supported ones -> the reason for the error message."""

_ARCHITECTURES = {
    "kimi_k2": "DeepseekV3ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
}
"""Required `architectures` for each model_type. Llama shares its value with drafts, so its reader
tells them apart."""
_AROUND_TEXT = replace(
    DECODER.extended(
        only={
            "model_type": ("kimi_k25",),
            "architectures": (["KimiK25ForConditionalGeneration"],),
        },
        ignored=(
            *("ignore_index", "use_unified_vision_chunk", "video_placeholder"),
            *("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
            *("projection_hidden_size", "projection_layer_norm_eps"),
        ),
    ),
    read=("quantization_config", PLACEHOLDER),
    objects={"vision_config": VISION_FIELDS},
)
"""Fields around `text_config`; other values may mean another use of the same text model."""


def refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Raise ValueError for a model in `UNSUPPORTED`, and for a draft made for one."""
    verifier = read_mapping(read_mapping(config, "speculators_config"), "verifier")
    stated: list[Any] = []
    for fields in (config, text_fields(config), verifier):
        architectures = fields.get("architectures")
        stated += architectures if isinstance(architectures, list) else [architectures]
        stated.append(fields.get("model_type"))
    names = " ".join(name for name in stated if isinstance(name, str)).lower().replace("_", "")
    for model, why in UNSUPPORTED.items():
        if model.lower().replace("-", "") in names:
            this = "this draft was made for" if is_draft(config) else "this is"
            raise ValueError(
                f"{this} {model}, which is not supported: {why}. Give Kimi-K2.5, K2.6, "
                "K2.7-Code, MiniMax-M2.5 or M2.7, or a draft for one of them"
            )


def target_fields(config: Mapping[str, Any]) -> Fields:
    """Return the known fields of a config.json that `read_target_config` reads."""
    text = text_fields(config)
    known = READERS[text["model_type"]][1]
    if text is config:
        return known
    return replace(_AROUND_TEXT, objects={**_AROUND_TEXT.objects, "text_config": known})


def refuse_target(config: Mapping[str, Any]) -> None:
    """Raise ValueError if a target's config.json was given as the draft."""
    model_type = text_fields(config).get("model_type")
    if isinstance(model_type, str) and model_type in READERS and not is_draft(config):
        raise ValueError(
            f"this is a target (model_type {model_type!r}), not an EAGLE-3 draft for one: give it "
            "in the target's place, and as its draft one that was made for it"
        )


def read_target_config(config: Mapping[str, Any]) -> TargetConfig:
    """Read a published config.json of any target.

    Raises ValueError if the file or its text_config names an unknown architecture, or if the
    architecture's reader refuses a field.
    """
    refuse_unsupported(config)
    refuse_draft(config)
    text = text_fields(config)
    model_type = text.get("model_type")
    if not isinstance(model_type, str) or model_type not in READERS:
        raise ValueError(
            f"unknown target architecture: model_type must be one of {tuple(READERS)} "
            f"(Kimi-K2.5 nests it in text_config), got {brief(model_type)}"
        )
    if text is not config:
        require_values(config, _AROUND_TEXT.implemented)
    if model_type in _ARCHITECTURES:
        require_values(text, {"architectures": ([_ARCHITECTURES[model_type]],)})
    read, _ = READERS[model_type]
    return read(config)
