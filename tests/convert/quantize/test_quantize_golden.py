"""Files are bit for bit those that AMD Quark and compressed-tensors make of the same source."""

from pathlib import Path

import pytest
from oracle_files import ORACLES
from quantizing import contents, quantized

from convert.files.safetensors_files import open_checkpoint, read_json

DRAFT, KIMI = ORACLES / "quantizer/source", ORACLES / "kimi_bf16"
ONLY_ROUTED = [
    "*lm_head",
    "*self_attn*",
    "*shared_experts*",
    r"re:.*mlp\.(gate|up|down)_proj$",
    "vision_tower.*",
    "mm_projector.*",
]


@pytest.mark.parametrize(
    ("source", "scheme", "exclude", "golden"),
    [
        (DRAFT, "ptpc_fp8", None, "quantizer/ptpc_fp8"),
        (DRAFT, "ptpc_fp8", ["fc", "lm_head"], "quantizer/ptpc_fp8"),
        (DRAFT, "int4", None, "quantizer/int4"),
        (DRAFT, "int4", ["fc", "lm_head"], "quantizer/int4"),
        (KIMI, "mxfp4", ONLY_ROUTED, "kimi_mxfp4_quark"),
    ],
)
def test_files_are_quarks(
    source: Path, scheme: str, exclude: list[str] | None, golden: str, tmp_path: Path
) -> None:
    options = {"exclude": exclude, "exclude_style": "exact"}
    ours = quantized(source, tmp_path / "out", scheme, **options)
    assert contents(ours) == contents(open_checkpoint(ORACLES / golden))
    described = read_json(tmp_path / "out/config.json")["quantization_config"]
    assert described == read_json(ORACLES / golden / "config.json")["quantization_config"]


def test_groups_of_32_are_compressed_tensors(tmp_path: Path) -> None:
    golden = ORACLES / "kimi_int4_ct"
    ours = quantized(KIMI, tmp_path / "out", "int4", 32)
    assert contents(ours) == contents(open_checkpoint(golden))
    config, expected = read_json(tmp_path / "out/config.json"), read_json(golden / "config.json")
    for described, theirs in ((config, expected), (config["text_config"], expected["text_config"])):
        ignored = described["quantization_config"].pop("ignore")
        assert ignored[0] == "re:.*lm_head.*"
        assert set(theirs["quantization_config"].pop("ignore")[1:]) < set(ignored)
        assert described["quantization_config"] == theirs["quantization_config"]


def test_published_recipes_of_kimi_are_the_default(tmp_path: Path) -> None:
    ours = quantized(KIMI, tmp_path / "out", "mxfp4")
    layer = "language_model.model.layers.{}.mlp."
    for name in ("shared_experts.up_proj", "experts.5.down_proj"):
        assert ours.tensors[layer.format(1) + name + ".weight"].dtype == "U8"
    assert ours.tensors[layer.format(0) + "down_proj.weight"].dtype == "U8"
    kept = [name for name, info in ours.tensors.items() if info.dtype == "BF16"]
    assert layer.format(1) + "gate.weight" in kept
    assert not [name for name in kept if "expert" in name or "mlp.up_proj" in name]


@pytest.mark.parametrize("source", [DRAFT, KIMI])
def test_transformers_keeps_the_modules_that_fp8_blocks_names(source: Path, tmp_path: Path) -> None:
    from transformers.quantizers.quantizers_utils import should_convert_module

    ours = quantized(source, tmp_path / "out", "fp8_block")
    described = read_json(tmp_path / "out/config.json")["quantization_config"]
    for name, info in ours.tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight" and len(info.shape) == 2 and "embed" not in name:
            convert = should_convert_module(module, described["modules_to_not_convert"])
            assert convert == (info.dtype == "F8_E4M3"), module
