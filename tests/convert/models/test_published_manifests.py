"""The tables against names and shapes of the released checkpoints, without their weights."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from edited import copy_edited
from flax import nnx
from oracle_files import ORACLES
from sparse_checkpoint import read_published, write_sparse

from convert.conversion.conversion import Conversion, open_conversion
from convert.models.kimi_k25 import published_kimi_name
from convert.models.targets import FILES
from convert.models.vision import PARTS
from convert.published.exclude import unprefixed
from convert.published.parameters import PublishedParameters
from eagle3_jax.config import DraftConfig, MiniMaxConfig
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_tools.plan.from_config import draft_from_config, target_from_config
from pallas_kernels import QuantFormat

LAYERS = 2
"""One dense and one expert layer; the other 59 repeat the second."""
TARGETS = {
    "kimi-k2.5": {"experts": "int4_group"},
    "kimi-k2.5-mxfp4": {
        "experts": "mxfp4",
        "shared_experts": "mxfp4",
        "layers.0.mlp": "mxfp4",
    },
    "kimi-k2.5-w4a8": {"experts": "int4_channel"},
}
DRAFTS = {
    "kimi-k2.5-eagle3": None,
    "kimi-k2.5-eagle3-fp8": "fp8_channel",
    "eagle3-kimik2.5-w4a8": "int4_channel",
    "kimi-k2.5-eagle3-mla": None,
}


def opened(name: str, directory: Path, layers: int | None = None) -> Conversion:
    write_sparse(name, directory / name, shards=2, layers=layers)
    conversion = open_conversion(directory / name)
    assert set(conversion.planned.plan.sources) == set(conversion.planned.shapes)
    assert not conversion.planned.plan.dropped
    return conversion


def stored_as(planned: PublishedParameters) -> dict[str, str]:
    return {path: form.weights for path, form in planned.plan.forms.items()}


def formats(model: nnx.Module) -> dict[str, QuantFormat]:
    return {
        ".".join(map(str, path)): module.format
        for path, module in nnx.iter_modules(model)
        if isinstance(module, QuantizedKernel)
    }


@pytest.mark.parametrize("name", TARGETS)
def test_every_tensor_of_a_released_target_has_its_place(name: str, tmp_path: Path) -> None:
    """The model made of config.json alone has the same kernels quantised."""
    planned = opened(name, tmp_path, layers=LAYERS).planned
    assert len(planned.plan.sources["layers.1.mlp.experts.gate_proj"]) == 384
    for weight in planned.published.weight_shapes:
        if not weight.startswith(PARTS):
            assert published_kimi_name(unprefixed(weight)) == weight
    for path, kept in stored_as(planned).items():
        module = next(m for m in TARGETS[name] if f".{m}." in f".{path}")
        assert kept == TARGETS[name][module]
    wanted = {m for m in TARGETS[name] for path in stored_as(planned) if f".{m}." in f".{path}"}
    assert wanted == set(TARGETS[name])
    config = json.loads((tmp_path / name / "config.json").read_text())
    assert formats(target_from_config(config, jnp.bfloat16)) == dict(planned.formats)


@pytest.mark.parametrize("name", DRAFTS)
def test_every_tensor_of_a_released_draft_has_its_place(name: str, tmp_path: Path) -> None:
    planned = opened(name, tmp_path).planned
    kept = stored_as(planned)
    assert set(kept.values()) == ({DRAFTS[name]} if DRAFTS[name] else set())
    assert len(kept) in (0, 7)
    config = read_published(name, "config")
    made = draft_from_config(config, jnp.bfloat16, num_target_layers=61)
    assert formats(made) == dict(planned.formats)


def test_every_tensor_of_released_minimax_has_its_place(tmp_path: Path) -> None:
    planned = opened("minimax-m2.5", tmp_path, layers=LAYERS).planned
    assert len(planned.plan.sources["layers.1.mlp.experts.gate_proj"]) == 256
    assert planned.shapes["layers.1.self_attn.q_norm.weight"] == (6144,)
    files = FILES[MiniMaxConfig]
    for weight in planned.published.weight_shapes:
        assert files.published_name(files.canonical_name(weight)) == weight
    kept = stored_as(planned)
    assert set(kept.values()) == {"fp8_block"}
    floats = {path.rpartition(".")[0] for path in planned.shapes if path not in kept}
    assert {"layers.1.mlp.gate", "lm_head", "embed_tokens"} <= floats
    assert not any("proj" in path for path in floats)


def test_layers_of_multi_token_prediction_are_left_out_with_a_reason(tmp_path: Path) -> None:
    """Two decoder layers of a file of four: the others are MTP's if config.json says so."""
    source = ORACLES / "minimax_bf16"
    sizes = {"num_hidden_layers": 2, "mtp_transformer_layers": 1}
    two, one = (lambda config, n=n: config | sizes | {"num_mtp_modules": n} for n in (2, 1))
    directory = copy_edited(source, tmp_path / "two", config=two)
    dropped = open_conversion(directory).planned.plan.dropped
    assert {name.split(".")[2] for name in dropped} == {"2", "3"}
    assert all("multi-token prediction" in why for why in dropped.values())
    directory = copy_edited(source, tmp_path / "one", config=one)
    with pytest.raises(ValueError, match=r"layers\.3\..*: the model has no parameter"):
        open_conversion(directory)


def draft_config(name: str) -> DraftConfig:
    config: Any = read_published(name, "config")
    return DraftConfig.from_hf(config, num_target_layers=61)


@pytest.mark.parametrize("name", [*DRAFTS, "kimi-k2.5-eagle3-mla.native-ids"])
def test_the_released_drafts_read_the_targets_default_layers(name: str) -> None:
    assert draft_config(name).aux_layer_ids == (2, 30, 58)


def test_the_example_of_speculators_is_the_published_draft_with_fewer_ids() -> None:
    """Its vocabulary is smaller, its residual is normed; everything else is the same."""
    config, plain = map(draft_config, ("speculators-eagle3.example", "kimi-k2.5-eagle3"))
    assert (config.draft_vocab_size, config.norm_before_residual) == (32000, True)
    same = ("hidden_size", "num_key_value_heads", "head_dim", "rope", "aux_layer_ids", "latent")
    for name in same:
        assert getattr(config, name) == getattr(plain, name), name


def test_a_damaged_number_of_layers_is_refused_before_any_is_built() -> None:
    config = read_published("kimi-k2.5", "config")
    config["text_config"]["num_hidden_layers"] = 10**9
    with pytest.raises(ValueError, match="num_hidden_layers must be at most 1000, got 1000000000"):
        target_from_config(config, jnp.bfloat16)
