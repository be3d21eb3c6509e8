"""eagle3-convert: the golden checkpoints go through it unchanged, and mistakes cost one line."""

import io
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from converting import Capture, refused
from edited import Tensors, copy_edited
from oracle_files import ORACLES
from rich.console import Console
from sparse_checkpoint import write_sparse
from sweeps import sweep

from convert.command_line import progress
from convert.command_line.progress import GIB, ByteProgress
from convert.conversion.cli import main
from convert.store.reader import open_store


def test_gfx942_gets_its_own_floats(tmp_path: Path) -> None:
    source, made = ORACLES / "draft_mha_fp8_ptpc", tmp_path / "made"
    assert main([str(source), str(made), "--arch", "gfx942"]) == 0
    assert main(["--verify", str(source), str(made)]) == 0
    store = open_store(made)
    assert store.manifest.origin.arch == "gfx942"
    dtypes = {np.dtype(p.dtype) for path, p in store.parameters.items() if "values" in path}
    assert dtypes == {np.dtype(jnp.float8_e4m3fnuz)}


def test_bad_scales_cost_one_line_and_leave_nothing(tmp_path: Path, capsys: Capture) -> None:
    """They are read when the store is half written."""
    name = "language_model.model.layers.1.mlp.experts.2.up_proj.weight_scale"

    def spoil(tensors: Tensors) -> None:
        tensors[name] = tensors[name] * np.nan

    source = copy_edited(ORACLES / "kimi_int4_ct", tmp_path / "source", tensors=spoil)
    said = refused(capsys, source, tmp_path / "made")
    assert str(source) in said and "up_proj.weight: the scales hold infinities or NaN" in said
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_what_was_assumed_is_said_and_recorded(tmp_path: Path, capsys: Capture) -> None:
    assert main([str(ORACLES / "draft_mha_int4_pc"), str(tmp_path / "made")]) == 0
    assert "assuming INT4 per channel of Quark (linear order)" in capsys.readouterr().err
    options = open_store(tmp_path / "made").manifest.origin.options
    assert options["int4_order"] == "auto" and "linear" in options["assumed"][0]


@pytest.mark.parametrize(
    "name", sweep(["kimi-k2.5", "kimi-k2.5-mxfp4", "kimi-k2.5-w4a8"], ["kimi-k2.5-w4a8"])
)
def test_a_dry_run_lists_every_tensor_of_the_released_shapes(
    tmp_path: Path, capsys: Capture, name: str
) -> None:
    tensors = write_sparse(name, tmp_path / "source", shards=3, layers=2)
    assert main([str(tmp_path / "source"), "--dry-run", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    totals = lines.pop()["totals"]["everything"]
    assert {(t[0], t[3]) for t in tensors} == {(line["name"], line["nbytes"]) for line in lines}
    assert totals["tensors"] == len(tensors) == len(lines)
    assert totals["nbytes"] == sum(nbytes for *_, nbytes in tensors)
    by_name = {line["name"]: line for line in lines}
    expert = next(
        n for n in by_name if ".1.mlp.experts.383.up_proj.weight" in n and "scale" not in n
    )
    assert by_name[expert]["path"] == "layers.1.mlp.experts.up_proj.values"
    assert by_name[expert]["shape"][0] == 384
    assert by_name[expert]["device_nbytes"] == by_name[expert]["nbytes"] // 8
    skipped = [line for line in lines if line["skipped_reason"]]
    assert all(line["path"] is None and line["device_nbytes"] == 0 for line in skipped)
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "SRC is missing"),
        (["nowhere"], "DST is missing"),
        (["nowhere", "made"], "nowhere does not exist"),
        (["source", "."], "exists; give a new directory"),
        (["source", "made", "--json"], "--json belongs to --dry-run"),
        (["source", "made", "--item-mib", "0"], "1 or more; got 0"),
        (["source", "made", "--arch", "gfx90a"], "invalid choice"),
        (["source", "--dry-run", "--mesh", "eight"], "must look like tensor=8"),
        (["--verify"], "DST is missing"),
        (["source", "made", "--verify", "--arch", "gfx942"], "the store says how it was made"),
        (["--verify", "source"], "manifest.json does not exist"),
        (["source", "made"], "does not fit the model"),
    ],
)
def test_a_mistake_costs_one_line_and_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ORACLES / "draft_mha_bf16", "source")
    config = json.loads(Path("source/config.json").read_text())
    Path("source/config.json").write_text(json.dumps({**config, "intermediate_size": 7}))
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    error = capsys.readouterr().err
    assert error.startswith("eagle3-convert: error: ") and message in error
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_a_damaged_store_fails_verification_by_name(tmp_path: Path, capsys: Capture) -> None:
    assert main([str(ORACLES / "draft_mha_bf16"), str(tmp_path / "made")]) == 0
    file = max((tmp_path / "made" / "items").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)
    said = refused(capsys, "--verify", tmp_path / "made", status=1)
    assert "1 of 14 parameters" in said and "its checksum differs" in said


@contextmanager
def limited_files(nbytes: int) -> Iterator[None]:
    """No file that this process writes may be larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more_is_one_line_and_leaves_a_run_to_resume(
    tmp_path: Path, capsys: Capture
) -> None:
    arguments = [str(ORACLES / "draft_mha_bf16"), str(tmp_path / "made")]
    with limited_files(200_000):
        said = refused(capsys, *arguments)
    assert "error: cannot write " in said and "repeat the command to resume: Failed" in said
    assert "File too large" in said and said.count(str(tmp_path)) == 1
    assert main(arguments) == 0


def test_a_hundred_steps_are_ten_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    out = io.StringIO()
    with ByteProgress(Console(file=out), "converting", 100 * GIB) as shown:
        for _ in range(100):
            shown.advance(GIB)
    lines = out.getvalue().splitlines()
    assert [int(found[1]) for line in lines if (found := re.search(r"(\d+) %", line))] == [
        *range(10, 101, 10)
    ]
    assert all("GiB" in line and "s left" in line for line in lines)


def test_what_an_earlier_run_did_does_not_count_as_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    shown = ByteProgress(Console(file=out), "converting", 100 * GIB)
    monkeypatch.setattr(shown, "_start_s", 0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: 10.0)
    shown.resume(80 * GIB)
    shown.advance(10 * GIB)
    assert out.getvalue() == "converting: 90 %, 90.00 of 100.00 GiB, 1024 MiB/s, 10 s left\n"


SLOW = """
import sys, time
from convert.conversion import cli
from convert.store import writer
writer._read = lambda item: (print("reading", flush=True), time.sleep(60))
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.long
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, str(ORACLES / "draft_mha_bf16"), str(tmp_path / "made")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "repeat the command to resume, or delete" in error and "made.partial" in error
    assert "Traceback" not in error
