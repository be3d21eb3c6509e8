"""Published layouts of EAGLE-3 draft configurations, converted to one flat layout."""

from collections.abc import Mapping
from typing import Any, Literal

from eagle3_jax.config.published import brief, read_mapping, require_values

DraftKind = Literal["grouped", "latent"]

OLD_FC_NORM = "use_aux_norm"
"""Former name of `fc_norm`, used by drafts made before EAGLE-3.1 was published."""
_KINDS: dict[str, DraftKind] = {
    "LlamaForCausalLMEagle3": "grouped",
    "Eagle3LlamaForCausalLM": "grouped",
    "LlamaEagle3ForCausalLM": "grouped",
    "Eagle3DeepseekV2ForCausalLM": "latent",
    "Eagle3DeepseekV3ForCausalLM": "latent",
}


def refuse_draft(config: Mapping[str, Any]) -> None:
    """Raise ValueError if a draft's config.json was given as the target."""
    if is_draft(config):
        raise ValueError(
            "this is an EAGLE-3 draft, which goes beside its target, not in its place: give the "
            "target here, and this as its draft"
        )


def is_draft(config: Mapping[str, Any]) -> bool:
    """Return whether the file describes an EAGLE-3 draft, in any layout."""
    architectures = config.get("architectures")
    named = isinstance(architectures, list | tuple) and any(k in architectures for k in _KINDS)
    return named or not {"speculators_model_type", "draft_vocab_size"}.isdisjoint(config)


def flat_draft_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the nested `eagle_config` or `transformer_layer_config` into the top level.

    Raises ValueError if the two levels contradict each other.
    """
    if "speculators_model_type" in config:
        return _flat_speculators(config)
    nested = {k: v for k, v in read_mapping(config, "eagle_config").items() if v not in (None, [])}
    for name in nested:
        if config.get(name) not in (None, [], nested[name]):
            raise ValueError(
                f"{name} is {brief(config[name])}, but {brief(nested[name])} inside eagle_config"
            )
    flat = {**config, **nested}
    return flat if flat.get(OLD_FC_NORM) is None else {"fc_norm": flat[OLD_FC_NORM], **flat}


def draft_kind(flat: Mapping[str, Any]) -> DraftKind:
    """Return the draft's kind of attention by its architecture; raise ValueError if unknown."""
    architectures = flat.get("architectures")
    if not isinstance(architectures, list | tuple):
        architectures = []
    kinds: set[DraftKind] = {_KINDS[name] for name in _KINDS if name in architectures}
    if not kinds and "LlamaForCausalLM" in architectures and "draft_vocab_size" in flat:
        return "grouped"  # SafeAILab keeps the architecture name of plain Llama.
    if len(kinds) != 1:
        raise ValueError(
            f"unknown draft architecture: expected one of {tuple(_KINDS)}, "
            f"got {brief(flat.get('architectures'))}"
        )
    return kinds.pop()


def _flat_speculators(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a speculators configuration; absent fields get vLLM's defaults."""
    require_values(config, {"speculators_model_type": ("eagle3",)})
    layer = read_mapping(config, "transformer_layer_config")
    if not layer:
        raise ValueError("a speculators config.json must have a transformer_layer_config")
    require_values(layer, {"model_type": ("llama",)})
    top = {name: value for name, value in config.items() if value is not None}
    return {
        "norm_before_residual": True,
        **layer,
        **top,
        "architectures": ["LlamaForCausalLMEagle3"],
    }
