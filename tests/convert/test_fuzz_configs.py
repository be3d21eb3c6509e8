"""No config.json makes the importer fail otherwise than by its own clear errors."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from edited import put
from hostile import GOLDEN, JSON_VALUES, fuzz, golden_config, nested, opens_or_says_why
from hypothesis import given
from hypothesis import strategies as st
from oracle_files import ORACLES
from sweeps import sweep

from convert import load_draft
from convert.conversion.cli import main
from convert.conversion.conversion import open_conversion
from eagle3_jax.models.target import Target

HUGE = 2**31 - 1
EDITS = st.tuples(
    st.sampled_from(["replace", "replace", "replace", "delete", "add"]),
    st.integers(0, 2**20),
    st.text(max_size=6),
    JSON_VALUES,
)


def places(config: Any) -> Iterator[tuple[Any, Any]]:
    """Every object or list of a JSON value with each of its keys, outermost first."""
    inner = config.items() if isinstance(config, dict) else enumerate(config)
    for key, value in inner:
        yield config, key
        if isinstance(value, dict | list):
            yield from places(value)


def writable_copy(name: str, parent: Path) -> Path:
    """The golden tensors, with no configuration yet."""
    source = parent / "source"
    shutil.copytree(ORACLES / name, source, ignore=shutil.ignore_patterns("config.json"))
    source.chmod(0o755)
    return source


def edited(config: dict[str, Any], edits: list[tuple[str, int, str, Any]]) -> dict[str, Any]:
    for kind, which, name, value in edits:
        where = list(places(config))
        if not where:
            return config
        holder, key = where[which % len(where)]
        if kind == "delete":
            del holder[key]
        elif kind == "replace":
            holder[key] = value
        elif isinstance(holder, dict):
            holder[name] = value
    return config


@pytest.mark.parametrize("name", sweep(GOLDEN, ["kimi_w4a8_quark", "draft_mla_bf16"]))
def test_fields_of_a_configuration(name: str, tmp_path: Path, target: Target) -> None:
    """And eagle3-convert writes nothing where one does not fit."""
    source = writable_copy(name, tmp_path)

    @given(edits=st.lists(EDITS, min_size=1, max_size=2))
    @fuzz(60 if name.startswith("draft") else 12)
    def run(edits: list[tuple[str, int, str, Any]]) -> None:
        config = edited(golden_config(name), edits)
        (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
        if opens_or_says_why(source, open_conversion):
            assert main([str(source), str(tmp_path / "made")]) == 2
            assert {path.name for path in tmp_path.iterdir()} == {"source"}
        elif name.startswith("draft"):
            opens_or_says_why(source, lambda path: load_draft(path, target))

    run()


TEXT, QUANTIZATION = ("text_config",), ("quantization_config",)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        *(
            ("kimi_int4_ct", (*TEXT, field), HUGE)
            for field in ("num_hidden_layers", "n_routed_experts", "n_shared_experts")
        ),
        ("kimi_int4_ct", (*TEXT, "num_attention_heads"), HUGE),
        ("kimi_int4_ct", (*TEXT, "kv_lora_rank"), HUGE),
        ("kimi_int4_ct", (*TEXT, "rope_scaling", "factor"), float("nan")),
        ("kimi_int4_ct", ("eos_token_id",), 2**70),
        ("kimi_int4_ct", QUANTIZATION, [1]),
        ("kimi_int4_ct", (*QUANTIZATION, "ignore"), ["re:("]),
        ("kimi_int4_ct", (*QUANTIZATION, "ignore"), ["re:[[a]"]),
        ("kimi_int4_ct", (*QUANTIZATION, "ignore"), ["re:" + "(" * 5000 + ")" * 5000]),
        ("kimi_int4_ct", (*QUANTIZATION, "ignore"), ["re:a{99999999999}"]),
        ("kimi_int4_ct", (*QUANTIZATION, "ignore"), "lm_head"),
        ("draft_mha_fp8_ptpc", (*QUANTIZATION, "exclude"), [None]),
        ("draft_mha_fp8_ptpc", (*QUANTIZATION, "quant_method"), ["quark"]),
        ("draft_mha_fp8_ptpc", ("num_attention_heads",), 2**30),
        ("draft_mha_fp8_ptpc", ("max_position_embeddings",), [0] * 10_000),
        ("draft_mla_bf16", ("num_attention_heads",), HUGE),
        ("draft_mla_bf16", ("eagle_config", "x" * 100_000), nested(500)),
        ("draft_mla_bf16", ("eagle_config", "eagle_aux_hidden_state_layer_ids"), [2] * 10_000),
    ],
)
def test_a_damaged_field(name: str, place: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    source = writable_copy(name, tmp_path)
    config = put(golden_config(name), place, value)
    if place[-1] == "num_attention_heads":
        config.pop("head_dim", None)
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert opens_or_says_why(source, open_conversion)


@given(value=JSON_VALUES)
@fuzz(50)
def test_a_whole_configuration(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    source = writable_copy("draft_mla_bf16", tmp_path_factory.mktemp("whole"))
    (source / "config.json").write_text(json.dumps(value), encoding="utf-8")
    assert opens_or_says_why(source, open_conversion)
