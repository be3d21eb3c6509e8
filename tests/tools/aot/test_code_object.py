"""The code object reader against bytes that are made here."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from eagle3_tools.aot.amd.code_object import GpuKernel, read_code_object

ENTRY = {
    ".name": "mla_decode",
    ".vgpr_count": 300,
    ".vgpr_spill_count": 0,
    ".sgpr_spill_count": 70_000,
    ".private_segment_fixed_size": 12,
    ".group_segment_fixed_size": 4096,
    ".max_flat_workgroup_size": 256,
}
NOTE, LOAD, METADATA, PROGRAM_HEADERS = 4, 1, 32, 64


def note(name: bytes, kind: int, content: bytes) -> bytes:
    def padded(data: bytes) -> bytes:
        return data + bytes(-len(data) % 4)

    return struct.pack("<III", len(name), len(content), kind) + padded(name) + padded(content)


def code_object(entries: list[dict[str, Any]], **metadata: Any) -> bytes:
    """An ELF file with a segment that holds no notes and one with two, the second AMDGPU's."""
    content: Any = msgpack.packb({"amdhsa.version": [1, 2], **metadata, "amdhsa.kernels": entries})
    notes = note(b"GNU\0", 3, b"12345") + note(b"AMDGPU\0", METADATA, content)
    start = PROGRAM_HEADERS + 2 * 56
    segments = [(LOAD, 0, start), (NOTE, start, len(notes))]
    headers = b"".join(
        struct.pack("<IIQQQQQQ", kind, 0, at, 0, 0, size, size, 4) for kind, at, size in segments
    )
    header = bytearray(PROGRAM_HEADERS)
    struct.pack_into("<Q", header, 32, PROGRAM_HEADERS)
    struct.pack_into("<HH", header, 54, 56, len(segments))
    return bytes(header) + headers + notes


def test_reads_every_kernel_of_the_amdgpu_note(tmp_path: Path):
    path = tmp_path / "a.hsaco"
    path.write_bytes(code_object([ENTRY, ENTRY | {".name": "merge"}]))
    first, second = read_code_object(path)
    assert first == GpuKernel("mla_decode", 300, 0, 70_000, 12, 4096, 256, {})
    assert second == replace(first, name="merge")


def test_counts_the_matrix_instructions_of_the_ir_beside_it(tmp_path: Path):
    (tmp_path / "a.hsaco").write_bytes(code_object([ENTRY]))
    (tmp_path / "a_opt.ll").write_text(
        "%1 = tail call <4 x float> @llvm.amdgcn.mfma.f32.16x16x32.bf16(<8 x bfloat> %a)\n" * 3
        + "%2 = call <4 x float> @llvm.amdgcn.mfma.scale.f32.16x16x128.f8f6f4.v8i32.v4i32(i32 0)\n"
        + "declare <4 x float> @llvm.amdgcn.mfma.i32.16x16x64.i8(<4 x i32>)\n"
    )
    assert read_code_object(tmp_path / "a.hsaco")[0].matrix == {
        "mfma.f32.16x16x32.bf16": 3,
        "mfma.scale.f32.16x16x128.f8f6f4.v8i32.v4i32": 1,
    }


def test_a_file_without_the_note_is_refused(tmp_path: Path):
    path = tmp_path / "a.hsaco"
    path.write_bytes(code_object([]).replace(b"AMDGPU", b"NVIDIA"))
    with pytest.raises(ValueError, match="no code object"):
        read_code_object(path)


@pytest.mark.parametrize(
    ("vgprs", "lds_bytes", "threads", "waves"),
    [(64, 0, 256, 8), (65, 0, 256, 7), (300, 0, 256, 1), (512, 0, 256, 1), (32, 40_000, 256, 1)],
)
def test_waves_are_bound_by_registers_or_by_local_memory(
    vgprs: int, lds_bytes: int, threads: int, waves: int
):
    """512 registers a lane are shared in blocks of 8; 65,536 bytes hold one group of 40,000."""
    kernel = GpuKernel("k", vgprs, 0, 0, 0, lds_bytes, threads, {})
    assert kernel.waves_per_simd(65_536) == waves
