"""Programs for GPUs are the same at every start, unless somebody asks XLA to choose by time."""

from pathlib import Path

import pytest

from pallas_kernels import gpu

PINNED = {gpu.AUTOTUNE_LEVEL, "xla_gpu_enable_triton_gemm"}


@pytest.mark.parametrize("arch", gpu.KNOWN)
def test_a_program_is_not_autotuned_unless_a_flag_says_so(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with gpu.assume(arch):
        assert gpu.compiler_options().keys() >= PINNED
        assert gpu.compiler_options()[gpu.AUTOTUNE_LEVEL] == "0"
        assert gpu.AUTOTUNE_LEVEL not in gpu.compiler_options(autotune=True)


def test_flags_of_xla_are_obeyed_from_the_variable_and_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "flags"
    file.write_text("--xla_gpu_autotune_level=2\n--xla_gpu_enable_triton_gemm\n")
    for given in (file.read_text(), str(file)):
        monkeypatch.setenv("XLA_FLAGS", given)
        found = {gpu.AUTOTUNE_LEVEL: "2", "xla_gpu_enable_triton_gemm": "true"}
        assert gpu.xla_flags() == found
        with gpu.assume("gfx950"):
            assert not gpu.compiler_options().keys() & PINNED
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "missing"))
    assert gpu.xla_flags() == {}


def test_the_plugins_and_libraries_that_are_installed_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = "jax-rocm10-pjrt", "jax-cuda13-plugin", "jax", "jax-rocm7-docs", "nvidia-cublas"
    for name in (*names, "nvidia-nccl-cu13", "nvidia-nvtx"):
        folder = tmp_path / f"{name.replace('-', '_')}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert gpu.plugin_versions() == {"jax-cuda13-plugin": "1.2", "jax-rocm10-pjrt": "1.2"}
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info/version").write_text("7.2.1-81\n")
    libraries = {"nvidia-cublas": "1.2", "nvidia-nccl-cu13": "1.2", "ROCm": "7.2.1-81"}
    assert gpu.library_versions() == libraries
