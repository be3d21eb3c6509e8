"""Write our configurations as published config.json, with the same field names.

Fields specific to one target are in the module of its tensors (`convert.models.targets`).
"""

from dataclasses import asdict
from typing import Any

from eagle3_jax.config import DraftConfig, RopeConfig, TargetConfig, default_aux_layer_ids
from eagle3_jax.config.draft import NORM_OPTIONS

_OURS_ALONE = ("rope", "eos_token_ids", "latent_norm_eps", "target_hidden_size", "aux_layer_ids")
_OURS_ALONE += ("latent", *NORM_OPTIONS)


def draft_to_hf(config: DraftConfig, dtype: str) -> dict[str, Any]:
    """Return an EAGLE-3 draft's config.json; aux ids are layer outputs ("after k").

    EAGLE-3.1's fields appear only if set. vLLM reads norm_before_fc inside eagle_config too.
    """
    options: dict[str, int] = {name: True for name in NORM_OPTIONS if getattr(config, name)}
    if config.num_aux != 3:  # the default of readers
        options["num_aux_hidden_states"] = config.num_aux
    return {
        **_draft_kind(config),
        **options,
        "target_hidden_size": config.target_hidden_size,
        "num_hidden_layers": 1,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        **rope_to_hf(config.rope),
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": _layer_outputs(config.aux_layer_ids),
            "use_aux_hidden_state": True,
            **({"norm_before_fc": True} if config.norm_before_fc else {}),
        },
    }


def _draft_kind(config: DraftConfig) -> dict[str, Any]:
    """Return the fields of architecture and sizes."""
    sizes = published_fields(config)
    if config.latent is None:
        return {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **sizes}
    del sizes["head_dim"]
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        **sizes,
        **asdict(config.latent),
    }


def _layer_outputs(aux_layer_ids: tuple[int, ...]) -> list[int]:
    """Return the "after" form; ValueError if readers would take it for the default triple."""
    after = tuple(i - 1 for i in aux_layer_ids)
    if len(after) == 3 and after == default_aux_layer_ids(after[-1] + 3):
        raise ValueError(
            f"aux layers {aux_layer_ids} cannot be published: as layer outputs {after} they look "
            f"like the default triple of a target with {after[-1] + 3} layers"
        )
    return list(after)


def published_fields(config: TargetConfig | DraftConfig) -> dict[str, Any]:
    """Return the fields that have the same name and form in config.json."""
    return {name: value for name, value in asdict(config).items() if name not in _OURS_ALONE}


def text_model_to_hf(
    config: TargetConfig, architecture: str, model_type: str, dtype: str, **more: Any
) -> dict[str, Any]:
    """Return a text model's config.json; `dtype` is torch's name, `more` the model's own fields."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        **published_fields(config),
        **rope_to_hf(config.rope),
        **eos_to_hf(config),
        "hidden_act": "silu",
        **more,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }


def rope_to_hf(rope: RopeConfig) -> dict[str, Any]:
    if rope.yarn is None:
        return {"rope_theta": rope.theta, "rope_scaling": None}
    yarn = {name: value for name, value in asdict(rope.yarn).items() if value is not None}
    return {"rope_theta": rope.theta, "rope_scaling": {"type": "yarn", **yarn}}


def eos_to_hf(config: TargetConfig) -> dict[str, Any]:
    """Return one id as a number, several as a list, or no field if config.json had none."""
    eos = list(config.eos_token_ids)
    return {"eos_token_id": eos[0] if len(eos) == 1 else eos} if eos else {}
