"""The command: what it prints, what it refuses and with which status."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from oracle_files import ORACLES
from sparse_checkpoint import write_hole

from convert.quantize import cli, run
from convert.quantize.cli import main

SOURCE, KIMI = str(ORACLES / "quantizer/source"), str(ORACLES / "kimi_bf16")


def test_plan_on_stdout_and_progress_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([SOURCE, str(tmp_path / "out"), "--scheme", "ptpc_fp8"]) == 0
    out, err = capsys.readouterr()
    assert (
        "7 of 9 linear weights" in out
        and "as patterns in config.json: re:.*fc.* re:.*lm_head.*" in out
    )
    assert "quantising: 100 %" in err
    assert (tmp_path / "out/model.safetensors").is_file()


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([KIMI, str(tmp_path / "out"), "--scheme", "mxfp4", "--dry-run"]) == 0
    assert "linear weights" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["A", "B"], "--scheme is missing, one of ptpc_fp8"),
        (["A", "B", "--scheme", "int8"], "invalid choice: 'int8'"),
        (["A", "B", "--compare", "--scheme", "int4"], "drop --scheme"),
        (["A", "B", "--compare", "--target", "T"], "belong together"),
        (["A", "B", "--scheme", "int4", "--json"], "belong to --compare"),
    ],
)
def test_flags_that_contradict_end_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("eagle3-quantize: error: ") and message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere", "--scheme", "int4"], "/nowhere does not exist"),
        ([SOURCE, "--scheme", "mxfp4", "--group-size", "32"], "--group-size belongs to"),
        ([SOURCE, "--scheme", "int4", "--exclude", "nothing"], "'nothing' matches no linear"),
        ([str(ORACLES / "kimi_int4_ct"), "--scheme", "int4"], "is quantised already"),
    ],
)
def test_bad_input_ends_in_one_line_and_status_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([arguments[0], str(tmp_path / "out"), *arguments[1:]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("eagle3-quantize: error: ") and message in line
    assert not list(tmp_path.iterdir())


def test_a_termination_leaves_as_little_as_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminate(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(run, "write_files", terminate)
    assert main([SOURCE, str(tmp_path / "out"), "--scheme", "int4"]) == 128 + signal.SIGTERM
    assert "stopped, nothing was written" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = type(run.shutil.disk_usage(tmp_path))(10, 9, 1)
    monkeypatch.setattr(run.shutil, "disk_usage", lambda _: usage)
    assert main([SOURCE, str(tmp_path / "out"), "--scheme", "int4"]) == 2
    assert "has 1 bytes free, the output needs 498944" in capsys.readouterr().err


def test_compare_prints_errors_and_totals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([SOURCE, str(tmp_path / "out"), "--scheme", "int4"]) == 0
    capsys.readouterr()
    golden = str(ORACLES / "quantizer/int4")
    assert main(["--compare", str(tmp_path / "out"), golden, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["relative"] == 0
    assert main(["--compare", str(tmp_path / "out"), SOURCE, "--limit", "2"]) == 0
    table = capsys.readouterr().out
    assert "12 more" in table and "over 14 tensors, 7 equal" in table


def test_ctrl_c_ends_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    # 2 GiB take seconds to quantise, and nothing to store.
    shape = [1 << 19, 1 << 10]
    write_hole(source / "model.safetensors", [("a.weight", "F32", shape, 4 << 29)])
    (source / "config.json").write_text("{}", encoding="utf-8")
    command = [sys.executable, "-m", cli.__name__, str(source), str(tmp_path / "out")]
    process = subprocess.Popen([*command, "--scheme", "fp8_block"], stderr=subprocess.PIPE)
    while not list(tmp_path.glob(".out.*")) and process.poll() is None:
        time.sleep(0.005)
    while process.poll() is None:
        # Once may not do: what a garbage collection of JAX's calls back ignores exceptions.
        os.kill(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert b"stopped, nothing was written" in err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
