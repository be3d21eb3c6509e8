"""NVFP4 as ModelOpt and compressed-tensors publish it, against arithmetic on ml_dtypes' float4."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from edited import Tensors, copy_edited
from oracle_files import ORACLES
from tolerances import FLOAT32_ATOL

from convert import load_target
from convert.published.directory import open_published
from convert.published.quantization_config import read_quantization_config
from eagle3_jax.full_pass import forward
from pallas_kernels import QuantFormat, dequantize

SOURCE = ORACLES / "kimi_bf16"
TOKENS = np.array([[5, 9, 70, 33, 8, 200, 41]])
UP = "language_model.model.layers.1.mlp.experts.{}.up_proj.weight"
KEPT = ["lm_head", "*self_attn*", "*mlp.gate"]
MODELOPT = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16}
OF_FOUR_BITS = {"num_bits": 4, "type": "float", "group_size": 16, "symmetric": True}
COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "ignore": ["re:.*lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "nvfp4-pack-quantized",
            "weights": {**OF_FOUR_BITS, "strategy": "tensor_group", "dynamic": False},
            "input_activations": {**OF_FOUR_BITS, "dynamic": "local"},
        }
    },
}


def written(tensors: Tensors, tool: str) -> tuple[Tensors, Tensors]:
    """Random codes and scales in the names of a tool, and the matrices that they mean."""
    rng, stored, meant = np.random.default_rng(0), dict(tensors), dict(tensors)
    for name in tensors:
        if ".mlp." not in name or not name.endswith("_proj.weight"):
            continue
        outputs, inputs = tensors[name].shape
        codes = rng.integers(0, 16, (outputs, inputs), np.uint8)
        scale = rng.uniform(1, 448, (outputs, inputs // 16)).astype(ml_dtypes.float8_e4m3fn)
        matrix = np.float32(rng.uniform(3e-5, 6e-5))
        inverse = np.array([1 / matrix], np.float32)
        del stored[name]
        named = {"weight_packed": (codes[:, 1::2] << 4) | codes[:, ::2], "weight_scale": scale}
        if tool == "modelopt":
            named["weight"] = named.pop("weight_packed")
            named |= {"weight_scale_2": np.array(matrix), "input_scale": np.array(matrix)}
            groups = scale.astype(np.float32) * matrix
        else:
            named |= {"weight_global_scale": inverse, "input_global_scale": inverse}
            groups = scale.astype(np.float32) / inverse
        stored |= {name.removesuffix("weight") + part: array for part, array in named.items()}
        numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        meant[name] = numbers * groups.repeat(16, axis=1)
    return stored, meant


def published(tool: str, directory: Path) -> Path:
    """A checkpoint of a tool; ModelOpt's older ones describe it in a file of their own."""
    section = {"quantization_config": COMPRESSED} if tool != "modelopt" else {}
    made = copy_edited(
        SOURCE,
        directory,
        tensors=lambda tensors: written(tensors, tool)[0],
        config=lambda config: config | section,
    )
    if not section:
        content = {"producer": {"name": "modelopt"}, "quantization": MODELOPT}
        content["quantization"] = MODELOPT | {"exclude_modules": KEPT}
        (made / "hf_quant_config.json").write_text(json.dumps(content), encoding="utf-8")
    return made


@pytest.mark.parametrize("tool", ["modelopt", "compressed-tensors"])
def test_nvfp4_stays_quantised_and_means_what_its_layout_says(tool: str, tmp_path: Path) -> None:
    meant: Tensors = {}

    def floats(tensors: Tensors) -> Tensors:
        meant.update(written(tensors, tool)[1])
        return meant

    plain = load_target(copy_edited(SOURCE, tmp_path / "f", tensors=floats), dtype=jnp.float32)
    target: Any = load_target(published(tool, tmp_path / "q"), dtype=jnp.float32)
    experts = target.layers[1].mlp.experts.up_proj
    assert experts.format == QuantFormat("nvfp4")
    kernel = experts.get_value()
    expected = np.stack([meant[UP.format(expert)] for expert in range(kernel.shape[0])])
    np.testing.assert_array_equal(dequantize(kernel), expected)
    ours, theirs = forward(target, TOKENS), forward(plain, TOKENS)
    np.testing.assert_allclose(ours.logits, theirs.logits, atol=FLOAT32_ATOL)


@pytest.mark.parametrize("method", ["modelopt", "modelopt_fp4"])
def test_a_module_that_modelopt_excludes_is_excluded_with_all_inside(method: str) -> None:
    names = ["lm_head", "language_model.layers.0.self_attn"]
    section = {"quant_method": method, "ignore": names, **MODELOPT}
    config = read_quantization_config({"quantization_config": section})
    assert config is not None
    assert config.scheme_of("language_model.model.layers.0.self_attn.o_proj") is None
    scheme = config.scheme_of("model.layers.0.mlp.up_proj")
    assert scheme is not None and (scheme.weights, scheme.activations) == ("nvfp4", False)


@pytest.mark.parametrize(
    "given", [{"quant_algo": "FP8"}, {"quant_algo": "NVFP4", "group_size": 32}, {}]
)
def test_other_schemes_of_modelopt_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="quant_algo NVFP4 in groups of 16, got"):
        read_quantization_config({"quantization_config": {"quant_method": "modelopt", **given}})


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("weight_scale", "weight_scale: missing; NVFP4 of ModelOpt needs it"),
        ("weight_scale_2", "weight_scale_2: missing; NVFP4 of ModelOpt needs it"),
    ],
)
def test_a_weight_without_one_of_its_scales_is_refused(
    lost: str, message: str, tmp_path: Path
) -> None:
    def without(tensors: Tensors) -> Tensors:
        stored, _ = written(tensors, "modelopt")
        name = UP.format(0).removesuffix("weight")
        return {key: array for key, array in stored.items() if key != f"{name}{lost}"}

    made = copy_edited(SOURCE, tmp_path / "q", tensors=without)
    assert any(message in misfit for misfit in open_published(made).misfits)
