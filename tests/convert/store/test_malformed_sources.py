"""eagle3-convert of a malformed source: status 2, one line that says what is wrong, no files."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited import Tensors, copy_edited
from oracle_files import ORACLES

from convert.conversion.cli import main
from convert.files.safetensors_files import SINGLE_FILE

EXPERT = "language_model.model.layers.1.mlp.experts.2.up_proj"
Damage = Callable[[Path], None]


def two_gigabytes_of_header(source: Path) -> None:
    with (source / SINGLE_FILE).open("wb") as file:
        file.write(struct.pack("<Q", 2**31))
        file.truncate(2**31 + 100)


def tensor(name: str, edit: Callable[[np.ndarray], np.ndarray]) -> dict[str, Any]:
    return {"tensors": lambda tensors: {**tensors, name: edit(tensors[name])}}


def infinite_product(tensors: Tensors) -> Tensors:
    names = (f"{EXPERT}.weight_scale", f"{EXPERT}.weight_scale_2")
    return {**tensors, **{name: np.full_like(tensors[name], 3e38) for name in names}}


def quantization(**fields: Any) -> dict[str, Any]:
    def edit(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "quantization_config": {**config["quantization_config"], **fields}}

    return {"config": edit}


def untouched(source: Path) -> None:
    """Leaves the source as it is: the command line is what is wrong."""


CASES = {
    "wrong packing order": (
        *("draft_mha_int4_pc_awq", {}, untouched, ["--int4-order", "linear"]),
        ".weight: zero points lie beside it and 6 others",
    ),
    "scale of the wrong shape": (
        *("kimi_int4_ct", tensor(f"{EXPERT}.weight_scale", lambda a: a[:, :-1]), untouched, []),
        "weight_scale: expected shape (64, 4), got (64, 3)",
    ),
    "NaN scales": (
        *("kimi_int4_ct", tensor(f"{EXPERT}.weight_scale", lambda a: a * np.nan), untouched, []),
        "up_proj.weight: the scales hold infinities or NaN",
    ),
    "scales whose product is infinite": (
        "kimi_w4a8_quark",
        {"tensors": infinite_product},
        untouched,
        [],
        "up_proj.weight: the scales hold infinities or NaN",
    ),
    "contradictory excludes": (
        *("draft_mha_fp8_ptpc", quantization(exclude=["lm_head"]), untouched, []),
        "fc.weight: config.json says fp8_channel, its tensors are F16",
    ),
    "a pattern that is none": (
        *("draft_mha_fp8_ptpc", quantization(exclude=["re:("]), untouched, []),
        "exclude pattern 're:(' is no regular expression",
    ),
    "a header of 2 GB": (
        *("draft_mha_bf16", {}, two_gigabytes_of_header, []),
        "header of 2147483648",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_nothing_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden, changes, damage, options, message = CASES[name]
    source = copy_edited(ORACLES / golden, tmp_path / "source", **changes)
    damage(source)
    assert main([str(source), str(tmp_path / "made"), *options]) == 2
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if "error" in line]
    assert out == "" and "Traceback" not in err
    assert len(errors) == 1 and err.splitlines()[-1] == errors[0]
    assert errors[0].startswith("eagle3-convert: error: ")
    assert str(source) in errors[0] and message in errors[0]
    assert {path.name for path in tmp_path.iterdir()} == {"source"}
