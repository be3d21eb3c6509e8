"""Read the quantisation of config.json and compare it with the tensors.

The tensors decide how a weight is read. A configuration that contradicts them means that one of the
two is wrong, which is an error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convert.models.rules import Rule
from convert.published.exclude import check_pattern, excluded, matches, unprefixed
from convert.published.weights import Weight
from eagle3_jax.config.fields import Fields
from eagle3_jax.config.published import brief, read_mapping
from pallas_kernels.quantized import ActivationFormat


@dataclass(frozen=True)
class StoredScheme:
    """Storage of the matrices of one pattern; without `activations` the scheme is weight-only."""

    weights: str
    activations: bool


@dataclass(frozen=True)
class QuantizationConfig:
    """The supported part of a quantization_config, whichever tool wrote it.

    `exclude` names modules that are not quantised. `overrides` are pairs of pattern and scheme.
    """

    scheme: StoredScheme
    exclude: tuple[str, ...]
    overrides: tuple[tuple[str, StoredScheme], ...] = ()

    def scheme_of(self, module: str) -> StoredScheme | None:
        """Return the scheme of one linear layer, or None if it is excluded."""
        if excluded(module, self.exclude):
            return None
        named = (scheme for pattern, scheme in self.overrides if matches(pattern, module))
        return next(named, self.scheme)


def read_quantization_config(config: Mapping[str, Any]) -> QuantizationConfig | None:
    """Read `quantization_config`, wherever it is nested; None if there is none.

    Raises ValueError for a tool, format or scheme that no published checkpoint uses.
    """
    if not (given := _section(config)):
        return None
    readers: dict[str, Callable[[Mapping[str, Any]], QuantizationConfig]] = {
        "compressed-tensors": _compressed_tensors,
        "quark": _quark,
        "fp8": _fp8,
        "modelopt": _modelopt,
        "modelopt_fp4": _modelopt,
    }
    method = given.get("quant_method")
    if not isinstance(method, str) or method not in readers:
        raise ValueError(f"quant_method must be one of {tuple(readers)}, got {brief(method)}")
    try:
        read = readers[method](given)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"quantization_config of {method} is damaged: {brief(error)}") from error
    QUANTIZATION_FIELDS[method].require(given)
    return read


def unknown_quantization_fields(config: Mapping[str, Any]) -> list[str]:
    """Return the unknown field names of a `quantization_config`.

    Raises ValueError as `read_quantization_config` does.
    """
    if read_quantization_config(config) is None:
        return []
    given = _section(config)
    known = QUANTIZATION_FIELDS[given["quant_method"]]
    return [f"quantization_config.{name}" for name in known.unknown(given)]


def has_quantization(config: Mapping[str, Any]) -> bool:
    """Return whether config.json has a `quantization_config`."""
    return bool(_section(config))


def _section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `quantization_config`, wherever it is nested; empty if there is none."""
    text = read_mapping(config, "text_config")
    return read_mapping(config, "quantization_config") or read_mapping(text, "quantization_config")


def contradictions(
    config: QuantizationConfig | None, weights: Iterable[Weight], rules: Mapping[str, Rule]
) -> Iterator[str]:
    """Yield an error for every linear layer whose tensors contradict the configuration."""
    if config is None:
        return
    for weight in weights:
        rule = rules.get(weight.name)
        if rule is None or not rule.paths or rule.layout.quantized == "refuse":
            continue
        scheme = config.scheme_of(weight.name.removesuffix(".weight"))
        stored = weight.form.weights if weight.form else None
        expected = scheme.weights if scheme else None
        if expected != stored:
            says, found = expected or "no quantisation", stored or weight.tensor.dtype
            yield f"{weight.name}: config.json says {says}, its tensors are {found}"


def activations_of(config: QuantizationConfig | None, weight: Weight) -> ActivationFormat:
    """Return the activation format that the published scheme uses for this weight."""
    assert weight.form is not None, "plain weights take activations as they are"
    scheme = config.scheme_of(weight.name.removesuffix(".weight")) if config else None
    weight_only = scheme is not None and not scheme.activations
    return "none" if weight_only else weight.form.published_activations


def _compressed_tensors(given: Mapping[str, Any]) -> QuantizationConfig:
    groups, format = list(given["config_groups"].values()), given.get("format")
    if format not in _COMPRESSED_TENSORS or len(groups) != 1:
        raise ValueError(
            f"compressed-tensors must have format {' or '.join(map(repr, _COMPRESSED_TENSORS))} "
            f"and one group, got {brief(format)} and {len(groups)}"
        )
    stored, expected, may_quantise_inputs = _COMPRESSED_TENSORS[format]
    weights, inputs = groups[0]["weights"], groups[0].get("input_activations")
    if inputs is not None and not may_quantise_inputs:
        raise ValueError(f"input_activations of {format} must be null, got {brief(inputs)}")
    wrong = {name: weights.get(name) for name in expected if weights.get(name) != expected[name]}
    if wrong:
        raise ValueError(f"compressed-tensors weights must have {expected}, got {brief(wrong)}")
    return QuantizationConfig(StoredScheme(stored, False), _patterns(given, "ignore"))


def _fp8(given: Mapping[str, Any]) -> QuantizationConfig:
    if (block := given.get("weight_block_size")) != [128, 128]:
        raise ValueError(f"fp8 must have weight_block_size [128, 128], got {brief(block)}")
    return QuantizationConfig(
        StoredScheme("fp8_block", True), _patterns(given, "modules_to_not_convert")
    )


def _modelopt(given: Mapping[str, Any]) -> QuantizationConfig:
    """Read the section of config.json, or that of hf_quant_config.json, which has other names.

    A name holds for all modules inside. Prefixes may differ from those of the tensors, as in
    nvidia/Kimi-K2.5-NVFP4.
    """
    found = given.get("quant_algo"), given.get("group_size") or 16
    if found not in (("NVFP4", 16), ("W4A16_NVFP4", 16)):
        raise ValueError(f"modelopt must have quant_algo NVFP4 in groups of 16, got {brief(found)}")
    given_names = _patterns(given, "ignore") or _patterns(given, "exclude_modules")
    named = tuple(map(unprefixed, given_names))
    inside = tuple(f"{name}.*" for name in named if not name.endswith("*"))
    return QuantizationConfig(StoredScheme("nvfp4", False), (*named, *inside))


def _quark(given: Mapping[str, Any]) -> QuantizationConfig:
    overrides = given.get("layer_quant_config") or {}
    for pattern in overrides:
        check_pattern(pattern)
    return QuantizationConfig(
        _quark_scheme(given["global_quant_config"]),
        _patterns(given, "exclude"),
        tuple((pattern, _quark_scheme(spec)) for pattern, spec in overrides.items()),
    )


def _patterns(given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a checked list of exclude patterns, empty if it is absent or null."""
    patterns = given.get(name) or []
    if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
        raise ValueError(f"{name} must be a list of patterns, got {brief(patterns)}")
    for pattern in patterns:
        check_pattern(pattern)
    return tuple(patterns)


def _quark_scheme(spec: Mapping[str, Any]) -> StoredScheme:
    weight = spec["weight"]
    stages: Sequence[Mapping[str, Any]] = weight if isinstance(weight, list) else [weight]
    kinds = tuple((stage["dtype"], stage["qscheme"]) for stage in stages)
    if kinds not in _QUARK_KINDS:
        raise ValueError(f"Quark's weights must be one of {list(_QUARK_KINDS)}, got {brief(kinds)}")
    weights, activations = _QUARK_KINDS[kinds]
    inputs = spec.get("input_tensors")
    if inputs is not None and (found := inputs.get("dtype", activations or inputs)) != activations:
        raise ValueError(
            f"input_tensors of {weights} must be {activations or 'null'}, got {brief(found)}"
        )
    return StoredScheme(weights, inputs is not None)


_COMPRESSED_TENSORS: dict[str, tuple[str, Mapping[str, Any], bool]] = {
    "nvfp4-pack-quantized": (
        "nvfp4",
        {"num_bits": 4, "type": "float", "group_size": 16, "symmetric": True},
        True,
    ),
    "pack-quantized": (
        "int4_group",
        {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True},
        False,
    ),
}
"""compressed-tensors' format -> our format, the description of weights, and whether inputs may be
quantised, which we leave undone."""
_QUARK_KINDS: dict[tuple[tuple[str, str], ...], tuple[str, str | None]] = {
    (("fp8_e4m3", "per_channel"),): ("fp8_channel", "fp8_e4m3"),
    (("int4", "per_channel"),): ("int4_channel", None),
    (("fp4", "per_group"),): ("mxfp4", "fp4"),
    (("fp8_e4m3", "per_tensor"), ("int4", "per_channel")): ("int4_channel", "fp8_e4m3"),
}
"""dtype and qscheme of the stages of Quark's weights -> our format, and the dtype of inputs."""

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
        "format": ("pack-quantized", "nvfp4-pack-quantized"),
        "output_activations": (),
    },
    read=("input_activations",),
    objects={
        "weights": Fields(
            read=("num_bits", "type", "group_size", "symmetric"),
            only={
                "strategy": ("group", "tensor_group"),
                "dynamic": (False,),
                "actorder": ("static", "weight"),  # columns keep their order
                "block_structure": (),
            },
            ignored=("observer", "observer_kwargs", "scale_dtype", "zp_dtype"),
        )
    },
)
_MODELOPT = Fields(
    read=("quant_method", "quant_algo", "group_size", "ignore", "exclude_modules"),
    # The groups say again what quant_algo says, and a flag chooses the dtype of the KV cache.
    ignored=("config_groups", "kv_cache_scheme", "kv_cache_quant_algo", "producer"),
)
QUANTIZATION_FIELDS: Mapping[str, Fields] = {
    "modelopt": _MODELOPT,
    "modelopt_fp4": _MODELOPT,
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
