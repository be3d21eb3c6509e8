"""A pair from config.json alone is the pair that its tensors make."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx
from oracle_files import ORACLES
from sparse_checkpoint import write_sparse

from convert.conversion.conversion import open_conversion
from convert.from_config import draft_from_config, target_from_config
from eagle3_jax.layers.quantized import QuantizedKernel
from pallas_kernels import QuantFormat

TARGETS = ("kimi-k2.5", "kimi-k2.5-mxfp4", "kimi-k2.5-w4a8")
DRAFTS = ("kimi-k2.5-eagle3", "kimi-k2.5-eagle3-fp8", "eagle3-kimik2.5-w4a8")
DRAFTS += ("kimi-k2.5-eagle3-mla",)


def published(name: str) -> dict[str, Any]:
    return json.loads((ORACLES / "published" / f"{name}.config.json").read_text())


def formats(model: nnx.Module) -> dict[str, QuantFormat]:
    return {
        ".".join(map(str, path)): module.format
        for path, module in nnx.iter_modules(model)
        if isinstance(module, QuantizedKernel)
    }


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_keeps_quantised_what_its_tensors_are(name: str, tmp_path: Path) -> None:
    write_sparse(name, tmp_path / name, shards=2, layers=2)
    config = json.loads((tmp_path / name / "config.json").read_text())
    found = target_from_config(config, jnp.bfloat16)
    assert formats(found) == dict(open_conversion(tmp_path / name).planned.formats)


@pytest.mark.parametrize("name", DRAFTS)
def test_a_draft_keeps_quantised_what_its_tensors_are(name: str, tmp_path: Path) -> None:
    write_sparse(name, tmp_path / name, shards=1)
    found = draft_from_config(published(name), jnp.bfloat16, num_target_layers=61)
    assert formats(found) == dict(open_conversion(tmp_path / name).planned.formats)


def test_both_spellings_of_the_draft_s_exclude_list_mean_the_same() -> None:
    names = ("kimi-k2.5-eagle3-fp8", "kimi-k2.5-eagle3-fp8.vllm-edited")
    plain, regexes = (
        formats(draft_from_config(published(name), jnp.bfloat16, num_target_layers=61))
        for name in names
    )
    assert plain == regexes and len(plain) == 7


def test_a_damaged_number_of_layers_is_refused_before_any_is_built() -> None:
    config = published("kimi-k2.5")
    config["text_config"]["num_hidden_layers"] = 10**9
    with pytest.raises(ValueError, match="num_hidden_layers must be at most 1000, got 1000000000"):
        target_from_config(config, jnp.bfloat16)
