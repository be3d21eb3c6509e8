"""The widths of Kimi-K2.5 and MiniMax-M2.5 that the planner has written down against the published
config.json files, and the bytes of their abstract models."""

from collections import Counter
from dataclasses import replace

import pytest
from flax import nnx
from published_pairs import published

from eagle3_jax.config import DraftConfig, KimiConfig, MiniMaxConfig
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.programs.compiled import flatten_model
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_tools.plan.data import kimi_k25, minimax_m25
from eagle3_tools.plan.data.kimi_k25 import WeightScheme, abstract_draft, abstract_target


def test_kimi_and_its_draft_are_the_published_ones() -> None:
    config = published("kimi-k2.5", "config")
    assert KimiConfig.from_hf(config) == kimi_k25.TARGET
    assert VisionConfig.from_hf(config) == kimi_k25.VISION
    draft = published("kimi-k2.5-eagle3-fp8", "config")
    found = DraftConfig.from_hf(draft, num_target_layers=61)
    assert replace(found, aux_layer_ids=kimi_k25.DRAFT.aux_layer_ids) == kimi_k25.DRAFT


def test_minimax_and_its_draft_are_the_published_ones() -> None:
    config, own = published("minimax-m2.5", "config"), minimax_m25.DRAFT
    assert MiniMaxConfig.from_hf(config) == minimax_m25.TARGET
    assert minimax_m25.FP8_BLOCKS.items() <= config["quantization_config"].items()
    draft = published("minimax-m2.5-eagle3", "config")
    found = DraftConfig.from_hf(draft, num_target_layers=minimax_m25.TARGET.num_hidden_layers)
    assert replace(found, max_position_embeddings=own.max_position_embeddings) == own


def formats(model: nnx.Module) -> Counter[str]:
    modules = (module for _, module in nnx.iter_modules(model))
    return Counter(m.format.weights for m in modules if isinstance(m, QuantizedKernel))


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        ("mxfp4", {"mxfp4": 3 + 2 * 6}),
        ("int4", {"int4_group": 2 * 3}),
        ("ptpc", {"fp8_channel": 27}),
    ],
)
def test_layers_are_kept_in_the_scheme_s_formats(
    scheme: WeightScheme, wanted: dict[str, int]
) -> None:
    """A dense layer and two with experts; PTPC has four attention matrices in each besides."""
    assert formats(abstract_target(3, scheme)) == wanted


def test_the_draft_keeps_fc_head_and_embedding_as_they_are() -> None:
    assert formats(abstract_draft((1, 2, 3))) == {"fp8_channel": 7}


def test_a_layer_of_mxfp4_has_the_bytes_that_are_published() -> None:
    """Experts have 4.25 bits a value; the rest of a layer is bfloat16."""
    sizes = []
    for layers in (2, 3):
        leaves, _ = flatten_model(abstract_target(layers, "mxfp4"))
        sizes.append(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))
    experts = 385 * 3 * 7168 * 2048
    attention = 7168 * (1536 + 576) + 1536 * 12288 + 512 * 64 * 256 + 8192 * 7168
    norms = 2 * 7168 + 1536 + 512
    router = 384 * (7168 * 2 + 4)
    assert sizes[1] - sizes[0] == experts * 17 // 32 + 2 * (attention + norms) + router
