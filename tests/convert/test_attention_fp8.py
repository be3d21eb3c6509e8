"""The MXFP4 variant with FP8 attention: one scheme for most layers, another for some by pattern."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from decoding import dequantize
from edited import Tensors, copy_edited
from oracle_files import ORACLES

from convert import load_target
from convert.quantize.schemes import scheme_of
from eagle3_jax.full_pass import forward
from pallas_kernels import QuantFormat

SOURCE = ORACLES / "kimi_mxfp4_quark"
QUARK_FP8 = ORACLES / "draft_mha_fp8_ptpc" / "config.json"
TOKENS = np.array([[5, 9, 70, 33, 8, 200, 41]])


def is_attention(name: str) -> bool:
    return ".self_attn." in name and name.endswith(("_proj.weight", "_mqa.weight"))


def with_fp8_attention(tensors: Tensors) -> Tensors:
    result = dict(tensors)
    for name in filter(is_attention, tensors):
        for part, array in scheme_of("ptpc_fp8").encode(tensors[name]).items():
            result[name.removesuffix("weight") + part] = array
    return result


def with_rounded_attention(tensors: Tensors) -> Tensors:
    """The same weights as floats."""
    return {
        name: dequantize(scheme_of("ptpc_fp8").encode(array)) if is_attention(name) else array
        for name, array in tensors.items()
    }


def overridden(config: dict[str, Any]) -> dict[str, Any]:
    config = json.loads(json.dumps(config))
    quark = json.loads(QUARK_FP8.read_text(encoding="utf-8"))["quantization_config"]
    given = config["quantization_config"]
    given["layer_quant_config"] = {"*self_attn*": quark["global_quant_config"]}
    given["exclude"] = [name for name in given["exclude"] if "self_attn" not in name]
    return config


def test_each_layer_keeps_its_own_scheme(tmp_path: Path) -> None:
    variant = copy_edited(SOURCE, tmp_path / "v", tensors=with_fp8_attention, config=overridden)
    layer: Any = load_target(variant).layers[1]
    assert layer.self_attn.o_proj.kernel.format == QuantFormat("fp8_channel", "fp8_token")
    assert layer.mlp.experts.up_proj.format == QuantFormat("mxfp4", "mxfp4")
    assert layer.self_attn.kv_b_proj.key_kernel.get_value().dtype == jnp.float32

    floats = copy_edited(SOURCE, tmp_path / "f", tensors=with_rounded_attention)
    ours, theirs, published = map(logits_of, (variant, floats, SOURCE))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert np.abs(ours - published).max() > 1e-3


def logits_of(checkpoint: Path) -> np.ndarray:
    target = load_target(checkpoint, quantize_activations=False)
    return np.asarray(forward(target, jnp.asarray(TOKENS)).logits)
