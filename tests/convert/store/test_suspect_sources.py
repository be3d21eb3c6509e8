"""Weights that are NaN and tokenizers without tokens are said before anybody serves them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from converting import DRAFT, Capture, refused
from edited import Tensors, copy_edited
from jax.typing import DTypeLike
from oracle_files import ORACLES

from convert import load_tokenizer
from convert.conversion import cli
from convert.store.parameters import all_finite
from convert.store.reader import open_store

EXPERT = "language_model.model.layers.1.mlp.experts.{}.up_proj.weight"
Spoil = Callable[[Tensors], None]


def spoilt(*names: str) -> Spoil:
    """Puts one bad number into each of the named tensors."""

    def edit(tensors: Tensors) -> None:
        for name in names:
            tensors[name] = tensors[name].copy()
            tensors[name].reshape(-1)[-1] = np.nan

    return edit


def test_weights_that_are_not_finite_are_named_and_counted(tmp_path: Path, capsys: Capture) -> None:
    """Each expert of a stack is named."""
    names = [EXPERT.format(2), EXPERT.format(5), "language_model.model.norm.weight"]
    bad = spoilt(*names, "language_model.lm_head.weight")
    source = copy_edited(ORACLES / "kimi_bf16", tmp_path / "source", tensors=bad)
    made = tmp_path / "made"
    said = refused(capsys, source, made)
    assert "4 tensors hold NaN or infinities" in said and "and 1 more" in said
    assert "--allow-nonfinite" in said and not made.exists()
    assert sum(name in said for name in (*names, "language_model.lm_head.weight")) == 3
    assert EXPERT.format(1) not in said
    assert said == refused(capsys, source, made)  # resumed, with nothing left to read
    assert cli.main([str(source), str(made), "--allow-nonfinite"]) == 0
    assert "warning: 4 tensors" in capsys.readouterr().err
    found = {name for entry in open_store(made).parameters.values() for name in entry.nonfinite}
    assert found == {*names, "language_model.lm_head.weight"}
    assert cli.main(["--verify", str(source), str(made)]) == 0


@pytest.mark.parametrize(
    "dtype", [np.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e8m0fnu]
)
def test_every_pattern_of_bits_is_told_as_isfinite_does(dtype: DTypeLike) -> None:
    width = np.dtype(dtype).itemsize
    patterns = np.arange(256**width, dtype=f"u{width}").view(dtype)
    found = [all_finite(pattern) for pattern in patterns.reshape(-1, 1)]
    np.testing.assert_array_equal(found, np.isfinite(patterns.astype(np.float32)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_only_nan_and_infinities_of_wide_floats_are_not_finite(dtype: DTypeLike) -> None:
    ends = np.array([np.finfo(dtype).max, np.finfo(dtype).min, 0, -0.0, 1e-45], dtype)
    assert all_finite(ends) and all_finite(np.arange(5))
    for bad in (np.nan, np.inf, -np.inf):
        assert not all_finite(np.array([*np.ones(2**19), bad], dtype))


def test_a_draft_is_looked_at_too(tmp_path: Path, capsys: Capture) -> None:
    source = copy_edited(DRAFT, tmp_path / "source", tensors=spoilt("fc.weight"))
    assert "1 tensors hold NaN or infinities: fc.weight;" in refused(
        capsys, source, tmp_path / "made"
    )


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tiktoken.model", ""),
        ("tokenizer.json", ""),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", '{"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE"}}'),
        (
            "tokenizer.json",
            '{"decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, '
            '"use_regex": true}, "model": {"type": "BPE", "vocab": {}, "merges": []}}',
        ),
    ],
)
def test_an_empty_tokenizer_is_said_before_a_weight_is_read(
    tmp_path: Path, capsys: Capture, file: str, content: str
) -> None:
    shutil.copytree(ORACLES / "kimi_bf16", tmp_path / "source")
    (tmp_path / "source").chmod(0o755)
    (tmp_path / "source" / file).write_text(content)
    said = refused(capsys, tmp_path / "source", tmp_path / "made")
    assert file in said and "replace it, or remove it" in said
    assert {path.name for path in tmp_path.iterdir()} == {"source"}
    with pytest.raises(ValueError, match=file):
        load_tokenizer(tmp_path / "source")


def test_a_target_without_a_tokenizer_is_noted(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main([str(ORACLES / "kimi_bf16"), str(tmp_path / "made")]) == 0
    assert "note: " in (said := capsys.readouterr().err) and "has no tokenizer" in said
