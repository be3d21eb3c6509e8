import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pallas_kernels import gpu, tuning
from pallas_kernels.tuning import trying, tuned


@dataclass(frozen=True)
class Tiles:
    rows: int
    warps: int = 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is measured but what a test writes there."""
    monkeypatch.setattr(tuning, "FOLDER", tmp_path)
    tuning.measured.cache_clear()
    yield tmp_path
    tuning.measured.cache_clear()


def write(folder: Path, arch: str, tiles: dict[str, int]) -> None:
    record = {"tiles": {"matmul": {"m16": {"tiles": tiles, "us": 9.0, "heuristic_us": 10.0}}}}
    (folder / f"{arch}.json").write_text(json.dumps(record))


def test_what_was_measured_on_this_gpu_replaces_the_heuristic(folder: Path):
    write(folder, "gfx950", {"rows": 32})
    with gpu.assume("gfx950"):
        assert tuned("matmul", "m16", Tiles(16, warps=8)) == Tiles(32, warps=8)
        assert tuned("matmul", "m64", Tiles(16)) == Tiles(16)
        assert tuned("other", "m16", Tiles(16)) == Tiles(16)
    with gpu.assume("gfx942"):
        assert tuned("matmul", "m16", Tiles(16)) == Tiles(16)


def test_the_tuner_sees_every_choice_and_puts_its_own_in(folder: Path):
    write(folder, "gfx950", {"rows": 32})
    with gpu.assume("gfx950"):
        with trying({("matmul", "m16"): {"rows": 64}}) as asked:
            assert tuned("matmul", "m16", Tiles(16)) == Tiles(64)
            assert tuned("matmul", "m64", Tiles(16)) == Tiles(16)
        assert asked == {
            ("matmul", "m16"): {"rows": 64, "warps": 4},
            ("matmul", "m64"): {"rows": 16, "warps": 4},
        }
        with trying({}):
            assert tuned("matmul", "m16", Tiles(16)) == Tiles(16)
        assert tuned("matmul", "m16", Tiles(16)) == Tiles(32)


def test_a_file_of_other_fields_is_refused(folder: Path):
    write(folder, "gfx950", {"columns": 32})
    with gpu.assume("gfx950"), pytest.raises(ValueError, match="expected rows, warps; got columns"):
        tuned("matmul", "m16", Tiles(16))
