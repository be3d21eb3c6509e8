"""A checkpoint as Kimi-K2.5 is released, INT4 in groups of 32, of any size and random content."""

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SHARD_BYTES = 2**30
GROUP = 32
Tensor = tuple[str, str, tuple[int, ...], int]
"""Name, dtype, shape and bytes."""
_ITEMSIZE = {"BF16": 2, "F32": 4, "I32": 4}
_PREFIX = "language_model.model."


@dataclass(frozen=True)
class Sizes:
    """Widths of the synthetic target; a layer of experts dominates it, as in the real one."""

    hidden: int = 2048
    expert: int = 1024
    experts: int = 64
    heads: int = 16
    q_rank: int = 512
    kv_rank: int = 256
    nope: int = 64
    rope: int = 32
    vocab: int = 16384


def write_synthetic(directory: Path, nbytes: int, sizes: Sizes, *, seed: int = 0) -> int:
    """Writes config.json and shards of about `nbytes` in all; returns their number of bytes."""
    directory.mkdir()
    dense = _nbytes(_tensors(sizes, 1))
    layer_bytes = _nbytes(_tensors(sizes, 2)) - dense
    layers = 1 + max(1, round((nbytes - dense) / layer_bytes))
    config = json.dumps(_config(sizes, layers), indent=1)
    (directory / "config.json").write_text(config, encoding="utf-8")
    noise = np.random.default_rng(seed)
    shards = list(_shards(_tensors(sizes, layers)))
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):06d}.safetensors"
        _write_shard(directory / file, tensors, sizes, noise)
        weight_map |= {name: file for name, *_ in tensors}
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return sum(map(_nbytes, shards))


def _tensors(sizes: Sizes, layers: int) -> Iterator[Tensor]:
    vocabulary = (sizes.vocab, sizes.hidden)
    yield _tensor(_PREFIX + "embed_tokens.weight", vocabulary)
    for layer in range(layers):
        module = f"{_PREFIX}layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield _tensor(f"{module}{norm}.weight", (sizes.hidden,))
        for name, shape in _attention(sizes).items():
            yield _tensor(f"{module}self_attn.{name}.weight", shape)
        yield from _mlp(module + "mlp.", sizes) if layer else _plain(module + "mlp.", sizes)
    yield _tensor(_PREFIX + "norm.weight", (sizes.hidden,))
    yield _tensor("language_model.lm_head.weight", vocabulary)


def _attention(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    heads, qk = sizes.heads, sizes.nope + sizes.rope
    return {
        "q_a_proj": (sizes.q_rank, sizes.hidden),
        "q_a_layernorm": (sizes.q_rank,),
        "q_b_proj": (heads * qk, sizes.q_rank),
        "kv_a_proj_with_mqa": (sizes.kv_rank + sizes.rope, sizes.hidden),
        "kv_a_layernorm": (sizes.kv_rank,),
        "kv_b_proj": (heads * 2 * sizes.nope, sizes.kv_rank),
        "o_proj": (sizes.hidden, heads * sizes.nope),
    }


def _mlp(module: str, sizes: Sizes) -> Iterator[Tensor]:
    yield _tensor(module + "gate.weight", (sizes.experts, sizes.hidden))
    yield _tensor(module + "gate.e_score_correction_bias", (sizes.experts,), "F32")
    yield from _plain(module + "shared_experts.", sizes)
    for expert in range(sizes.experts):
        for name, (outputs, inputs) in _matrices(sizes).items():
            weight = f"{module}experts.{expert}.{name}.weight"
            yield _tensor(weight + "_packed", (outputs, inputs // 8), "I32")
            yield _tensor(weight + "_scale", (outputs, inputs // GROUP))
            yield _tensor(weight + "_shape", (2,), "I32")


def _plain(module: str, sizes: Sizes) -> Iterator[Tensor]:
    for name, shape in _matrices(sizes).items():
        yield _tensor(f"{module}{name}.weight", shape)


def _matrices(sizes: Sizes) -> dict[str, tuple[int, int]]:
    wide, narrow = (sizes.expert, sizes.hidden), (sizes.hidden, sizes.expert)
    return {"gate_proj": wide, "up_proj": wide, "down_proj": narrow}


def _tensor(name: str, shape: tuple[int, ...], dtype: str = "BF16") -> Tensor:
    return name, dtype, shape, int(np.prod(shape)) * _ITEMSIZE[dtype]


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(nbytes for *_, nbytes in tensors)


def _shards(tensors: Iterator[Tensor]) -> Iterator[list[Tensor]]:
    shard: list[Tensor] = []
    for tensor in tensors:
        if shard and _nbytes(shard) + tensor[3] > SHARD_BYTES:
            yield shard
            shard = []
        shard.append(tensor)
    yield shard


def _write_shard(
    file: Path, tensors: list[Tensor], sizes: Sizes, noise: np.random.Generator
) -> None:
    header, end = {}, 0
    for name, dtype, shape, nbytes in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (end, end + nbytes)}
        end += nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(encoded)) + encoded)
        for name, dtype, _, nbytes in tensors:
            opened.write(_content(name, dtype, nbytes, sizes, noise))


def _content(name: str, dtype: str, nbytes: int, sizes: Sizes, noise: np.random.Generator) -> bytes:
    """Any words for packed weights, small positive numbers for all others."""
    if name.endswith("weight_shape"):
        matrix = _matrices(sizes)[name.split(".")[-2]]
        return np.array(matrix, "<i4").tobytes()
    if dtype == "BF16":
        return noise.integers(0x3C00, 0x3E00, nbytes // 2, np.uint16).tobytes()
    return noise.bytes(nbytes) if dtype == "I32" else bytes(nbytes)


def _config(sizes: Sizes, layers: int) -> dict[str, Any]:
    text = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_act": "silu",
        "attention_bias": False,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.expert,
        "moe_intermediate_size": sizes.expert,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_routed_experts": sizes.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.heads,
        "q_lora_rank": sizes.q_rank,
        "kv_lora_rank": sizes.kv_rank,
        "qk_nope_head_dim": sizes.nope,
        "qk_rope_head_dim": sizes.rope,
        "v_head_dim": sizes.nope,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", _DENSE],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": _INT4}},
        },
    }
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "tie_word_embeddings": False,
        "text_config": text,
    }


_DENSE = r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"
_INT4 = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True, "strategy": "group"}
