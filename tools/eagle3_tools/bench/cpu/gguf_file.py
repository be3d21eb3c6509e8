"""The random Kimi as a GGUF file, llama.cpp's format, of the architecture deepseek2.

Format: github.com/ggml-org/ggml, docs/gguf.md, version 3. Names of fields and tensors: llama.cpp,
gguf-py/gguf/constants.py.
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from eagle3_jax.config import KimiConfig

ALIGNMENT = 32
TENSOR_TYPES = {np.dtype(np.float32): 0, np.dtype(ml_dtypes.bfloat16): 30}
"""dtype -> ggml_type."""
CODES = {bool: (7, "?"), int: (4, "<I"), np.int32: (5, "<i"), float: (6, "<f"), str: (8, "")}
"""Type of a field -> its number, and its form."""
LIST = 9
SIGMOID = 2
"""llama.cpp's number of the router's scoring function."""
NORMAL = np.int32(1)
"""llama.cpp's number of tokens that are text."""
TOKEN = "t"
"""Token i is called t<i>."""
OF_A_BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
"""Published module of a layer -> name in a block."""
WHOLE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def write_kimi(
    path: Path, config: KimiConfig, published: Mapping[str, np.ndarray], dtype: Any
) -> None:
    """Write a model without YaRN; matrices but the router's get `dtype`, all else is float32.

    `published` has float32 tensors under the names of a DeepSeek-V3 checkpoint.
    """
    tensors = kimi_tensors(config, published)
    wide = ("norm", "ffn_gate_inp")
    small = {name for name, x in tensors.items() if x.ndim < 2 or any(w in name for w in wide)}
    stored = {name: x if name in small else x.astype(dtype) for name, x in tensors.items()}
    write_gguf(path, kimi_fields(config), stored)


def kimi_fields(config: KimiConfig) -> dict[str, Any]:
    """Return the fields that llama.cpp reads of deepseek2, with absorbed attention."""
    assert config.rope.yarn is None, "the random model has no YaRN"
    nope, rope, latent = config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "leading_dense_block_count": config.first_k_dense_replace,
        "rope.freq_base": float(config.rope.theta),
        "rope.dimension_count": rope,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": latent,
        "attention.key_length": latent + rope,
        "attention.value_length": latent,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": config.v_head_dim,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": config.norm_topk_prob,
        "expert_gating_func": SIGMOID,
    }
    # llama.cpp's server answers in text: names from which ids can be read.
    names = [f"{TOKEN}{i}" for i in range(config.vocab_size)]
    fields = {
        "general.architecture": "deepseek2",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": [0.0] * len(names),
        "tokenizer.ggml.token_type": [NORMAL] * len(names),
        "tokenizer.ggml.add_bos_token": False,
    }
    return fields | {f"deepseek2.{name}": value for name, value in own.items()}


def kimi_tensors(config: KimiConfig, published: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors under llama.cpp's names: experts stacked, kv_b_proj as its two halves."""
    heads, nope, latent = config.num_attention_heads, config.qk_nope_head_dim, config.kv_lora_rank
    plain = {name.removeprefix("model."): x for name, x in published.items()}
    tensors = {f"{to}.weight": plain[f"{of}.weight"] for of, to in WHOLE.items()}
    for layer in range(config.num_hidden_layers):
        block, own = f"blk.{layer}", f"layers.{layer}"
        for of, to in OF_A_BLOCK.items():
            if (x := plain.get(f"{own}.{of}.weight")) is not None:
                tensors[f"{block}.{to}.weight"] = x
        halves = plain[f"{own}.self_attn.kv_b_proj.weight"].reshape(heads, -1, latent)
        tensors[f"{block}.attn_k_b.weight"] = halves[:, :nope].transpose(0, 2, 1)
        tensors[f"{block}.attn_v_b.weight"] = halves[:, nope:]
        if (bias := plain.get(f"{own}.mlp.gate.e_score_correction_bias")) is None:
            continue
        tensors[f"{block}.exp_probs_b.bias"] = bias
        for part in ("gate", "up", "down"):
            experts = range(config.n_routed_experts)
            each = [plain[f"{own}.mlp.experts.{i}.{part}_proj.weight"] for i in experts]
            tensors[f"{block}.ffn_{part}_exps.weight"] = np.stack(each)
    return tensors


def write_gguf(path: Path, fields: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Write fields, of the types in CODES or lists of them, and tensors of TENSOR_TYPES."""
    arrays = [np.ascontiguousarray(x) for x in tensors.values()]
    sizes = [x.nbytes + -x.nbytes % ALIGNMENT for x in arrays]
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(arrays), len(fields))]
    head += [_text(name) + _value(value) for name, value in fields.items()]
    starts = accumulate(sizes, initial=0)
    head += [_described(*each) for each in zip(tensors, arrays, starts, strict=False)]
    with path.open("wb") as file:
        written = file.write(b"".join(head))
        file.write(bytes(-written % ALIGNMENT))
        for array, size in zip(arrays, sizes, strict=True):
            file.write(array.tobytes())
            file.write(bytes(size - array.nbytes))


def _described(name: str, array: np.ndarray, start: int) -> bytes:
    """Return a tensor's name, sizes from the fastest one on, type and place."""
    sizes: Sequence[int] = array.shape[::-1]
    kind = TENSOR_TYPES[array.dtype]
    return _text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, start)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode("ascii")


def _value(value: Any) -> bytes:
    """Return a value's type and bytes; a list has values of one type."""
    if not isinstance(value, list):
        return struct.pack("<I", CODES[type(value)][0]) + _packed(value)
    head = struct.pack("<IIQ", LIST, CODES[type(value[0])][0], len(value))
    return head + b"".join(map(_packed, value))


def _packed(value: Any) -> bytes:
    return _text(value) if isinstance(value, str) else struct.pack(CODES[type(value)][1], value)
