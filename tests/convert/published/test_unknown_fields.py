"""Published configurations have no field that is ignored in silence."""

import json
from pathlib import Path
from typing import Any

import pytest
from edited import copy_edited, put
from oracle_files import ORACLES
from sparse_checkpoint import PUBLISHED, VARIANTS, read_published

from convert import load_draft, load_target
from convert.conversion.cli import main
from convert.published.directory import unknown_fields
from convert.published.quantization_config import read_quantization_config
from eagle3_jax.config import DraftConfig, read_target_config
from eagle3_jax.config.draft_layouts import is_draft
from eagle3_jax.models.target import Target
from eagle3_tools.plan.cli import main as plan

FILES = [*sorted(PUBLISHED.glob("*.config.json")), *sorted(ORACLES.rglob("*/config.json"))]
EVERY = {str(file.relative_to(ORACLES)): json.loads(file.read_text("utf-8")) for file in FILES}
EVERY |= {n: read_published(n, "config") for n, v in VARIANTS.items() if "refused" not in v}
NEVER_NULL = ("quant_method", "config_groups", "format", "strategy", "symmetric", "dtype")
INT4, QUARK = ORACLES / "kimi_int4_ct", ORACLES / "draft_mha_fp8_ptpc"


@pytest.mark.parametrize("name", EVERY)
def test_every_field_of_a_published_file_is_read_or_neutral(name: str) -> None:
    config = EVERY[name]
    if is_draft(config):
        DraftConfig.from_hf(config, num_target_layers=61)
    else:
        read_target_config(config)
    read_quantization_config(config)
    assert unknown_fields(config) == []


def with_strange_fields(config: dict[str, Any]) -> dict[str, Any]:
    inner = next(iter(config.keys() & {"text_config", "eagle_config"}))
    section = config["quantization_config"]
    return config | {
        "strange": 1,
        inner: config[inner] | {"stranger": "x" * 1000},
        "quantization_config": section | {"strangest": [1]},
    }


def test_unknown_fields_are_one_line_for_each_file(
    target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for source, load in ((INT4, load_target), (QUARK, lambda path: load_draft(path, target))):
        load(copy_edited(source, tmp_path / source.name, config=with_strange_fields))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2 and not any("\n" in line or len(line) > 1000 for line in messages)
    for source, line in zip((INT4, QUARK), messages, strict=True):
        assert line.startswith(f"{tmp_path / source.name / 'config.json'}: ignored fields")
        for name in ("'strange'", "_config.stranger'", "'quantization_config.strangest'"):
            assert name in line


def test_commands_say_which_fields_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """And a converted directory, whose config.json is a copy, is read as its source is."""
    edited = copy_edited(QUARK, tmp_path / "draft", config=with_strange_fields)
    assert main([str(edited), str(tmp_path / "made")]) == 0
    shown = capsys.readouterr().err
    assert "ignored fields that this version does not know" in shown and "'strange'" in shown
    files = ["--model", str(ORACLES / "kimi_bf16"), "--draft", str(tmp_path / "made")]
    caplog.clear()
    assert plan([*files, "--isl", "64", "--osl", "64"]) == 0
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith(f"{tmp_path / 'made' / 'config.json'}: ignored fields")


@pytest.mark.parametrize(
    ("source", "place", "value", "message"),
    [
        *((INT4, ("quant_method",), m, "quant_method must be") for m in ("gptq", None, ["fp8"])),
        (INT4, ("config_groups",), {}, "one group, got 'pack-quantized' and 0"),
        (INT4, ("config_groups",), None, "quantization_config of compressed-tensors is damaged"),
        (INT4, ("format",), "marlin", "'pack-quantized' and one group, got 'marlin'"),
        (INT4, ("kv_cache_scheme",), {"num_bits": 8}, "kv_cache_scheme must be null"),
        (INT4, ("transform_config",), {"config_groups": 1}, "transform_config must be {}"),
        (INT4, ("config_groups", "group_0", "input_activations"), {"num_bits": 8}, "input_activ"),
        (INT4, ("config_groups", "group_0", "weights", "actorder"), "group", "actorder must be"),
        (INT4, ("config_groups", "group_0", "weights", "strategy"), "channel", "strategy must be"),
        (QUARK, ("layer_type_quant_config",), {"Linear": {}}, "layer_type_quant_config must be"),
        (QUARK, ("kv_cache_quant_config",), {"*k_proj": {}}, "kv_cache_quant_config must be"),
        (QUARK, ("softmax_quant_spec",), {"dtype": "fp8_e4m3"}, "softmax_quant_spec must be"),
        (QUARK, ("global_quant_config", "output_tensors"), {"dtype": "fp8"}, "output_tensors"),
        (QUARK, ("global_quant_config", "weight", "symmetric"), False, "symmetric must be True"),
        (QUARK, ("global_quant_config", "input_tensors", "is_dynamic"), False, "is_dynamic must"),
        (QUARK, ("global_quant_config", "input_tensors", "dtype"), "int8", "input_tensors of fp8"),
    ],
)
def test_quantisation_that_changes_the_arithmetic_is_refused(
    source: Path, place: tuple[str, ...], value: Any, message: str
) -> None:
    section = json.loads((source / "config.json").read_text("utf-8"))["quantization_config"]
    with pytest.raises(ValueError, match=message):
        read_quantization_config({"quantization_config": put(section, place, value)})
    if place[-1] not in NEVER_NULL:
        read_quantization_config({"quantization_config": put(section, place, None)})
