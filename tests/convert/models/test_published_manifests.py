"""The tables against names and shapes of the released checkpoints, without their weights."""

import json
from pathlib import Path

import pytest
from edited import copy_edited
from oracle_files import ORACLES
from sparse_checkpoint import write_sparse

from convert.conversion.conversion import Conversion, open_conversion
from convert.models.kimi_k25 import published_kimi_name
from convert.models.targets import FILES
from convert.models.vision import PARTS
from convert.published.exclude import unprefixed
from convert.published.parameters import PublishedParameters
from eagle3_jax.config import DraftConfig, MiniMaxConfig

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
    return conversion


def stored_as(planned: PublishedParameters) -> dict[str, str]:
    return {path: form.weights for path, form in planned.plan.forms.items()}


@pytest.mark.parametrize("name", TARGETS)
def test_every_tensor_of_a_released_target_has_its_place(name: str, tmp_path: Path) -> None:
    planned = opened(name, tmp_path, layers=LAYERS).planned
    assert not planned.plan.dropped
    assert len(planned.plan.sources["layers.1.mlp.experts.gate_proj"]) == 384
    for weight in planned.published.weight_shapes:
        if not weight.startswith(PARTS):
            assert published_kimi_name(unprefixed(weight)) == weight
    for path, kept in stored_as(planned).items():
        module = next(m for m in TARGETS[name] if f".{m}." in f".{path}")
        assert kept == TARGETS[name][module]
    wanted = {m for m in TARGETS[name] for path in stored_as(planned) if f".{m}." in f".{path}"}
    assert wanted == set(TARGETS[name])


@pytest.mark.parametrize("name", DRAFTS)
def test_every_tensor_of_a_released_draft_has_its_place(name: str, tmp_path: Path) -> None:
    planned = opened(name, tmp_path).planned
    assert not planned.plan.dropped
    kept = stored_as(planned)
    assert set(kept.values()) == ({DRAFTS[name]} if DRAFTS[name] else set())
    assert len(kept) in (0, 7)


def test_every_tensor_of_released_minimax_has_its_place(tmp_path: Path) -> None:
    planned = opened("minimax-m2.5", tmp_path, layers=LAYERS).planned
    assert not planned.plan.dropped
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
    """Two decoder layers of a file of four: those behind are MTP's if config.json says so."""
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


def test_the_released_drafts_read_the_targets_default_layers() -> None:
    for name in DRAFTS:
        config = json.loads((ORACLES / "published" / f"{name}.config.json").read_text())
        assert DraftConfig.from_hf(config, num_target_layers=61).aux_layer_ids == (2, 30, 58)
