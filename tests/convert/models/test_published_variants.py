"""Kimi-K2.6, K2.7-Code, MiniMax-M2.7 and their drafts; and their relatives that are refused."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from edited import copy_edited
from oracle_files import ORACLES
from sparse_checkpoint import VARIANTS, read_published, write_sparse
from sweeps import sweep

from convert import load_draft, load_target
from convert.conversion.cli import main as convert
from convert.conversion.conversion import open_conversion
from convert.published.directory import unknown_fields
from convert.published.quantization_config import read_quantization_config
from convert.quantize.cli import main as quantize
from eagle3_jax.config import DraftConfig, read_target_config
from eagle3_jax.config.draft_layouts import is_draft
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.target import Target
from eagle3_tools.plan.cli import main as plan
from eagle3_tools.plan.from_config import draft_from_config, target_from_config
from pallas_kernels import QuantFormat

REFUSED = [name for name, variant in VARIANTS.items() if "refused" in variant]
LOADED = [name for name in VARIANTS if name not in REFUSED]
DRAFTS = [name for name in LOADED if "eagle3" in name]
TARGETS = [name for name in LOADED if name not in DRAFTS]
FP8 = ("fp8_channel", "fp8_token")


def config_of(name: str) -> dict[str, Any]:
    return read_published(name, "config")


@pytest.mark.parametrize("name", LOADED)
def test_every_field_is_read_or_neutral(name: str) -> None:
    assert unknown_fields(config_of(name)) == []


@pytest.mark.parametrize("name", ["kimi-k2.6", "kimi-k2.7-code"])
def test_the_newer_kimis_differ_in_the_id_that_ends_an_answer(name: str) -> None:
    newer, older = (read_target_config(config_of(one)) for one in (name, "kimi-k2.5"))
    assert (newer.eos_token_ids, older.eos_token_ids) == ((163586,), (163585,))
    assert {k: v for k, v in vars(newer).items() if k != "eos_token_ids"} == {
        k: v for k, v in vars(older).items() if k != "eos_token_ids"
    }


def test_drafts_of_the_newer_kimis() -> None:
    read = {name: DraftConfig.from_hf(config_of(name), num_target_layers=61) for name in DRAFTS}
    newest = read["kimi-k2.6-eagle3.1-mla"]
    assert newest.fc_norm and newest.norm_output and newest.latent
    assert {config.aux_layer_ids for config in read.values()} == {(2, 30, 58)}
    assert read["kimi-k2.6-eagle3"].latent is None


@pytest.mark.parametrize("name", sweep(TARGETS, ["kimi-k2.6-mxfp4"]))
def test_every_tensor_of_a_target_has_its_place(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its tensors, by config.json alone, and to eagle3-convert and eagle3-plan."""
    write_sparse(name, tmp_path / name, shards=2, layers=2)
    config = json.loads((tmp_path / name / "config.json").read_text(encoding="utf-8"))
    planned = open_conversion(tmp_path / name).planned
    assert set(planned.plan.sources) == set(planned.shapes) and not planned.plan.dropped
    kernels = target_from_config(config, jnp.bfloat16).layers[1].self_attn.o_proj.kernel
    if "mxfp4" in name:
        attention = {p: f for p, f in planned.formats.items() if ".self_attn." in p}
        assert len(attention) == 8 and set(attention.values()) == {QuantFormat(*FP8)}
        assert isinstance(kernels, QuantizedKernel) and kernels.format == QuantFormat(*FP8)
    assert convert([str(tmp_path / name), "--dry-run"]) == 0
    argv = ["--model", str(tmp_path / name), "-tp", "4", "--concurrency", "4"]
    assert plan([*argv, "--gpu", "MI355X", "--isl", "64", "--osl", "64"]) == 0
    assert "ignored fields" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "pattern",
    ["*self_attn*", "model.layers.*.self_attn.*", "re:.*self_attn.*", "layers.1.self_attn.o_proj"],
)
def test_a_layers_scheme_is_found_by_any_spelling_of_its_name(pattern: str) -> None:
    config = config_of("kimi-k2.6-mxfp4")
    (scheme,) = config["quantization_config"]["layer_quant_config"].values()
    config["quantization_config"]["layer_quant_config"] = {pattern: scheme}
    read = read_quantization_config(config)
    assert read is not None
    layer = "language_model.model.layers.1."
    found = [read.scheme_of(layer + n) for n in ("self_attn.o_proj", "mlp.up_proj", "mlp.gate")]
    assert [one and one.weights for one in found] == ["fp8_channel", "mxfp4", None]


@pytest.mark.parametrize("name", [n for n in DRAFTS if VARIANTS[n]["base"].endswith("-mla")])
def test_every_tensor_of_a_draft_has_its_place(name: str, tmp_path: Path) -> None:
    write_sparse(name, tmp_path / name, shards=1)
    planned = open_conversion(tmp_path / name).planned
    assert set(planned.plan.sources) == set(planned.shapes) and not planned.plan.dropped
    assert planned.shapes.keys() >= ({"fc_norm.2.weight"} if "3.1" in name else set())
    draft_from_config(config_of(name), jnp.bfloat16, num_target_layers=61)
    assert convert([str(tmp_path / name), "--dry-run"]) == 0
    argv = [str(tmp_path / name), str(tmp_path / "made"), "--scheme", "ptpc_fp8"]
    assert quantize([*argv, "--dry-run"]) == 0


@pytest.mark.parametrize("name", REFUSED)
def test_relatives_are_refused_with_one_line_that_says_why(
    name: str, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a tensor is looked at, whatever their quantisation is."""
    config, why = config_of(name), VARIANTS[name]["refused"]
    source = ORACLES / "draft_mla_bf16" if is_draft(config) else ORACLES / "kimi_bf16"
    edited = copy_edited(source, tmp_path / name, config=lambda _: config)
    with pytest.raises(ValueError, match=why) as raised:
        load_draft(edited, target) if is_draft(config) else load_target(edited)
    assert str(edited / "config.json") in str(raised.value)
    role = ["--draft"] if is_draft(config) else []
    model = ["--model", str(ORACLES / "kimi_bf16" if role else edited)]
    commands = {
        convert: [str(edited), "--dry-run"],
        plan: [*model, *role, *([str(edited)] if role else []), "--isl", "64", "--osl", "64"],
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
    config = config_of("kimi-k2.5-eagle3") | fields
    with pytest.raises(
        ValueError, match=f"this draft was made for {model}, which is not supported"
    ):
        DraftConfig.from_hf(config, num_target_layers=61)
