"""Figures of kernels in PTX and in what NVIDIA's assembler says, both written here."""

import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_tools.aot.nvidia import toolkit
from eagle3_tools.aot.nvidia.ptx import SmKernel, read_kernels

PTX = """
.visible .entry mla_decode(.param .u64 .ptr .global .align 16 mla_decode_param_0)
.reqntid 256, 1, 1
{
	cp.async.cg.shared.global [ %r106 + 0 ], [ %rd5 + 0 ], 0x10, %r107;
	cp.async.cg.shared.global [ %r106 + 16 ], [ %rd6 + 0 ], 0x10, %r107;
	cp.async.ca.shared.global [ %r108 + 0 ], [ %rd7 + 0 ], 0x4;
	cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1];
	@%p3 ld.global.v4.b32 { %r94, %r95, %r96, %r97 }, [ %rd61 + 0 ];
	ld.global.nc.L1::no_allocate.b16 %rs1, [%rd2];
	ld.global.v2.b32 {%r1,%r2}, [%rd3];
	ld.shared.v4.b32 {%r1,%r2,%r3,%r4}, [%r9];
	wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%r1}, {%r2}, %rd9, p, 1, 1, 0;
	wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%r1}, {%r2}, %rd9, p, 1, 1, 0;
}
.visible .entry merge(.param .u64 merge_param_0)
.reqntid 128
{
	mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};
	mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%r1}, {%r2}, {%r3}, {%r4};
}
"""
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'mla_decode' for 'sm_90a'
ptxas info    : Function properties for mla_decode
    600 bytes stack frame, 588 bytes spill stores, 604 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 600 bytes cumulative stack size
ptxas info    : Compiling entry function 'merge' for 'sm_90a'
ptxas info    : Function properties for merge
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 72 registers, used 0 barriers, 512 bytes smem
"""
PLAIN = SmKernel("k", 32, 0, 0, 128, {}, {}, {})


def test_every_kernel_of_a_file_has_its_own_figures():
    first, second = read_kernels(PTX, LOG, {"mla_decode": 147_456, "merge": 1024})
    assert first == SmKernel(
        name="mla_decode",
        registers=255,
        spill_bytes=588,
        shared_bytes=147_456,
        threads=256,
        matrix={"wgmma.bf16.m64n16k16": 2},
        loads={16: 1, 2: 1, 8: 1},
        copies={16: 2, 4: 1},
    )
    assert (first.wide_loads, first.narrow_loads) == (3, 3)
    products = {"mma.f16.m16n8k16": 1, "mma.s8.m16n8k32": 1}
    assert second == SmKernel("merge", 72, 0, 1536, 128, products, {}, {})


def test_a_kernel_that_the_assembler_does_not_speak_of_is_refused():
    with pytest.raises(ValueError, match="does not say what merge takes"):
        list(
            read_kernels(PTX, LOG.partition("ptxas info    : Compiling entry function 'me")[0], {})
        )


@pytest.mark.parametrize(
    ("changed", "blocks"),
    [
        ({}, 16),
        ({"registers": 33}, 12),
        ({"registers": 255}, 2),
        ({"registers": 128, "threads": 512}, 1),
        ({"threads": 32, "registers": 8}, 32),
        ({"shared_bytes": 24_576}, 9),
        ({"shared_bytes": 232_448}, 1),
    ],
    ids=str,
)
def test_blocks_are_bound_by_threads_registers_or_shared_memory(
    changed: dict[str, int], blocks: int
):
    """The reference is the CUDA occupancy calculator for 9.0: registers go to warps in blocks of
    256, and 1024 bytes of shared memory to every block."""
    assert replace(PLAIN, **changed).blocks_per_sm == blocks


def test_the_toolkits_assembler_keeps_what_it_reads_and_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    real = tmp_path / "it's real"
    (real / "bin").mkdir(parents=True)
    (real / "nvvm").mkdir()
    assembler = real / "bin/ptxas"
    assembler.write_text(
        '#!/bin/sh\necho "$@"; echo said >&2\n[ "$2" = bad.ptx ] && exit 3\nexit 0\n'
    )
    assembler.chmod(assembler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(toolkit, "_installed_toolkit", lambda: real)
    kept = tmp_path / "kept files"
    kept.mkdir()
    ours = toolkit.make_toolkit(kept) / "bin/ptxas"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([ours, *arguments], capture_output=True, text=True, cwd=tmp_path)

    assert run("--version").stdout == "--version\n" and not toolkit.assembled(kept)
    (tmp_path / "good.ptx").write_text("one")
    assert run("good.ptx", "-o", "out").returncode == 0
    assert toolkit.assembled(kept) == [("one", "-v good.ptx -o out\nsaid\n")]
    (tmp_path / "bad.ptx").write_text("two")
    refused = run("bad.ptx")
    assert refused.returncode == 3 and "said" in refused.stderr
