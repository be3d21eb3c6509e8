"""A checkpoint as Kimi-K2.5 is released, INT4 in groups of 32, of any size and random content."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx

from convert.files.safetensors_files import INDEX_FILE
from convert.fill import shapes_of
from convert.models.kimi_k25 import kimi_rules, kimi_to_hf, published_kimi_name
from convert.save import write_tensors
from convert.saved_tensors import saved_tensors
from convert.store.parameter import Parameter
from eagle3_jax.config import KimiConfig
from eagle3_jax.models.kimi import KimiTarget
from serve.bench.cpu.kimi_108m import KIMI_108M

SHARD_BYTES = 2**30
GROUP = 32
WIDTHS = replace(
    KIMI_108M,
    vocab_size=16384,
    hidden_size=2048,
    intermediate_size=1024,
    moe_intermediate_size=1024,
    num_attention_heads=16,
    n_routed_experts=64,
    num_experts_per_tok=8,
    q_lora_rank=512,
    kv_lora_rank=256,
)
"""Of the synthetic target; a layer of experts dominates it, as in the real one."""
_DENSE = r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"
_INT4 = {"num_bits": 4, "type": "int", "group_size": GROUP, "symmetric": True, "strategy": "group"}
_QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", _DENSE],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _INT4}},
}


def write_synthetic(
    directory: Path, nbytes: int, widths: KimiConfig = WIDTHS, *, seed: int = 0
) -> int:
    """Writes config.json and shards of about `nbytes` in all; returns their number of bytes."""
    directory.mkdir()
    noise = np.random.default_rng(seed)
    one, two = (_nbytes(_tensors(_with_layers(widths, layers), noise)) for layers in (1, 2))
    config = _with_layers(widths, 1 + max(1, round((nbytes - one) / (two - one))))
    fields = kimi_to_hf(config, "bfloat16")
    fields["text_config"]["quantization_config"] = _QUANTIZATION
    (directory / "config.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")
    shards = list(_shards(_tensors(config, noise)))
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):06d}.safetensors"
        write_tensors(directory / file, tensors)
        weight_map |= {tensor.path: file for tensor in tensors}
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / INDEX_FILE).write_text(json.dumps(index), encoding="utf-8")
    return sum(map(_nbytes, shards))


def _with_layers(widths: KimiConfig, layers: int) -> KimiConfig:
    return replace(widths, num_hidden_layers=layers)


def _tensors(config: KimiConfig, noise: np.random.Generator) -> Iterator[Parameter]:
    """By name, so that those of a layer are together."""
    model = nnx.eval_shape(lambda: KimiTarget(config, rngs=nnx.Rngs(0)))
    # Only names, shapes and dtypes are asked for: all content is made here.
    rules, bfloat16 = kimi_rules(config), np.dtype(jnp.bfloat16)
    floats = saved_tensors(rules, shapes_of(model), lambda _: np.empty(0), bfloat16)
    for tensor in sorted(floats, key=lambda tensor: tensor.path):
        name, shape, dtype = published_kimi_name(tensor.path), tensor.shape, tensor.dtype
        if ".experts." in name:
            outputs, inputs = shape
            yield _random(f"{name}_packed", (outputs, inputs // 8), np.dtype(np.int32), noise)
            yield _random(f"{name}_scale", (outputs, inputs // GROUP), dtype, noise)
            matrix = np.array(shape, np.int32)
            yield Parameter(f"{name}_shape", (2,), matrix.dtype, matrix.copy)
        else:
            yield _random(name, shape, dtype, noise)


def _random(
    name: str, shape: tuple[int, ...], dtype: np.dtype, noise: np.random.Generator
) -> Parameter:
    """Any words for packed weights, small positive numbers for all others."""

    def content() -> np.ndarray:
        if dtype == np.int32:
            return noise.integers(-(2**31), 2**31, shape, np.int32)
        if dtype == jnp.bfloat16:
            return noise.integers(0x3C00, 0x3E00, shape, np.uint16).view(dtype)
        return np.zeros(shape, dtype)

    return Parameter(name, shape, dtype, content)


def _nbytes(tensors: Iterable[Parameter]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _shards(tensors: Iterable[Parameter]) -> Iterator[list[Parameter]]:
    shard: list[Parameter] = []
    for tensor in tensors:
        if shard and _nbytes(shard) + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard = []
        shard.append(tensor)
    yield shard
