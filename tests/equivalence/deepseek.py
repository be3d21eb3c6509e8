"""transformers' DeepseekV3 with random weights of unit scale, and what went through its modules."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

YARN = {
    "rope_type": "yarn",
    "rope_theta": 20000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 16.0,
    "beta_slow": 1.0,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
DIMENSIONS: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "moe_intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "n_routed_experts": 7,
    "num_experts_per_tok": 3,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 12,
    "qk_nope_head_dim": 14,
    "v_head_dim": 10,
    "max_position_embeddings": 512,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "low-rank queries, yarn": {"q_lora_rank": 24, "rope_parameters": YARN, "n_shared_experts": 1},
    "plain queries, plain rope": {
        "q_lora_rank": None,
        "rope_parameters": PLAIN,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.3,
        "rms_norm_eps": 1e-5,
    },
}


@dataclass(frozen=True)
class Call:
    """One call of a torch module."""

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    output: Any


def random_deepseek(**variant: Any) -> DeepseekV3ForCausalLM:
    """A float32 model in which every part matters: no zero biases, no unit norms."""
    torch.manual_seed(1)
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**(DIMENSIONS | variant))).eval()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "norm" in name:
            tensor.data.normal_(1.0, 0.2)
        elif name.endswith("e_score_correction_bias"):
            tensor.data.normal_(0.0, 0.3)
        elif "embed" in name:
            tensor.data.normal_()
        elif "inv_freq" not in name:
            tensor.data.normal_(0.0, tensor.shape[-1] ** -0.5)
    return model


def record(model: DeepseekV3ForCausalLM, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, Call]]:
    """Runs the model; returns its logits and the call of every module by name."""
    calls: dict[str, Call] = {}
    handles = []
    for name, module in model.named_modules():

        def keep(
            module: torch.nn.Module, args: Any, kwargs: Any, output: Any, name: str = name
        ) -> None:
            calls[name] = Call(module, (*args, *kwargs.values()), output)

        handles.append(module.register_forward_hook(keep, with_kwargs=True))
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    for handle in handles:
        handle.remove()
    return logits, calls


def save(model: DeepseekV3ForCausalLM, directory: Path) -> Path:
    """The checkpoint as transformers itself writes it."""
    model.save_pretrained(directory)
    return directory
