import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pallas_kernels import gpu, tuning
from pallas_kernels.dispatch import Form, choose, prefer
from pallas_kernels.tuning import trying, tuned

IMPLEMENTATIONS: dict[str, Form] = {"xla": len, "reference": sum, "pallas": "head_dim is 3"}


def test_none_means_xla_on_cpu_and_a_name_means_itself():
    assert choose("f", None, **IMPLEMENTATIONS) is len
    assert choose("f", "reference", **IMPLEMENTATIONS) is sum


def test_a_gpu_runs_the_kernel_and_the_reference_where_the_kernel_refuses(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    with gpu.assume("gfx950"):
        assert choose("g", None, **(IMPLEMENTATIONS | {"pallas": max})) is max
        assert choose("h", None, **IMPLEMENTATIONS) is sum
        assert choose("h", None, **IMPLEMENTATIONS) is sum
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        ("INFO", "g runs as pallas"),
        ("WARNING", "h runs as reference (pallas: head_dim is 3)"),
    ]


def test_what_is_preferred_holds_for_calls_that_name_nothing():
    with prefer("reference"):
        assert choose("f", None, **IMPLEMENTATIONS) is sum
        assert choose("f", "xla", **IMPLEMENTATIONS) is len
    assert choose("f", None, **IMPLEMENTATIONS) is len
    with prefer("pallas"), pytest.raises(ValueError, match="'pallas'"):
        choose("f", None, **IMPLEMENTATIONS)


def test_an_operation_that_is_switched_off_runs_as_its_reference_and_says_so_in_a_line(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.WARNING)
    with gpu.assume("gfx950"), prefer(None, ["off"]):
        assert choose("off", None, **(IMPLEMENTATIONS | {"pallas": max})) is sum
        assert choose("on", None, **(IMPLEMENTATIONS | {"pallas": max})) is max
    assert [record.getMessage() for record in caplog.records] == [
        "off runs as reference (pallas: switched off)"
    ]
    with prefer("pallas", ["off"]):
        assert choose("off", None, **(IMPLEMENTATIONS | {"pallas": max})) is sum
        with prefer(None, ["on"]):
            assert choose("off", None, **(IMPLEMENTATIONS | {"pallas": max})) is sum
    with prefer(None, ["off"]):
        assert choose("off", None, **IMPLEMENTATIONS) is len


def test_an_error_lists_why_each_implementation_refused():
    refused: dict[str, Form] = {"xla": "q is int8", "reference": sum, "pallas": "head_dim is 3"}
    with pytest.raises(
        ValueError, match="'pallas': xla: q is int8; pallas: head_dim is 3; available: reference"
    ):
        choose("f", "pallas", **refused)


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="cuda: no such implementation"):
        choose("f", "cuda", **IMPLEMENTATIONS)


def test_a_cpu_interprets_unless_a_program_is_compiled_for_a_gpu():
    assert gpu.current().arch == "cpu" and gpu.interpreted()
    with gpu.assume("gfx942") as assumed:
        assert gpu.current() == assumed == gpu.MI325X and gpu.interpreted()
        with gpu.assume("gfx950", compiling=True):
            assert gpu.current() == gpu.MI355X and not gpu.interpreted()
        assert gpu.current() == gpu.MI325X and gpu.interpreted()
    assert gpu.current().arch == "cpu"


@pytest.mark.parametrize(
    ("capability", "arch"), [("9.0", "sm_90"), ("10.0", "sm_100"), ("gfx942:sramecc+", "gfx942")]
)
def test_the_architecture_is_named_alike_whether_jax_says_it_or_a_flag(
    monkeypatch: pytest.MonkeyPatch, capability: str, arch: str
):
    class Device:
        compute_capability = capability

    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setattr("jax.devices", lambda: [Device()])
    assert gpu.current().arch == arch
    assert gpu.current() == gpu.KNOWN.get(arch, gpu.current())


def test_an_unknown_gpu_is_refused():
    with pytest.raises(ValueError, match="expected one of gfx950, gfx942, sm_90; got 'gfx90a'"):
        with gpu.assume("gfx90a"):
            pass


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
