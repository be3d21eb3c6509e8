"""The output directory appears complete or not at all, whatever goes wrong on the way."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited import Tensors, copy_edited
from oracle_files import ORACLES
from quantizing import contents, quantized, weights
from safetensors_writing import write_safetensors

from convert.files import box
from convert.files.safetensors_files import open_checkpoint, read_json
from convert.quantize.run import prepare, write
from convert.quantize.schemes import scheme_of

DRAFT, KIMI = ORACLES / "quantizer/source", ORACLES / "kimi_bf16"
QUERY = "midlayer.self_attn.q_proj.weight"
FP8 = scheme_of("ptpc_fp8")


def one_matrix(directory: Path, rows: int, columns: int) -> Path:
    directory.mkdir()
    tensors = {
        "a.weight": weights(rows, columns, np.float16),
        "embed.weight": np.ones((rows, 64), np.float32),
    }
    write_safetensors(directory / "model.safetensors", tensors)
    (directory / "config.json").write_text("{}", encoding="utf-8")
    return directory


def test_shards_and_index_follow_the_source(tmp_path: Path) -> None:
    quantized(KIMI, tmp_path / "out", "mxfp4")
    index = read_json(tmp_path / "out/model.safetensors.index.json")
    theirs = read_json(KIMI / "model.safetensors.index.json")["weight_map"]
    assert {index["weight_map"][name] for name in theirs} == set(theirs.values())
    assert all(index["weight_map"][name] == file for name, file in theirs.items())
    tensors = open_checkpoint(tmp_path / "out").tensors.values()
    assert index["metadata"]["total_size"] == sum(info.nbytes for info in tensors)


def test_safetensors_itself_reads_the_files_and_finds_them_aligned(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    source = one_matrix(tmp_path / "source", 301, 32)
    ours = quantized(source, tmp_path / "out", "mxfp4")
    theirs = load_file(tmp_path / "out/model.safetensors")
    assert {name: array.tobytes() for name, array in theirs.items()} == {
        name: ours.read(name).tobytes() for name in ours.tensors
    }
    for name, info in ours.tensors.items():
        assert info.start % theirs[name].itemsize == 0, name


def test_small_files_travel_and_other_weights_do_not(tmp_path: Path) -> None:
    source = copy_edited(DRAFT, tmp_path / "source")
    for name in ("tiktoken.model", "generation_config.json", "modeling.py", "pytorch_model.bin"):
        (source / name).write_text(name, encoding="utf-8")
    (source / "linked.jinja").symlink_to(source / "modeling.py")
    quantized(source, tmp_path / "out", "ptpc_fp8")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "model.safetensors",
        "config.json",
        "tiktoken.model",
        "generation_config.json",
        "modeling.py",
        "linked.jinja",
    }
    assert not (tmp_path / "out/linked.jinja").is_symlink()


def test_everything_else_in_config_json_stays(tmp_path: Path) -> None:
    quantized(DRAFT, tmp_path / "out", "ptpc_fp8")
    config = json.loads((tmp_path / "out/config.json").read_text(encoding="utf-8"))
    del config["quantization_config"]
    original = (DRAFT / "config.json").read_text(encoding="utf-8")
    assert list(config.items()) == list(json.loads(original).items())


@pytest.mark.parametrize("scheme", ["ptpc_fp8", "int4", "mxfp4", "fp8_block"])
def test_the_slab_size_changes_no_bit(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = one_matrix(tmp_path / "source", 300, 96)
    whole = contents(quantized(source, tmp_path / "whole", scheme))
    monkeypatch.setattr(box, "SLAB_ELEMENTS", 1 << 9)
    assert contents(quantized(source, tmp_path / "slabs", scheme)) == whole


def test_memory_does_not_grow_with_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = one_matrix(tmp_path / "source", 16384, 256)
    monkeypatch.setattr(box, "SLAB_ELEMENTS", 1 << 14)
    job = prepare(source, tmp_path / "out", FP8)
    tracemalloc.start()
    write(job)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20 < job.plan.bytes_read // 8


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_named(value: float, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> Tensors:
        spoiled = tensors[QUERY].copy()
        spoiled[3, 5] = value
        return {**tensors, QUERY: spoiled}

    source = copy_edited(DRAFT, tmp_path / "source", tensors=spoil)
    with pytest.raises(ValueError, match=rf"q_proj.weight .* holds {value} at \[3, 5\]"):
        quantized(source, tmp_path / "out", "ptpc_fp8")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_existing_directory_is_refused_unless_empty(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    quantized(DRAFT, out, "ptpc_fp8")
    with pytest.raises(FileExistsError, match="is not empty"):
        prepare(DRAFT, out, FP8)
    with pytest.raises(FileExistsError, match="is no directory"):
        prepare(DRAFT, out / "config.json", FP8)


@pytest.mark.parametrize(
    ("fields", "exclude", "message"),
    [
        ({"quantization_config": {}}, None, "a quantization_config, but no weight is quantised"),
        ({"text_config": {"quantization_config": {}}}, None, "quantization_config, but no weight"),
        ({"text_config": []}, None, "text_config must be an object, got list"),
        ({}, ["fc", "lm_heat"], "'lm_heat' matches no linear weight"),
        ({}, ["re:("], "is no regular expression"),
        ({}, ["*"], "no linear weight is left"),
    ],
)
def test_configurations_and_patterns_that_can_only_be_mistakes_are_refused(
    fields: dict[str, Any], exclude: list[str] | None, message: str, tmp_path: Path
) -> None:
    source = copy_edited(DRAFT, tmp_path / "source", config=lambda c: {**c, **fields})
    with pytest.raises(ValueError, match=message):
        prepare(source, tmp_path / "out", scheme_of("int4", 32), exclude=exclude)


def test_vision_is_quantised_only_when_asked_and_the_router_never(tmp_path: Path) -> None:
    for vision in (False, True):
        job = prepare(KIMI, tmp_path / "out", FP8, exclude=[], vision=vision)
        chosen = job.plan.selection.quantized
        assert any(name.startswith("vision_tower") for name in chosen) == vision
        assert any(name.startswith("mm_projector") for name in chosen) == vision
        assert not [name for name in chosen if name.endswith("mlp.gate")]
        assert "language_model.lm_head" in chosen


@pytest.mark.parametrize(("scheme", "group_size"), [("mxfp4", None), ("int4", 32)])
def test_every_weight_that_does_not_divide_is_listed(
    scheme: str, group_size: int | None, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"{scheme} can't hold") as raised:
        prepare(ORACLES / "draft_mla_bf16", tmp_path / "out", scheme_of(scheme, group_size))
    assert "q_b_proj.weight [96, 48]: 32 inputs share a scale" in str(raised.value)
    assert not list(tmp_path.iterdir())
