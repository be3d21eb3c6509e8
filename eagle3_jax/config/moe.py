"""Configuration of one block of experts, independent of the target."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MoEConfig:
    """Sigmoid-routed experts (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).

    `router_dtype` is the dtype of the router's weight; None means the model's dtype.
    """

    hidden_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    router_dtype: str | None = None
