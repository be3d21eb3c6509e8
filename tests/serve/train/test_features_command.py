"""Features written once train what features made online do, to the bit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from convert.abstract_model import AbstractModel
from serve.demo import demo_target_dir
from serve.train import write_features as command
from serve.train.cli import main

TARGET = demo_target_dir()
ROWS = ["--rows", "2", "--row-length", "48"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of different lengths, of which one is longer than a row."""
    path = tmp_path_factory.mktemp("data") / "conversations.jsonl"
    said = [" ".join(["sort", "add", "list"][: 1 + n % 3] * (1 + n % 2)) for n in range(11)]
    said.append("sort the list " * 20)
    lines = [
        [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": text}]
        for n, text in enumerate(said)
    ]
    path.write_text("".join(f"{json.dumps({'messages': line})}\n" for line in lines))
    return path


def features(data: Path, to: Path, *more: str) -> int:
    given = ["--target", f"{TARGET}", "--data", f"{data}", "--to", f"{to}"]
    return main(["features", *given, *ROWS, *more])


def draft(output: Path, *more: str) -> int:
    given = ["--target", f"{TARGET}", "--output", f"{output}", "--intermediate-size", "64"]
    return main(["draft", *given, *ROWS, "--unroll", "2", *more])


def failing_after(files: int, error: BaseException) -> Callable[..., Any]:
    write, left = command.write_samples, [files]

    def fails(path: Path, samples: Any) -> None:
        if not left[0]:
            (path.parent / "features-000000.safetensors.partial").write_bytes(b"half")
            raise error
        left[0] -= 1
        write(path, samples)

    return fails


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("features") / "whole"
    assert features(data, to) == 0
    return to


@pytest.mark.long
def test_a_draft_learns_from_them_what_it_learns_online(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the target's layers are not read."""
    online, kept = tmp_path / "online", tmp_path / "kept"
    assert draft(online, "--data", f"{data}", "--epochs", "2") == 0
    fill = AbstractModel.fill

    def ends(self: AbstractModel[Any]) -> Any:
        assert "layers" in self.shared
        return fill(self)

    monkeypatch.setattr(AbstractModel, "fill", ends)
    assert draft(kept, "--features", f"{whole}", "--epochs", "2") == 0
    assert (online / "model.safetensors").read_bytes() == (kept / "model.safetensors").read_bytes()
    logs = [(run / "training" / "log.jsonl").read_text().splitlines() for run in (online, kept)]
    losses = [[json.loads(line)["loss"] for line in log] for log in logs]
    assert losses[0] == losses[1] and len(losses[0]) > 2


@pytest.mark.parametrize(
    ("error", "status"),
    [pytest.param(OSError("disk"), 2, marks=pytest.mark.long), (KeyboardInterrupt(), 130)],
)
def test_what_was_interrupted_goes_on_to_the_same_files(
    error: BaseException,
    status: int,
    data: Path,
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to = tmp_path / "features"
    with monkeypatch.context() as patched:
        patched.setattr(command, "write_samples", failing_after(3, error))
        assert features(data, to) == status
    assert draft(tmp_path / "out", "--features", f"{to}") == 2
    assert "lacks 3 of 6 files" in capsys.readouterr().err
    assert features(data, to) == 2
    assert "add --resume" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(command, "write_samples", failing_after(3, AssertionError("too many")))
        assert features(data, to, "--resume") == 0
    for path in whole.iterdir():
        assert (to / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_start_that_fails_leaves_no_directory(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "feature_pass", Mock(side_effect=ValueError("no memory")))
    assert features(data, tmp_path / "to") == 2
    assert not (tmp_path / "to").exists()


def test_features_of_another_target_or_of_other_flags_are_refused(
    data: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert features(data, whole, "--resume", "--aux-layers", "0,1,2") == 2
    assert "holds other features: aux_layer_ids [" in capsys.readouterr().err
    other = tmp_path / "target"
    shutil.copytree(TARGET, other)
    weights = other / "model.safetensors"
    tuned = bytearray(weights.read_bytes())
    tuned[-1] ^= 1
    weights.write_bytes(tuned)
    said = tmp_path / "conversations.jsonl"
    said.write_text(data.read_text().replace('"content": "0"', '"content": "9"'))
    assert features(said, whole, "--resume") == 2
    assert "holds other features: data" in capsys.readouterr().err
    rows = [*ROWS, "--output", f"{tmp_path / 'out'}", "--features", f"{whole}"]
    assert main(["draft", "--target", f"{other}", *rows]) == 2
    assert "holds other features: target" in capsys.readouterr().err
    assert draft(tmp_path / "out", "--features", f"{whole}", "--prefill-chunk", "32") == 2
    assert "prefill_chunk 64, not 32" in capsys.readouterr().err
    assert draft(tmp_path / "out", "--features", f"{whole}", "--data", f"{data}") == 2
    assert "give --data or --features" in capsys.readouterr().err
    assert draft(tmp_path / "out", "--features", f"{data.parent}") == 2
    assert "`eagle3-train features` makes one" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
