"""A directory for compiled programs that can't be written is one line of advice."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from eagle3_jax.engine.programs.fingerprint import THREADS
from serve.pair import program_cache
from serve.pair.program_cache import keep_compiled_programs

NAMES = ("jax_compilation_cache_dir", "jax_enable_compilation_cache")


def setting(name: str) -> Any:
    return getattr(jax.config, name)


@pytest.fixture(autouse=True)
def settings_of_jax() -> Iterator[None]:
    before = {name: setting(name) for name in NAMES}
    with warnings.catch_warnings():
        yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_directory_that_can_be_written_is_used_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said: list[str] = []
    keep_compiled_programs(said.append)
    assert setting("jax_compilation_cache_dir") == str(tmp_path / "cache/eagle3-jax")
    assert not list((tmp_path / "cache/eagle3-jax").iterdir())
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    keep_compiled_programs(said.append)
    assert not said, "no directory is no cache"


@pytest.mark.parametrize("given", ["kept", "gs://bucket/kept"])
def test_each_version_of_a_compiler_has_its_own_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """JAX's names of programs do not tell plugins apart that came after one jaxlib."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", given)
    for version in ("0.10.2", "0.10.2.post1"):
        plugins = {"jax-rocm7-pjrt": version, "jax-rocm7-plugin": "0.10.2"}
        monkeypatch.setattr(program_cache, "plugin_versions", lambda found=plugins: found)
        keep_compiled_programs(pytest.fail)
        folders = f"{given}/jax-rocm7-pjrt-{version}/jax-rocm7-plugin-0.10.2"
        assert setting("jax_compilation_cache_dir") == folders


def test_programs_for_another_number_of_threads_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX's names of programs do not tell how many parts of a loop run at once."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    folders = []
    for threads in (os.cpu_count(), 77, 78):
        monkeypatch.setenv(THREADS, f"{threads}")
        keep_compiled_programs(pytest.fail)
        folders.append(Path(setting("jax_compilation_cache_dir")))
    assert folders == [tmp_path, tmp_path / "77-threads", tmp_path / "78-threads"]


def test_a_directory_that_cannot_be_is_named_once_and_nothing_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "file/cache"))
    said: list[str] = []
    keep_compiled_programs(said.append)
    (line,) = said
    assert f"{tmp_path}/file/cache: Not a directory" in line
    assert "set JAX_COMPILATION_CACHE_DIR" in line
    assert not setting("jax_enable_compilation_cache")


def test_a_directory_that_can_only_be_read_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(program_cache, "TemporaryFile", refuse)
    said: list[str] = []
    keep_compiled_programs(said.append)
    assert len(said) == 1 and "Permission denied" in said[0]
    assert setting("jax_enable_compilation_cache")
    warnings.warn("Error writing persistent compilation cache entry for 'x'", stacklevel=1)
