"""Errors between checkpoints, whatever form each is stored in."""

import json
from pathlib import Path

import numpy as np
import pytest
from decoding import dequantize
from edited import Tensors, copy_edited
from oracle_files import ORACLES
from quantizing import quantized

from convert.files.safetensors_files import open_checkpoint
from convert.quantize.compare import compare, comparison_json

SOURCE = ORACLES / "quantizer/source"
QUERY = "midlayer.self_attn.q_proj.weight"


def test_error_is_that_of_the_decoded_weight(tmp_path: Path) -> None:
    source, ours = open_checkpoint(SOURCE), quantized(SOURCE, tmp_path / "out", "int4")
    comparison = compare(ours, source)
    (error,) = [error for error in comparison.tensors if error.name == QUERY]
    exact = source.read(QUERY).astype(np.float64)
    parts = {"weight": ours.read(QUERY), "weight_scale": ours.read(f"{QUERY}_scale")}
    difference = dequantize(parts) - exact
    assert error.relative == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(exact))
    assert error.largest == pytest.approx(np.abs(difference).max())
    assert error.elements == exact.size


def test_the_worst_comes_first_and_kept_weights_are_equal(tmp_path: Path) -> None:
    comparison = compare(quantized(SOURCE, tmp_path / "out", "mxfp4"), open_checkpoint(SOURCE))
    relative = [error.relative for error in comparison.tensors]
    assert relative == sorted(relative, reverse=True)
    assert relative[6] > 0.05 and not any(relative[7:])
    assert relative[-1] < comparison.relative < relative[0]
    assert not comparison.only_in_first and not comparison.only_in_second


@pytest.mark.parametrize("value", [np.nan, np.inf, 5.0])
def test_what_has_no_finite_error_is_the_worst(value: float, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> Tensors:
        spoiled = np.zeros_like(tensors["norm.weight"])
        spoiled[3] = value
        return {**tensors, "norm.weight": spoiled}

    def clear(tensors: Tensors) -> Tensors:
        return {**tensors, "norm.weight": np.zeros_like(tensors["norm.weight"])}

    spoiled = open_checkpoint(copy_edited(SOURCE, tmp_path / "a", tensors=spoil))
    cleared = open_checkpoint(copy_edited(SOURCE, tmp_path / "b", tensors=clear))
    comparison = compare(spoiled, cleared)
    assert comparison.tensors[0].name == "norm.weight"
    assert comparison.tensors[0].relative == np.inf
    content = json.loads(comparison_json(comparison, None), parse_constant=pytest.fail)
    assert content["tensors"][0]["relative"] is None


def test_weights_that_only_one_holds_are_listed_and_shapes_must_agree(tmp_path: Path) -> None:
    def drop(tensors: Tensors) -> Tensors:
        return {name: array for name, array in tensors.items() if name != QUERY}

    def cut(tensors: Tensors) -> Tensors:
        return {**tensors, QUERY: tensors[QUERY][:, :-1]}

    source = open_checkpoint(SOURCE)
    without = open_checkpoint(copy_edited(SOURCE, tmp_path / "without", tensors=drop))
    assert compare(without, source).only_in_second == [QUERY]
    narrower = open_checkpoint(copy_edited(SOURCE, tmp_path / "narrower", tensors=cut))
    with pytest.raises(ValueError, match=f"{QUERY}: shapes"):
        compare(narrower, source)
