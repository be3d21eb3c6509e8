"""Loading is measured over all bytes, and a directory without files is refused."""

from pathlib import Path

import pytest

from eagle3_tools.bench.cpu.load import MIB, measure_load
from serve.demo import demo_target_dir


def test_each_way_is_measured_over_the_bytes_of_all_files() -> None:
    found = measure_load(demo_target_dir(), 2)
    size = sum(file.stat().st_size for file in demo_target_dir().glob("*.safetensors"))
    assert found.mib == size / MIB
    for rates in (found.cold, found.plain_cold, found.warm, found.plain_warm):
        assert len(rates) == 2 and min(rates) > 0


def test_a_directory_without_published_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no safetensors file"):
        measure_load(tmp_path, 1)
