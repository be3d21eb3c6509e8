"""Frozen model configurations, read from the published `config.json` with its own field names.

A field that changes the arithmetic and that this engine does not implement is an error here, never
ignored: a checkpoint either runs as its authors meant it or does not load.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

AuxIdConvention = Literal["auto", "before", "after"]

TARGET_MODEL_TYPES = ("kimi_k2", "deepseek_v3")
DRAFT_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaEagle3ForCausalLM")


@dataclass(frozen=True)
class YarnConfig:
    """YaRN context extension (Peng et al., arXiv 2309.00071) as DeepSeek-V3 publishes it."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def magnitude(self, mscale: float) -> float:
        """YaRN's attention magnitude: 0.1 * mscale * ln(factor) + 1, or 1 without extension."""
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    @property
    def cos_sin_scale(self) -> float:
        """Factor on cos and sin; 1 when mscale equals mscale_all_dim, as all Kimi files say."""
        if self.mscale and self.mscale_all_dim:
            return self.magnitude(self.mscale) / self.magnitude(self.mscale_all_dim)
        return self.magnitude(1.0)


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base and, optionally, its YaRN extension."""

    theta: float
    yarn: YarnConfig | None = None

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "RopeConfig":
        """Reads `rope_theta` + `rope_scaling` or the newer `rope_parameters`."""
        scaling = config.get("rope_scaling") or {}
        parameters = {**scaling, **(config.get("rope_parameters") or {})}
        theta = parameters.get("rope_theta", config.get("rope_theta", 10000.0))
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if kind == "default":
            return cls(float(theta))
        if kind != "yarn":
            raise ValueError(f"rope type must be 'default' or 'yarn', got {kind!r}")
        names = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
        names += ("mscale", "mscale_all_dim")
        yarn = YarnConfig(**{name: parameters[name] for name in names if name in parameters})
        return cls(float(theta), yarn)


@dataclass(frozen=True)
class TargetConfig:
    """The text model of Kimi-K2.5: DeepSeek-V3's MLA and sigmoid-routed experts."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    first_k_dense_replace: int
    routed_scaling_factor: float
    norm_topk_prob: bool
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    eos_token_ids: tuple[int, ...] = ()
    latent_norm_eps: float = 1e-6
    """Epsilon of q_a_layernorm and kv_a_layernorm: transformers ignores the config here."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "TargetConfig":
        """Reads a whole Kimi-K2.5 config.json or a bare DeepSeek-V3 one.

        Raises ValueError for another architecture and for options that change the arithmetic.
        """
        text = config.get("text_config") or config
        if text.get("model_type") not in TARGET_MODEL_TYPES:
            raise ValueError(
                f"unknown target architecture: model_type must be one of {TARGET_MODEL_TYPES} "
                f"(Kimi-K2.5 nests it in text_config), got {text.get('model_type')!r}"
            )
        _require_values(text, _TARGET_REQUIREMENTS)
        names = [n for n in cls.__dataclass_fields__ if n not in _TARGET_DERIVED]
        _require_keys(text, names)
        return cls(
            **{name: text[name] for name in names},
            q_lora_rank=text.get("q_lora_rank"),
            rope=RopeConfig.from_hf(text),
            eos_token_ids=_as_tuple(config.get("eos_token_id", text.get("eos_token_id"))),
        )

    @property
    def qk_head_dim(self) -> int:
        """Query and key width of a head before absorption: nope + rope."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Width of one KV-cache row: the compressed latent and the shared rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """Attention scale, with YaRN's magnitude squared when `mscale_all_dim` is set."""
        yarn = self.rope.yarn
        magnitude = yarn.magnitude(yarn.mscale_all_dim) if yarn and yarn.mscale_all_dim else 1.0
        return self.qk_head_dim**-0.5 * magnitude**2

    def is_dense(self, layer: int) -> bool:
        """Whether this layer has one MLP instead of experts."""
        return layer < self.first_k_dense_replace


@dataclass(frozen=True)
class DraftConfig:
    """An EAGLE-3 draft with Llama-style attention (arXiv 2503.01840)."""

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    aux_layer_ids: tuple[int, ...]
    """Target layers whose inputs feed `fc`: canonical "before layer k" numbers."""

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        *,
        num_target_layers: int,
        aux_id_convention: AuxIdConvention = "auto",
    ) -> "DraftConfig":
        """Reads a published draft's config.json.

        Raises ValueError for another architecture and for options that change the arithmetic.
        """
        architectures = tuple(config.get("architectures") or ())
        if not set(architectures) & set(DRAFT_ARCHITECTURES):
            raise ValueError(
                f"unknown draft architecture: expected one of {DRAFT_ARCHITECTURES}, "
                f"got {architectures}"
            )
        eagle = {**config, **(config.get("eagle_config") or {})}
        _require_values(eagle, _DRAFT_REQUIREMENTS)
        names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
        _require_keys(config, names)
        heads = config["num_attention_heads"]
        ids = eagle.get("eagle_aux_hidden_state_layer_ids")
        return cls(
            **{name: config[name] for name in names},
            draft_vocab_size=config.get("draft_vocab_size") or config["vocab_size"],
            target_hidden_size=config.get("target_hidden_size") or config["hidden_size"],
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            rope=RopeConfig.from_hf(config),
            aux_layer_ids=canonical_aux_layer_ids(ids, num_target_layers, aux_id_convention),
        )

    @property
    def num_aux(self) -> int:
        """How many target layers the draft reads."""
        return len(self.aux_layer_ids)


def default_aux_layer_ids(num_layers: int) -> tuple[int, ...]:
    """The triple every engine assumes when a draft names none: before layers 2, N//2, N-3."""
    return (2, num_layers // 2, num_layers - 3)


def canonical_aux_layer_ids(
    ids: Iterable[int] | None, num_layers: int, convention: AuxIdConvention = "auto"
) -> tuple[int, ...]:
    """Turns published aux ids into "before layer k" numbers.

    Explicit ids are layer outputs ("after k"), unless they equal the default triple, which is
    vLLM's "before" form; `convention` overrides that reading. Raises ValueError out of range.
    """
    if convention not in ("auto", "before", "after"):
        raise ValueError(f"aux_id_convention must be auto, before or after, got {convention!r}")
    default = default_aux_layer_ids(num_layers)
    given = default if ids is None else tuple(int(i) for i in ids)
    before = ids is None or convention == "before" or (convention == "auto" and given == default)
    canonical = given if before else tuple(i + 1 for i in given)
    if not canonical or not all(0 <= i <= num_layers for i in canonical):
        raise ValueError(
            f"aux layer ids must name layers of the target (it has {num_layers}), got {given} "
            f"read as {'before' if before else 'after'} layer k; see aux_id_convention"
        )
    return canonical


_TARGET_DERIVED = ("q_lora_rank", "rope", "eos_token_ids", "latent_norm_eps")
_TARGET_REQUIREMENTS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "n_group": (1, None),
    "topk_group": (1, None),
    "moe_layer_freq": (1,),
    "tie_word_embeddings": (False,),
    "rope_interleave": (True,),
}
_DRAFT_REQUIREMENTS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "num_hidden_layers": (1,),
    "tie_word_embeddings": (False,),
    "fc_norm": (False, None),
    "norm_before_fc": (False, None),
    "norm_output": (False, None),
    "norm_before_residual": (False, None),
    "use_sliding_window": (False,),
}


def _require_values(config: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]) -> None:
    wrong = [
        f"{name} must be {' or '.join(map(repr, values))}, got {config[name]!r}"
        for name, values in allowed.items()
        if name in config and config[name] not in values
    ]
    if wrong:
        raise ValueError("this configuration is not supported: " + "; ".join(wrong))


def _require_keys(config: Mapping[str, Any], names: Iterable[str]) -> None:
    missing = [name for name in names if name not in config]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")


def _as_tuple(value: int | Iterable[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
