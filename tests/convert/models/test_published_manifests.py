"""The tables against names and shapes of released checkpoints, without their weights; and their
relatives that are refused."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from edited import copy_edited
from flax import nnx
from oracle_files import ORACLES
from sparse_checkpoint import VARIANTS, read_published, write_sparse
from sweeps import sweep

from convert import load_draft, load_target
from convert.conversion.cli import main as convert
from convert.conversion.conversion import open_conversion
from convert.models.targets import target_files
from convert.models.vision import PARTS
from convert.published.parameters import PublishedParameters
from convert.published.quantization_config import read_quantization_config
from convert.quantize.cli import main as quantize
from eagle3_jax.config import DraftConfig, read_target_config
from eagle3_jax.config.draft_layouts import is_draft
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.target import Target
from eagle3_tools.plan.cli import main as plan
from eagle3_tools.plan.from_config import draft_from_config, target_from_config
from pallas_kernels import QuantFormat

LAYERS = 2
"""One dense and one expert layer; the other 59 repeat the second."""
MXFP4 = {"experts": "mxfp4", "shared_experts": "mxfp4", "layers.0.mlp": "mxfp4"}
STORED: dict[str, dict[str, str]] = {
    "kimi-k2.5": {"experts": "int4_group"},
    "kimi-k2.5-mxfp4": MXFP4,
    "kimi-k2.6-mxfp4": MXFP4 | {"self_attn": "fp8_channel"},
    "kimi-k2.5-w4a8": {"experts": "int4_channel"},
    "minimax-m2.5": {"experts": "fp8_block", "self_attn": "fp8_block"},
}
"""Targets, and the formats of their quantised modules."""
REFUSED = [name for name, variant in VARIANTS.items() if "refused" in variant]
NEWER = [name for name in VARIANTS if name not in REFUSED and name not in STORED]
DRAFTS: dict[str, str | None] = {
    "kimi-k2.5-eagle3": None,
    "kimi-k2.5-eagle3-fp8": "fp8_channel",
    "eagle3-kimik2.5-w4a8": "int4_channel",
    "kimi-k2.5-eagle3-mla": None,
    **{name: None for name in NEWER if f"{VARIANTS[name]['base']}".endswith("-mla")},
}
"""Drafts, and the format of all their quantised modules."""


def opened(name: str, directory: Path, layers: int | None = None) -> PublishedParameters:
    """The plan, in which every tensor has its place."""
    write_sparse(name, directory / name, shards=2, layers=layers)
    planned = open_conversion(directory / name).planned
    assert set(planned.plan.sources) == set(planned.shapes) and not planned.plan.dropped
    return planned


def formats(model: nnx.Module) -> dict[str, QuantFormat]:
    return {
        ".".join(map(str, path)): module.format
        for path, module in nnx.iter_modules(model)
        if isinstance(module, QuantizedKernel)
    }


@pytest.mark.parametrize(
    "name", [*STORED, *sweep([name for name in NEWER if "eagle3" not in name], [])]
)
def test_every_tensor_of_a_target_has_its_place(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its tensors, by config.json alone, and to eagle3-convert and eagle3-plan."""
    planned = opened(name, tmp_path, layers=LAYERS)
    config = json.loads((tmp_path / name / "config.json").read_text(encoding="utf-8"))
    made = target_from_config(config, jnp.bfloat16)
    assert formats(made) == dict(planned.formats)
    files = target_files(made.config)
    for weight in planned.published.weight_shapes:
        if not weight.startswith(PARTS):
            assert files.published_name(files.canonical_name(weight)) == weight
    if modules := STORED.get(name):
        found = {
            next(module for module in modules if f".{module}." in f".{path}."): form.weights
            for path, form in planned.plan.forms.items()
        }
        assert found == modules
    assert convert([str(tmp_path / name), "--dry-run"]) == 0
    argv = ["--model", str(tmp_path / name), "-tp", "4", "--concurrency", "4"]
    assert plan([*argv, "--gpu", "MI355X", "--isl", "64", "--osl", "64"]) == 0
    assert "ignored fields" not in capsys.readouterr().err


@pytest.mark.parametrize("name", DRAFTS)
def test_every_tensor_of_a_draft_has_its_place(name: str, tmp_path: Path) -> None:
    planned = opened(name, tmp_path)
    kept = {form.weights for form in planned.plan.forms.values()}
    assert kept == ({DRAFTS[name]} if DRAFTS[name] else set())
    assert len(planned.plan.forms) in (0, 7)
    made = draft_from_config(read_published(name, "config"), jnp.bfloat16, num_target_layers=61)
    assert formats(made) == dict(planned.formats)
    assert convert([str(tmp_path / name), "--dry-run"]) == 0
    if not kept:
        argv = [str(tmp_path / name), str(tmp_path / "made"), "--scheme", "ptpc_fp8"]
        assert quantize([*argv, "--dry-run"]) == 0


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


@pytest.mark.parametrize("name", [*DRAFTS, "kimi-k2.6-eagle3", "kimi-k2.5-eagle3-mla.native-ids"])
def test_the_released_drafts_read_the_targets_default_layers(name: str) -> None:
    config = draft_config(name)
    assert config.aux_layer_ids == (2, 30, 58)
    assert (config.latent is not None) == ("mla" in name or "nvidia" in name)
    assert config.fc_norm == config.norm_output == ("3.1" in name)


def test_the_example_of_speculators_is_the_published_draft_with_fewer_ids() -> None:
    """Its vocabulary is smaller, its residual is normed; everything else is the same."""
    config, plain = map(draft_config, ("speculators-eagle3.example", "kimi-k2.5-eagle3"))
    assert (config.draft_vocab_size, config.norm_before_residual) == (32000, True)
    same = ("hidden_size", "num_key_value_heads", "head_dim", "rope", "aux_layer_ids", "latent")
    for name in same:
        assert getattr(config, name) == getattr(plain, name), name


@pytest.mark.parametrize("name", ["kimi-k2.6", "kimi-k2.7-code"])
def test_the_newer_kimis_differ_in_the_id_that_ends_an_answer(name: str) -> None:
    newer, older = (
        vars(read_target_config(read_published(one, "config"))) for one in (name, "kimi-k2.5")
    )
    assert older["eos_token_ids"] == (163585,)
    assert newer == older | {"eos_token_ids": (163586,)}


@pytest.mark.parametrize(
    "pattern",
    ["*self_attn*", "model.layers.*.self_attn.*", "re:.*self_attn.*", "layers.1.self_attn.o_proj"],
)
def test_a_layers_scheme_is_found_by_any_spelling_of_its_name(pattern: str) -> None:
    config = read_published("kimi-k2.6-mxfp4", "config")
    (scheme,) = config["quantization_config"]["layer_quant_config"].values()
    config["quantization_config"]["layer_quant_config"] = {pattern: scheme}
    read = read_quantization_config(config)
    assert read is not None
    layer = "language_model.model.layers.1."
    found = [read.scheme_of(layer + n) for n in ("self_attn.o_proj", "mlp.up_proj", "mlp.gate")]
    assert [one and one.weights for one in found] == ["fp8_channel", "mxfp4", None]


def test_a_damaged_number_of_layers_is_refused_before_any_is_built() -> None:
    config = read_published("kimi-k2.5", "config")
    config["text_config"]["num_hidden_layers"] = 10**9
    with pytest.raises(ValueError, match="num_hidden_layers must be at most 1000, got 1000000000"):
        target_from_config(config, jnp.bfloat16)


@pytest.mark.parametrize("name", REFUSED)
def test_relatives_are_refused_with_one_line_that_says_why(
    name: str, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a tensor is looked at, whatever their quantisation is."""
    config, why = read_published(name, "config"), VARIANTS[name]["refused"]
    source = ORACLES / "draft_mla_bf16" if is_draft(config) else ORACLES / "kimi_bf16"
    edited = copy_edited(source, tmp_path / name, config=lambda _: config)
    with pytest.raises(ValueError, match=why) as raised:
        load_draft(edited, target) if is_draft(config) else load_target(edited)
    assert str(edited / "config.json") in str(raised.value)
    models = ["--model", str(edited)]
    if is_draft(config):
        models = ["--model", str(ORACLES / "kimi_bf16"), "--draft", str(edited)]
    commands = {
        convert: [str(edited), "--dry-run"],
        plan: [*models, "--isl", "64", "--osl", "64"],
    }
    for command, argv in commands.items():
        assert command(argv) == 2
        err = capsys.readouterr().err
        assert why in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"model_type": "kimi_linear"}, "Kimi-Linear"),
        ({"architectures": ["KimiK3Eagle3ForCausalLM"], "draft_vocab_size": 9}, "Kimi-K3"),
        ({"speculators_config": {"verifier": {"architectures": ["KimiK3Model"]}}}, "Kimi-K3"),
    ],
)
def test_drafts_for_them_are_refused(fields: dict[str, Any], model: str) -> None:
    config = read_published("kimi-k2.5-eagle3", "config") | fields
    with pytest.raises(
        ValueError, match=f"this draft was made for {model}, which is not supported"
    ):
        DraftConfig.from_hf(config, num_target_layers=61)
