"""Build the abstract models of a published pair from config.json, without reading tensor headers.

config.json decides which linear layers stay quantised. `convert.published.parameters` decides by
the tensors instead, and compares the result with config.json.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jax.typing import DTypeLike

from convert.fill import shapes_of
from convert.models.eagle3 import draft_rules
from convert.models.rules import Rule, filled
from convert.models.targets import target_files
from convert.published.forms import FORMS
from convert.published.parameters import abstract_draft, abstract_target
from convert.published.quantization_config import read_quantization_config
from eagle3_jax.config import DraftConfig, read_target_config
from eagle3_jax.layers.quantized import quantize_structure
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels import QuantFormat
from pallas_kernels.quantized import ActivationFormat

_ACTIVATIONS: dict[str, ActivationFormat] = {
    form.weights: form.published_activations for form in FORMS
}
"""Activation format of each weight format, for schemes that quantise activations."""
MOST_LAYERS = 1000
"""Limit on layers: a damaged number would build layers for hours, without tensors to contradict
it."""


def target_from_config(config: Mapping[str, Any], dtype: DTypeLike) -> Target:
    """Build the abstract target that a published config.json describes, as it would lie in memory.

    Raises ValueError for another architecture or an unknown quantisation.
    """
    read = read_target_config(config)
    if read.num_hidden_layers > MOST_LAYERS:
        raise ValueError(
            f"num_hidden_layers must be at most {MOST_LAYERS}, got {read.num_hidden_layers}"
        )
    model = abstract_target(read, dtype)
    files = target_files(read)
    _quantize(model, config, files.rules(read), files.published_name)
    return model


def draft_from_config(
    config: Mapping[str, Any], dtype: DTypeLike, *, num_target_layers: int
) -> Eagle3Draft:
    """Build the abstract draft that config.json describes, with its own embedding and head."""
    read = DraftConfig.from_hf(config, num_target_layers=num_target_layers)
    model = abstract_draft(read, dtype)
    _quantize(model, config, draft_rules(read), str)
    return model


def _quantize(
    model: Target | Eagle3Draft,
    config: Mapping[str, Any],
    rules: Iterable[Rule],
    published_name: Callable[[str], str],
) -> None:
    quantization = read_quantization_config(config)
    if quantization is None:
        return
    kept: dict[str, QuantFormat] = {}
    for rule, path, numbers in filled(rules, shapes_of(model)):
        if rule.layout.quantized == "keep":
            # One expert stands for its stack: all experts of a stack have the same form.
            name = published_name(rule.name.format(**numbers, expert=0))
            if (scheme := quantization.scheme_of(name.removesuffix(".weight"))) is not None:
                activations = _ACTIVATIONS[scheme.weights] if scheme.activations else "none"
                kept[path] = QuantFormat(scheme.weights, activations)
    quantize_structure(model, kept)
