"""python -m convert.equivalence: right conversions pass, a wrong layer is named."""

import sys
from pathlib import Path

import pytest
from edited import Tensors, copy_edited
from oracle_files import ORACLES
from sweeps import sweep

from convert.conversion.cli import main as convert
from convert.equivalence.__main__ import main
from convert.equivalence.torch_model import torch_family
from eagle3_jax.config.targets import READERS

KIMI = ORACLES / "kimi_bf16"
FORMS = ("kimi_bf16", "kimi_int4_ct", "kimi_mxfp4_quark", "kimi_w4a8_quark")
FORMS += ("minimax_bf16", "minimax_fp8block")
Q_PROJ = "language_model.model.layers.2.self_attn.q_b_proj.weight"


@pytest.mark.parametrize("form", sweep(FORMS, ["kimi_mxfp4_quark", "minimax_fp8block"]))
def test_every_layer_of_a_converted_checkpoint_is_transformers(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert([str(ORACLES / form), str(tmp_path / "made")]) == 0
    capsys.readouterr()
    assert main([str(ORACLES / form), str(tmp_path / "made"), "--tokens", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    stages = [line.split("largest")[0].strip() for line in lines]
    assert stages[0] == "embedding" and stages[-1] == "logits"
    assert stages[1:-1] == [f"layer {i}" for i in range(len(stages) - 2)] != []
    assert all(line.endswith("equal") for line in lines)


def test_every_target_that_loads_has_one_of_transformers_beside_it() -> None:
    assert all(torch_family(model_type).part("DecoderLayer") for model_type in READERS)
    with pytest.raises(ValueError, match="one of kimi_k2, deepseek_v3"):
        torch_family("x")


def test_the_one_wrong_layer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def spoil(tensors: Tensors) -> Tensors:
        return {**tensors, Q_PROJ: tensors[Q_PROJ][::-1]}

    spoilt = copy_edited(KIMI, tmp_path / "spoilt", tensors=spoil)
    assert main([str(KIMI), str(spoilt), "--layers", "1-3", "--tokens", "6"]) == 1
    assert "beyond relative rms 0.0001: layer 2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(KIMI), "--layers", "3-4"], "layers must be in 0..3: [4]"),
        ([str(ORACLES / "nowhere")], "nowhere does not exist"),
    ],
)
def test_mistakes_cost_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("convert.equivalence: error: ")
    assert message in error


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_a_package_the_error_names_the_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert main([str(KIMI)]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install 'eagle3-jax[transformers]'")
