"""Abstract Kimi-K2.5 and its draft at their published widths, with any number of layers.

No weight is allocated. Formats are those of the published checkpoints; a test compares these
figures with their config.json.
"""

from dataclasses import replace
from typing import Literal

import jax.numpy as jnp
from flax import nnx

from eagle3_jax.config import DraftConfig, KimiConfig, RopeConfig, YarnConfig
from eagle3_jax.config.vision import PixelConfig, VisionConfig
from eagle3_jax.layers.quantized import quantize_structure
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.models.target import Target
from pallas_kernels import QuantFormat

WeightScheme = Literal["mxfp4", "ptpc", "int4"]
"""amd/Kimi-K2.5-MXFP4; FP8 by token and channel; moonshotai/Kimi-K2.5 as published."""

TARGET = KimiConfig(
    vocab_size=163840,
    hidden_size=7168,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    num_hidden_layers=61,
    num_attention_heads=64,
    n_routed_experts=384,
    n_shared_experts=1,
    num_experts_per_tok=8,
    first_k_dense_replace=1,
    routed_scaling_factor=2.827,
    norm_topk_prob=True,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    rms_norm_eps=1e-5,
    max_position_embeddings=262144,
    rope=RopeConfig(50000.0, YarnConfig(64.0, 4096, mscale=1.0, mscale_all_dim=1.0)),
    eos_token_ids=(163585,),
    media_placeholder_token_id=163605,
)
DRAFT = DraftConfig(
    vocab_size=163840,
    draft_vocab_size=163840,
    hidden_size=7168,
    target_hidden_size=7168,
    intermediate_size=12288,
    num_attention_heads=64,
    num_key_value_heads=64,
    head_dim=128,
    rms_norm_eps=1e-6,
    max_position_embeddings=262144,
    rope=RopeConfig(1000000.0),
    aux_layer_ids=(2, 30, 58),
)
VISION = VisionConfig(
    hidden_size=1152,
    num_hidden_layers=27,
    num_attention_heads=16,
    intermediate_size=4304,
    pos_emb_height=64,
    pos_emb_width=64,
    pos_emb_time=4,
    patch_size=14,
    text_hidden_size=TARGET.hidden_size,
    merge_size=2,
    projector_ln_eps=1e-5,
    media_placeholder_token_id=163605,
    pixels=PixelConfig(),
)
_FP8 = QuantFormat("fp8_channel", "fp8_token")
_MLP = ("gate_proj", "up_proj", "down_proj")
_ATTENTION = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")


def abstract_target(layers: int, scheme: WeightScheme) -> Target:
    """Build the first `layers` layers: one dense, the others with experts."""
    config = replace(TARGET, num_hidden_layers=layers)
    model = nnx.eval_shape(lambda: KimiTarget(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16))
    formats = {
        path: format
        for layer in range(layers)
        for path, format in _layer_formats(f"layers.{layer}", config.is_dense(layer), scheme)
    }
    quantize_structure(model, formats)
    return model


def abstract_draft(aux_layer_ids: tuple[int, ...]) -> Eagle3Draft:
    """Build the multi-head draft in FP8 by token and channel, except fc and head."""
    config = replace(DRAFT, aux_layer_ids=aux_layer_ids)
    model = nnx.eval_shape(lambda: Eagle3Draft(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16))
    attention = [f"midlayer.self_attn.{name}_proj.kernel" for name in "qkvo"]
    mlp = [f"midlayer.mlp.{name}.kernel" for name in _MLP]
    quantize_structure(model, dict.fromkeys([*attention, *mlp], _FP8))
    return model


def _layer_formats(layer: str, dense: bool, scheme: WeightScheme) -> list[tuple[str, QuantFormat]]:
    routed = [] if dense else [f"{layer}.mlp.experts.{name}" for name in _MLP]
    mlp = f"{layer}.mlp" if dense else f"{layer}.mlp.shared_experts"
    plain = [f"{mlp}.{name}.kernel" for name in _MLP]
    attention = [f"{layer}.self_attn.{name}.kernel" for name in _ATTENTION]
    if scheme == "int4":
        return [(path, QuantFormat("int4_group")) for path in routed]
    if scheme == "mxfp4":
        return [(path, QuantFormat("mxfp4", "mxfp4")) for path in routed + plain]
    return [(path, _FP8) for path in routed + plain + attention]
