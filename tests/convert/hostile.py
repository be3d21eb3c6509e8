"""Hostile checkpoints: values and files made to break a reader, and the rule that readers keep."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from oracle_files import ORACLES
from sparse_checkpoint import header_of

from convert.files.safetensors_files import (
    INDEX_FILE,
    SINGLE_FILE,
    TensorType,
    open_checkpoint,
)

LONGEST_LINE = 1000
GOLDEN = (
    "kimi_int4_ct",
    "kimi_mxfp4_quark",
    "kimi_w4a8_quark",
    "draft_mha_fp8_ptpc",
    "draft_mha_int4_pc",
    "draft_mla_bf16",
)


def fuzz(examples: int) -> settings:
    """The same examples in every run, however slow the machine."""
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None)


def opens_or_says_why(directory: Path, opens: Callable[[Path], object]) -> str:
    """The rule: success, or one of two errors, in lines one can read, that names the files."""
    try:
        opens(directory)
    except (ValueError, FileNotFoundError) as error:
        text = str(error)
        assert type(error) in (ValueError, FileNotFoundError), repr(error)
        assert str(directory) in text, text
        assert max(map(len, text.splitlines())) <= LONGEST_LINE, text
        assert all(c.isprintable() or c == "\n" for c in text), repr(text)
        return text
    return ""


def nested(depth: int) -> Any:
    """Lists inside lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


_ODD = st.sampled_from(
    [
        *(-1, 0, 1, 2, 7, 31, 33, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**300),
        *(0.0, -0.5, 0.1, 2.0, 1e-320, 1e30, 1e308, float("nan"), float("inf"), float("-inf")),
        *("", "..", "/", "../x", "\x00", "\ud800", "\x1b[2J", "a\nb", "x" * 100_000, "yarn"),
        *("re:(", "re:a{99999999999}", "re:[[a]", "re:" + "(" * 5000, "[", "*", "I32", "auto"),
        *(None, True, False, [], {}, [[]], [{}], [None], nested(500), nested(50), [0] * 10_000),
        *({"": 1}, {"a": {"b": []}}, [1, 2], [1, 2, 3], [2**70] * 3, ["fc"], ["re:.*"]),
    ]
)
JSON_VALUES = _ODD.map(lambda value: json.loads(json.dumps(value))) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=6,
)


def golden_config(name: str) -> dict[str, Any]:
    """The config.json of a golden checkpoint, without the vision part that nobody reads."""
    config = json.loads((ORACLES / name / "config.json").read_text(encoding="utf-8"))
    config.pop("vision_config", None)
    return config


Entries = dict[str, tuple[str, list[int]]]
"""Tensors of a file: name -> dtype and shape."""


def golden_entries(name: str) -> Entries:
    tensors = open_checkpoint(ORACLES / name).tensors
    return {info.name: (info.dtype, list(info.shape)) for info in tensors.values()}


def sound_header(entries: Entries) -> tuple[bytes, int]:
    """A header for these tensors, and the bytes of data behind it."""
    sizes = {
        name: TensorType(dtype, tuple(shape)).nbytes for name, (dtype, shape) in entries.items()
    }
    header, size = header_of((name, *entry, sizes[name]) for name, entry in entries.items())
    return json.dumps(header).encode(), size


def write_checkpoint(directory: Path, header: bytes, data_bytes: int, config: bytes) -> Path:
    """One safetensors file, its data zeros that take no space, and a config.json."""
    directory.mkdir(exist_ok=True)
    (directory / INDEX_FILE).unlink(missing_ok=True)
    (directory / "config.json").write_bytes(config)
    with (directory / SINGLE_FILE).open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + data_bytes)
    return directory
