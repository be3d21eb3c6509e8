"""Published configurations, as their authors wrote them."""

from typing import Any

from eagle3_jax.config import DraftConfig

KIMI_TEXT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "eos_token_id": 163585,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 262144,
    "model_type": "kimi_k2",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 64.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 163840,
}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "eos_token_id": 163585,
    "model_type": "kimi_k25",
    "text_config": KIMI_TEXT,
    "vision_config": {"patch_size": 14},
}
DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "draft_vocab_size": 163840,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 12288,
    "max_position_embeddings": 262144,
    "model_type": "llama",
    "num_attention_heads": 64,
    "num_hidden_layers": 1,
    "num_key_value_heads": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 163840,
}
LATENT = {
    **{k: v for k, v in DRAFT.items() if k not in ("head_dim", "max_position_embeddings")},
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "intermediate_size": 18432,
    "rms_norm_eps": 1e-5,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_theta": 50000.0,
    "rope_scaling": {**KIMI_TEXT["rope_scaling"], "beta_fast": 1.0},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_mtp_layernorm": False},
}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 32000,
    "norm_before_residual": True,
    "norm_before_fc": False,
    "fc_norm": True,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": [2, 30, 58],
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": 7168,
        "intermediate_size": 12288,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 163840,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "num_hidden_layers": 1,
    },
}


def read_draft(num_target_layers: int = 61, **changes: Any) -> DraftConfig:
    """The published draft with some fields changed."""
    return DraftConfig.from_hf({**DRAFT, **changes}, num_target_layers=num_target_layers)


def read_latent(**changes: Any) -> DraftConfig:
    """The published draft with latent attention, with some fields changed."""
    return DraftConfig.from_hf({**LATENT, **changes}, num_target_layers=61)
