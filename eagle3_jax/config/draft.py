"""Configuration of an EAGLE-3 draft with grouped-query or latent attention."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from eagle3_jax.config.draft_layouts import OLD_FC_NORM, draft_kind, flat_draft_config
from eagle3_jax.config.fields import DECODER, Fields, require_full_attention
from eagle3_jax.config.latent import LATENT_SIZES, LatentAttentionConfig, LatentShape
from eagle3_jax.config.published import brief, read_ids, read_number, read_sizes, require_values
from eagle3_jax.config.rope import RopeConfig
from eagle3_jax.config.targets import refuse_target, refuse_unsupported

AuxIdConvention = Literal["auto", "before", "after"]


def default_aux_layer_ids(num_layers: int) -> tuple[int, ...]:
    """Return the triple that engines assume by default: the inputs of layers 2, N//2 and N-3."""
    return (2, num_layers // 2, num_layers - 3)


def canonical_aux_layer_ids(
    ids: Iterable[int] | None, num_layers: int, convention: AuxIdConvention = "auto"
) -> tuple[int, ...]:
    """Convert published aux layer ids to "before layer k" numbers.

    Explicit ids name layer outputs ("after k"), unless they equal the default triple, which is in
    vLLM's "before" form. `convention` overrides this rule. Raises ValueError for ids out of range.
    """
    if convention not in ("auto", "before", "after"):
        raise ValueError(f"aux_id_convention must be auto, before or after, got {convention!r}")
    default = default_aux_layer_ids(num_layers)
    given = default if ids is None else tuple(ids)
    before = ids is None or convention == "before" or (convention == "auto" and given == default)
    canonical = given if before else tuple(i + 1 for i in given)
    if not canonical or not all(0 <= i <= num_layers for i in canonical):
        raise ValueError(
            f"aux layer ids must name layers of the target (it has {num_layers}), got "
            f"{brief(given)} read as {'before' if before else 'after'} layer k; "
            "see aux_id_convention"
        )
    return canonical


@dataclass(frozen=True)
class DraftConfig:
    """An EAGLE-3 draft (arXiv 2503.01840), with the norms that EAGLE-3.1 added.

    `num_key_value_heads` and `head_dim` describe grouped-query attention. A draft with `latent` has
    latent attention of those widths, and `head_dim` is the rotated width, as in transformers.
    """

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
    """Target layers whose inputs feed `fc`, as "before layer k" numbers."""
    latent: LatentShape | None = None
    norm_before_fc: bool = False
    """Apply one norm over all aux features before `fc`."""
    fc_norm: bool = False
    """Apply one norm per aux layer before `fc`."""
    norm_before_residual: bool = False
    """Start the residual stream from the normed state instead of the state."""
    norm_output: bool = False
    """Take the recurrent state after the final norm instead of before it."""

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        *,
        num_target_layers: int,
        aux_id_convention: AuxIdConvention = "auto",
    ) -> "DraftConfig":
        """Read a published draft's config.json: plain, SafeAILab's or speculators' layout.

        Raises ValueError for another architecture and for options that are not implemented.
        """
        refuse_unsupported(config)
        refuse_target(config)
        flat = flat_draft_config(config)
        kind = draft_kind(flat)
        _LAYER.require(flat)
        pairs = kind == "latent"  # pairs of neighbours are rotated, not halves
        require_values(flat, {"rope_interleave": (pairs,), "rope_is_neox_style": (not pairs,)})
        require_full_attention(flat)
        _require_dense(flat)
        rope = RopeConfig.from_hf(flat)
        latent = LatentShape.from_hf(flat) if kind == "latent" else None
        rotated = {"head_dim": latent.qk_rope_head_dim} if latent else {}
        published_ids = read_ids(flat, "eagle_aux_hidden_state_layer_ids") or None
        ids = canonical_aux_layer_ids(published_ids, num_target_layers, aux_id_convention)
        if (num_aux := flat.get("num_aux_hidden_states")) not in (None, len(ids)):
            raise ValueError(
                f"num_aux_hidden_states is {brief(num_aux)}, but the aux layers are {brief(ids)}"
            )
        return cls(
            **{**_sizes(flat, rope), **rotated},
            rms_norm_eps=read_number(flat, "rms_norm_eps", 1e-6),
            rope=rope,
            aux_layer_ids=ids,
            latent=latent,
            **{name: bool(flat.get(name)) for name in NORM_OPTIONS},
        )

    def with_rope(
        self, *, theta: float | None = None, yarn_factor: float | None = None
    ) -> "DraftConfig":
        """Return a copy with another rotary base or YaRN factor, which also sets the softmax scale.

        Raises ValueError for a YaRN factor if the draft has no YaRN.
        """
        return replace(self, rope=self.rope.overridden(theta=theta, yarn_factor=yarn_factor))

    @property
    def num_aux(self) -> int:
        """Number of target layers that the draft reads."""
        return len(self.aux_layer_ids)

    @property
    def rotary_dim(self) -> int:
        """Number of rotated dimensions of a query or key head."""
        return self.latent.qk_rope_head_dim if self.latent else self.head_dim

    @property
    def latent_attention(self) -> LatentAttentionConfig | None:
        """Latent attention over [embedding, state], or None for grouped-query attention."""
        if self.latent is None:
            return None
        return LatentAttentionConfig(
            **asdict(self.latent),
            input_size=2 * self.hidden_size,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            latent_norm_eps=self.rms_norm_eps,
            rope=self.rope,
        )


NORM_OPTIONS = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
_DEFAULTED = ("draft_vocab_size", "target_hidden_size", "num_key_value_heads", "head_dim")
_LAYER = DECODER.extended(
    read=(
        *("intermediate_size", *_DEFAULTED, "q_lora_rank", *LATENT_SIZES),
        *("eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states"),
        *("rope_interleave", "rope_is_neox_style", "n_routed_experts", "first_k_dense_replace"),
    ),
    only={
        "num_hidden_layers": (1,),
        **{name: (True, False) for name in (*NORM_OPTIONS, OLD_FC_NORM)},
        "use_aux_hidden_state": (True,),
        "use_input_layernorm_in_first_layer": (True,),
        "use_last_layernorm": (True,),
        "next_layer_regular": (True,),
        "num_experts": (0,),
        "num_local_experts": (0,),
        "parallel_draft_step": (1,),
    },
    off=("use_mtp_layernorm", "use_moe", "parallel_drafting"),
    # Drafts that propose several tokens per pass: P-EAGLE, PARD, Medusa heads, DFlash.
    absent=(
        *("ptd_token_id", "pard_token", "mask_token_id"),
        *("dflash_config", "dspark_noise_token_id"),
    ),
    ignored=(
        *("parallel_draft_heads_num_layers", "has_lm_head", "qk_head_dim", "train_router"),
        # Fields about experts, which the draft's layer does not have.
        *("moe_intermediate_size", "n_shared_experts", "num_experts_per_tok", "moe_layer_freq"),
        *("n_group", "topk_group", "topk_method", "scoring_func", "norm_topk_prob"),
        *("routed_scaling_factor", "num_nextn_predict_layers", "moe_router_dtype"),
    ),
)
DRAFT_FIELDS = replace(
    _LAYER.extended(
        read=("speculators_model_type",), ignored=("speculators_version", "embed_requires_grad")
    ),
    objects={
        **_LAYER.objects,
        "eagle_config": _LAYER,
        "transformer_layer_config": _LAYER,
        "speculators_config": Fields(
            ignored=("algorithm", "default_proposal_method", "proposal_methods", "verifier")
        ),
    },
)
"""Fields of a draft's config.json in all layouts."""


def _require_dense(flat: Mapping[str, Any]) -> None:
    """Raise ValueError if the draft's layer has experts.

    Trainers derive a draft's configuration from its target's. Left-over expert counts are ignored
    if `use_moe` is false or `first_k_dense_replace` makes the layer dense.
    """
    dense_layers = flat.get("first_k_dense_replace")
    if flat.get("use_moe") is not False and dense_layers in (None, 0):
        require_values(flat, {"n_routed_experts": (0,)})


def _sizes(flat: Mapping[str, Any], rope: RopeConfig) -> dict[str, int]:
    """Read the required sizes, and the sizes that may be absent or null with their defaults."""
    sizes = read_sizes(flat, _SIZES)
    heads, yarn = sizes["num_attention_heads"], rope.yarn
    defaults = {
        "draft_vocab_size": sizes["vocab_size"],
        "target_hidden_size": sizes["hidden_size"],
        "num_key_value_heads": heads,
        "head_dim": sizes["hidden_size"] // heads,
        "max_position_embeddings": round(yarn.factor * yarn.original_max_position_embeddings)
        if yarn
        else 2048,
    }
    given = {name: flat[name] for name in defaults if flat.get(name) is not None}
    return sizes | read_sizes({**defaults, **given}, defaults)
