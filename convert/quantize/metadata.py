"""Write the `quantization_config` of config.json, in the keys and values that other software reads.

vLLM and SGLang read Quark's and compressed-tensors' form; transformers also reads FP8 blocks.
"""

from collections.abc import Sequence
from typing import Any

from convert.published.forms import FP8_BLOCK, INT4_GROUP
from convert.quantize.schemes import Quantizer
from convert.quantize.select import ExcludeStyle, Selection
from pallas_kernels.quantized.formats import BLOCK, GROUP

QUARK_VERSION = "0.13"
"""Version of the layout that is written."""

_QUARK_SPEC = {
    "dtype": None,
    "is_dynamic": False,
    "qscheme": "per_channel",
    "ch_axis": 0,
    "group_size": None,
    "block_size": None,
    "symmetric": True,
    "round_method": "half_even",
    "scale_type": "float",
    "zero_point_type": "int32",
    "scale_format": None,
    "scale_calculation_mode": None,
    "mx_element_dtype": None,
    "observer_cls": "PerChannelMinMaxObserver",
    "is_scale_quant": False,
    "enable_buffer_reuse": False,
    "max_input_numel": 4194304,
}
_FP8 = _QUARK_SPEC | {"dtype": "fp8_e4m3"}
_FP4 = _QUARK_SPEC | {
    "dtype": "fp4",
    "qscheme": "per_group",
    "ch_axis": -1,
    "group_size": 32,
    "symmetric": None,
    "scale_format": "e8m0",
    "scale_calculation_mode": "even",
    "observer_cls": "PerBlockMXObserver",
}
_QUARK_WEIGHTS_AND_INPUTS = {
    "ptpc_fp8": (_FP8, _FP8 | {"is_dynamic": True, "ch_axis": 1}),
    "int4": (_QUARK_SPEC | {"dtype": "int4"}, None),
    "mxfp4": (_FP4, _FP4 | {"is_dynamic": True}),
}


def written_excludes(
    scheme: Quantizer, selection: Selection, style: ExcludeStyle
) -> tuple[str, ...]:
    """Return the names of the unquantised modules; `fp8_block` supports no patterns."""
    if scheme.form is FP8_BLOCK:
        # vLLM and SGLang compare whole names here, and some put `model.` before a draft's.
        prefixed = [f"model.{module}" for module in selection.kept if "." not in module]
        return (*selection.kept, *prefixed)
    return selection.kept if style == "exact" else selection.regexes()


def with_quantization(
    config: dict[str, Any], scheme: Quantizer, excludes: Sequence[str]
) -> dict[str, Any]:
    """Add the quantisation to a config.json; ValueError if it describes one already."""
    text = config.get("text_config")
    if not isinstance(text, dict | None):
        raise ValueError(f"config.json: text_config must be an object, got {type(text).__name__}")
    if "quantization_config" in config or "quantization_config" in (text or {}):
        raise ValueError("config.json has a quantization_config, but no weight is quantised")
    if scheme.form is FP8_BLOCK:
        return config | {"quantization_config": _fp8_blocks(excludes)}
    if scheme.form is not INT4_GROUP:
        return config | {"quantization_config": _quark(scheme.name, excludes)}
    described = {"quantization_config": _compressed_tensors(excludes)}
    nested = {"text_config": text | described} if text is not None else {}
    return config | nested | described


def _quark(scheme: str, excludes: Sequence[str]) -> dict[str, Any]:
    weight, inputs = _QUARK_WEIGHTS_AND_INPUTS[scheme]
    return {
        "global_quant_config": {
            "input_tensors": inputs,
            "output_tensors": None,
            "weight": weight,
            "bias": None,
            "target_device": None,
        },
        "exclude": list(excludes),
        "algo_config": None,
        "softmax_quant_spec": None,
        "quant_method": "quark",
        "layer_type_quant_config": {},
        "layer_quant_config": {},
        "kv_cache_quant_config": {},
        "kv_cache_post_rope": False,
        "quant_mode": "eager_mode",
        "version": QUARK_VERSION,
        "export": {
            "kv_cache_group": [],
            "min_kv_scale": 0.0,
            "pack_method": "reorder",
            "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
    }


def _compressed_tensors(excludes: Sequence[str]) -> dict[str, Any]:
    weights = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": GROUP,
        "num_bits": 4,
        "observer": "minmax",
        "observer_kwargs": {},
        "strategy": "group",
        "symmetric": True,
        "type": "int",
    }
    group = {
        "input_activations": None,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": "pack-quantized",
        "ignore": list(excludes),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def _fp8_blocks(excludes: Sequence[str]) -> dict[str, Any]:
    return {
        "activation_scheme": "dynamic",
        "fmt": "float8_e4m3fn",
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": list(excludes),
    }
