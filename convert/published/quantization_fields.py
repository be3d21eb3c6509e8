"""The known fields of `quantization_config`, by the tool that wrote it."""

from collections.abc import Mapping

from eagle3_jax.config.fields import Fields

_TENSOR = Fields(
    read=("dtype", "qscheme"),
    only={"symmetric": (True,), "group_size": (32,)},
    ignored=(
        *("ch_axis", "is_dynamic", "is_scale_quant", "mx_element_dtype", "observer_cls"),
        *("round_method", "scale_calculation_mode", "scale_format", "scale_type", "block_size"),
        *("zero_point_type", "enable_buffer_reuse", "max_input_numel"),
    ),
)
_SPEC = Fields(
    only={"output_tensors": (), "bias": ()},
    ignored=("target_device",),
    objects={
        "weight": _TENSOR,
        "input_tensors": _TENSOR.extended(
            only={"is_dynamic": (True,), "scale_calculation_mode": ("even",)}
        ),
    },
)
_GROUP = Fields(
    only={
        "targets": (["Linear"],),
        "format": ("pack-quantized",),
        "input_activations": (),
        "output_activations": (),
    },
    objects={
        "weights": Fields(
            read=("num_bits", "type", "group_size", "symmetric"),
            only={
                "strategy": ("group",),
                "dynamic": (False,),
                "actorder": ("static", "weight"),  # columns keep their order
                "block_structure": (),
            },
            ignored=("observer", "observer_kwargs", "scale_dtype", "zp_dtype"),
        )
    },
)
QUANTIZATION_FIELDS: Mapping[str, Fields] = {
    "compressed-tensors": Fields(
        read=("quant_method", "format", "ignore"),
        only={"kv_cache_scheme": (), "sparsity_config": ({},), "transform_config": ({},)},
        ignored=("quantization_status", "global_compression_ratio", "version"),
        objects={"config_groups": Fields(objects={"*": _GROUP})},
    ),
    "quark": Fields(
        read=("quant_method", "exclude"),
        only={
            "layer_type_quant_config": ({},),
            "kv_cache_quant_config": ({},),
            "softmax_quant_spec": (),
        },
        ignored=("algo_config", "export", "kv_cache_post_rope", "quant_mode", "version"),
        objects={
            "global_quant_config": _SPEC,
            "layer_quant_config": Fields(objects={"*": _SPEC}),
        },
    ),
    "fp8": Fields(
        read=("quant_method", "weight_block_size", "modules_to_not_convert"),
        only={
            "activation_scheme": ("dynamic",),
            "fmt": ("float8_e4m3fn", "e4m3"),
            "scale_fmt": (),
        },
    ),
}
"""Name of a tool in `quant_method` -> the fields of its section."""
