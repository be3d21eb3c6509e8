"""No header and no index makes the importer fail otherwise than by its own clear errors."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import (
    GOLDEN,
    JSON_VALUES,
    fuzz,
    golden_config,
    golden_entries,
    opens_or_says_why,
    sound_header,
    write_checkpoint,
)
from hypothesis import example, given
from hypothesis import strategies as st
from oracle_files import ORACLES
from safetensors_writing import write_safetensors
from sweeps import sweep

from convert import load_draft
from convert.conversion.conversion import open_conversion
from convert.files.safetensors_files import DTYPES, INDEX_FILE, SINGLE_FILE, open_checkpoint
from convert.published.directory import open_published
from eagle3_jax.models.target import Target

SMALL = "draft_mla_bf16"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "checkpoint"


@given(
    edits=st.lists(
        st.tuples(
            st.sampled_from(["flip", "cut", "insert", "length"]),
            st.integers(0, 2**20),
            st.binary(min_size=1, max_size=6)
            | st.sampled_from([b"\xff\xfe", b"\xef\xbb\xbf", b"[" * 9000, b'{"a":' * 3000]),
            st.sampled_from([0, 1, 7, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1])
            | st.integers(0, 10_000),
        ),
        min_size=1,
        max_size=3,
    )
)
@fuzz(100)
def test_bytes_of_a_header(directory: Path, edits: list[tuple[str, int, bytes, int]]) -> None:
    raw, size = sound_header(golden_entries(SMALL))
    config = json.dumps(golden_config(SMALL)).encode()
    content, prefix = bytearray(raw), len(raw)
    for kind, where, piece, length in edits:
        at = where % (len(content) + 1)
        if kind == "flip":
            content[at : at + len(piece)] = piece
        elif kind == "cut":
            del content[at:]
        elif kind == "insert":
            content[at:at] = piece
        prefix = length if kind == "length" else len(content)
    write_checkpoint(directory, bytes(content), size, config)
    with (directory / SINGLE_FILE).open("r+b") as file:
        file.write(struct.pack("<Q", prefix))
    opens_or_says_why(directory, open_published)


TENSOR_EDITS = st.tuples(
    st.sampled_from(["dtype", "shape", "remove", "add", "rename", "part"]),
    st.integers(0, 2**20),
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 8, 16, 31, 32, 64, 128, 576]), max_size=4)
    | st.sampled_from([[1] * 40, [1] * 100, [0, 2**62], [0, 2**63], [0, 2**70], [128], [128, 1]]),
    st.sampled_from(
        [
            *("weight", "weight_packed", "weight_scale", "weight_scale_2", "weight_scale_inv"),
            *("weight_shape", "weight_zero_point", "bias", "d2t", "t2d", "", ".", "..weight"),
            *("layers.0.x", "layers.99999999999999999999.mlp.up_proj.weight", "model.d2t"),
        ]
    ),
)


@pytest.mark.parametrize("name", sweep(GOLDEN, ["kimi_w4a8_quark", "draft_mla_bf16"]))
def test_tensors_of_another_dtype_shape_or_name(name: str, directory: Path, target: Target) -> None:
    """Sound files, so that what they hold is looked at."""
    config = json.dumps(golden_config(name)).encode()

    @given(edits=st.lists(TENSOR_EDITS, min_size=1, max_size=2))
    @example(edits=[("add", 0, "I64", [1] * 100, "d2t")])
    @example(edits=[("add", 0, "I64", [0, 2**70], "d2t")])
    @fuzz(20 if name.startswith("draft") else 10)
    def run(edits: list[tuple[str, int, str, list[int], str]]) -> None:
        entries = golden_entries(name)
        for kind, which, dtype, shape, part in edits:
            chosen = list(entries)[which % len(entries)]
            module = chosen.rpartition(".")[0]
            old = entries[chosen]
            if kind in ("remove", "rename"):
                del entries[chosen]
            if kind == "dtype":
                entries[chosen] = (dtype, old[1])
            elif kind == "shape":
                entries[chosen] = (old[0], shape)
            elif kind == "add":
                entries[part] = (dtype, shape)
            elif kind == "rename":
                entries[f"{module}.{part}"] = old
            elif kind == "part":
                entries[f"{module}.{part}"] = (dtype, shape)
        write_checkpoint(directory, *sound_header(entries), config)
        if opens_or_says_why(directory, open_conversion) == "" and name.startswith("draft"):
            opens_or_says_why(directory, lambda path: load_draft(path, target))

    run()


SHARDS = st.sampled_from(
    [
        *("one.safetensors", "two.safetensors", "three.safetensors", "../one.safetensors", "/"),
        *("/etc/passwd", "", ".", "..", "a/../one.safetensors", "one.safetensors/", "\x00"),
        *("\ud800", "x" * 300, "x" * 100_000, "config.json", "folder", INDEX_FILE),
    ]
)
NAMES = st.sampled_from(["one", "two", "absent", "", "\ud800", "a\nb", "x" * 100_000])


@given(
    index=st.builds(
        lambda weight_map, rest: {**rest, "weight_map": weight_map},
        st.dictionaries(NAMES, SHARDS | JSON_VALUES, max_size=4)
        | JSON_VALUES
        | st.just({f"absent.{i}": "one.safetensors" for i in range(5000)})
        | st.just({f"absent.{i}": f"{i}.safetensors" for i in range(5000)}),
        st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=2),
    )
    | JSON_VALUES
)
@fuzz(100)
def test_an_index(tmp_path_factory: pytest.TempPathFactory, index: Any) -> None:
    directory = tmp_path_factory.getbasetemp() / "indexed"
    if not directory.exists():
        (directory / "folder").mkdir(parents=True)
        (directory / "config.json").write_text("{}")
        for name in ("one", "two"):
            write_safetensors(directory / f"{name}.safetensors", {name: np.zeros(2, np.float32)})
    (directory / INDEX_FILE).write_text(json.dumps(index))
    opens_or_says_why(directory, open_published)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"\xff", b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"null", b"[]", b"NaN"),
        *(b"[" * 100_000, b'{"a":' * 100_000, b'{"weight_map":' + b"[" * 900 + b"]" * 900 + b"}"),
        *(b'{"a": ' + b"9" * 5000 + b"}", b'{"weight_map": {"a": NaN}}'),
        *(b'{"weight_map": {}, "weight_map": []}', b'{"weight_map": {"one": "\\ud800"}}'),
    ],
)
def test_hostile_json(tmp_path: Path, raw: bytes) -> None:
    for file in (ORACLES / SMALL).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / INDEX_FILE).write_bytes(raw)
    assert opens_or_says_why(tmp_path, open_checkpoint)
    (tmp_path / INDEX_FILE).unlink()
    (tmp_path / "config.json").write_bytes(raw)
    assert opens_or_says_why(tmp_path, open_conversion)
    write_checkpoint(tmp_path, raw, 0, b"{}")
    if raw != b"":
        assert opens_or_says_why(tmp_path, open_conversion)
