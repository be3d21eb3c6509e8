"""The command: what it prints, what it refuses and with which status."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from oracle_files import ORACLES

from convert.quantize import run
from convert.quantize.cli import main

SOURCE, KIMI = str(ORACLES / "quantizer/source"), str(ORACLES / "kimi_bf16")


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([KIMI, str(tmp_path / "out"), "--scheme", "mxfp4", "--dry-run"]) == 0
    assert "linear weights" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SOURCE], "--scheme is missing, one of ptpc_fp8"),
        ([SOURCE, "--scheme", "int8"], "invalid choice: 'int8'"),
        ([SOURCE, "--compare", "--scheme", "int4"], "drop --scheme"),
        ([SOURCE, "--compare", "--target", "T"], "belong together"),
        ([SOURCE, "--scheme", "int4", "--json"], "belong to --compare"),
        (["/nowhere", "--scheme", "int4"], "/nowhere does not exist"),
        ([SOURCE, "--scheme", "mxfp4", "--group-size", "32"], "--group-size belongs to"),
        ([SOURCE, "--scheme", "int4", "--exclude", "nothing"], "'nothing' matches no linear"),
        ([str(ORACLES / "kimi_int4_ct"), "--scheme", "int4"], "is quantised already"),
    ],
)
def test_mistakes_end_in_one_line_and_status_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main([arguments[0], str(tmp_path / "out"), *arguments[1:]])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("eagle3-quantize: error: ") and message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_leaves_nothing(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def end(*_: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(1)

    before = signal.getsignal(number)
    monkeypatch.setattr(run, "write_files", end)
    assert main([SOURCE, str(tmp_path / "out"), "--scheme", "int4"]) == 128 + number
    assert "stopped, nothing was written" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(number) == before


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = type(run.shutil.disk_usage(tmp_path))(10, 9, 1)
    monkeypatch.setattr(run.shutil, "disk_usage", lambda _: usage)
    assert main([SOURCE, str(tmp_path / "out"), "--scheme", "int4"]) == 2
    assert "has 1 bytes free, the output needs 498944" in capsys.readouterr().err


def test_quantise_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan and the errors go to stdout, the progress to stderr."""
    made = str(tmp_path / "out")
    assert main([SOURCE, made, "--scheme", "int4"]) == 0
    out, err = capsys.readouterr()
    assert "7 of 9 linear weights" in out and "quantising: 100 %" in err
    assert "as patterns in config.json: re:.*fc.* re:.*lm_head.*" in out
    assert main(["--compare", made, str(ORACLES / "quantizer/int4"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["relative"] == 0 and len(content["tensors"]) == 14
    assert main(["--compare", made, SOURCE, "--limit", "2"]) == 0
    table = capsys.readouterr().out
    assert "12 more" in table and "over 14 tensors, 7 equal" in table
