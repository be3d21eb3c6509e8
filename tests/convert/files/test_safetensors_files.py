"""Reading safetensors: what the library reads, and one clear error for each defect."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from oracle_files import ORACLES
from safetensors_writing import write_safetensors

from convert.files.safetensors_files import INDEX_FILE, open_checkpoint
from convert.published.read_parameter import aligned_empty

ROW = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write_raw(path: Path, header: str, data: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + data)
    return path.parent


def test_every_tensor_is_what_the_safetensors_library_reads() -> None:
    checkpoint = open_checkpoint(ORACLES / "kimi_bf16")
    files = sorted((ORACLES / "kimi_bf16").glob("*.safetensors"))
    expected = {k: v for file in files for k, v in safetensors.torch.load_file(file).items()}
    assert set(checkpoint.tensors) == set(expected)
    for name, tensor in expected.items():
        ours = torch.from_numpy(checkpoint.read(name).astype(np.float32))
        assert torch.equal(ours, tensor.float()), name


def test_the_safetensors_library_reads_what_we_write(tmp_path: Path) -> None:
    tensors = {
        "odd": np.array([True, False, True]),
        "ids": np.arange(5, dtype=np.int64),
        "half": np.ones((3, 1), np.float16),
        "scalar": np.float32(2.5).reshape(()),
    }
    write_safetensors(tmp_path / "model.safetensors", tensors)
    read = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert {k: v.numpy().tolist() for k, v in read.items()} == {
        k: v.tolist() for k, v in tensors.items()
    }


def test_shard_numbers_may_have_gaps(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ORACLES / "kimi_bf16", tmp_path / "copy"))
    renamed = "model-00131-of-000130.safetensors"
    (copy / "model-00003-of-000003.safetensors").rename(copy / renamed)
    index = (copy / INDEX_FILE).read_text(encoding="utf-8")
    index = index.replace("model-00003-of-000003.safetensors", renamed)
    (copy / INDEX_FILE).write_text(index, encoding="utf-8")
    assert set(open_checkpoint(copy).tensors) == set(open_checkpoint(ORACLES / "kimi_bf16").tensors)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (json.dumps({"a": ROW}), bytes(7), "truncated"),
        (json.dumps({"a": ROW}), bytes(9), "trailing bytes"),
        (json.dumps({"a": ROW, "b": {**ROW, "data_offsets": [4, 12]}}), bytes(12), "b overlaps"),
        (
            json.dumps({"a": ROW, "b": {**ROW, "data_offsets": [9, 17]}}),
            bytes(17),
            "b leaves a gap",
        ),
        (f'{{"a": {json.dumps(ROW)}, "a": {json.dumps(ROW)}}}', bytes(8), "duplicate names"),
        (json.dumps({"a": {**ROW, "shape": [3]}}), bytes(8), "offsets of a do not fit"),
        (json.dumps({"a": {**ROW, "shape": [-2]}}), bytes(8), "damaged header entry of a"),
        (json.dumps({"a": {**ROW, "dtype": "Q4"}}), bytes(8), "unknown dtype 'Q4'"),
        (json.dumps({"a": {"shape": [2]}}), bytes(8), "damaged header entry of a"),
        ("[]", b"", "must be an object"),
        ("{", b"", "damaged header"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, header: str, data: bytes, message: str) -> None:
    directory = write_raw(tmp_path / "model.safetensors", header, data)
    with pytest.raises(ValueError, match=message) as raised:
        open_checkpoint(directory)
    assert "model.safetensors" in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, struct.pack("<Q", 2**60)])
def test_a_file_without_a_whole_header_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="truncated or not a safetensors file"):
        open_checkpoint(tmp_path)


def test_a_header_of_two_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 2**31))
        file.truncate(2**31 + 100)
    with pytest.raises(ValueError, match="header of 2147483648"):
        open_checkpoint(tmp_path)


def test_a_cpu_device_takes_aligned_memory_without_a_copy() -> None:
    memory = aligned_empty((257, 129), ml_dtypes.bfloat16)
    memory[...] = 1
    taken = jax.device_put(memory, jax.devices("cpu")[0])
    assert taken.unsafe_buffer_pointer() == memory.ctypes.data
    assert aligned_empty((0, 3), np.float32).shape == (0, 3)


def sharded(directory: Path, weight_map: Any) -> Path:
    for name in ("one", "two"):
        write_safetensors(directory / f"{name}.safetensors", {name: np.zeros(2, np.float32)})
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"one": "../one.safetensors"}, "outside its directory"),
        ({"one": "/etc/passwd"}, "outside its directory"),
        ({"one": ".."}, "outside its directory"),
        ({"one": "one.safetensors", "two": "one.safetensors"}, "'two' is not in one.safetensors"),
        ({"two": "two.safetensors", "x": "one.safetensors"}, "one lies in one.safetensors"),
        ([], "lacks a weight_map"),
    ],
)
def test_an_index_that_lies_is_named(tmp_path: Path, weight_map: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_checkpoint(sharded(tmp_path, weight_map))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor"):
        open_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"missing: \['three.safetensors'\]"):
        open_checkpoint(sharded(tmp_path, {"one": "one.safetensors", "x": "three.safetensors"}))
