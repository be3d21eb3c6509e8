"""Names of operations with a kernel, as used in logs and flags.

Read with the flags, before anything imports JAX.
"""

OPERATIONS = (
    *("absorb_query", "add_norm", "attend_share", "cache_heads", "cache_latents", "gated_matmul"),
    *("gqa_decode", "gqa_share", "grouped_mlp", "head_squares", "item_attention"),
    *("joint_matmul", "logits_argmax", "matmul", "mla_decode", "mla_prefill", "mla_prefill_part"),
    *("route", "router_logits", "share_values"),
)
