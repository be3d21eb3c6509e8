"""MiniMax-M2.5 and a draft of it at their published widths.

The draft is thoughtworks/MiniMax-M2.5-Eagle3, whose head counts and intermediate size are derived
from its file size.
"""

from eagle3_jax.config import DraftConfig, MiniMaxConfig, RopeConfig, default_aux_layer_ids

TARGET = MiniMaxConfig(
    vocab_size=200064,
    hidden_size=3072,
    intermediate_size=1536,
    num_hidden_layers=62,
    num_attention_heads=48,
    num_key_value_heads=8,
    head_dim=128,
    rotary_dim=64,
    num_local_experts=256,
    num_experts_per_tok=8,
    num_mtp_modules=3,
    mtp_transformer_layers=1,
    rms_norm_eps=1e-6,
    max_position_embeddings=196608,
    rope=RopeConfig(5e6),
)
DRAFT = DraftConfig(
    vocab_size=TARGET.vocab_size,
    draft_vocab_size=32000,
    hidden_size=TARGET.hidden_size,
    target_hidden_size=TARGET.hidden_size,
    intermediate_size=8192,
    num_attention_heads=24,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    rope=TARGET.rope,
    aux_layer_ids=default_aux_layer_ids(TARGET.num_hidden_layers),
)
FP8_BLOCKS = {
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
}
