"""What can't be trained is said before a weight is read, and leaves no directory behind."""

import json
import re
from pathlib import Path

import pytest
from oracle_files import ORACLES

import serve.train.draft
from convert.outline import Outline
from serve.train import run
from serve.train.cli import main

TARGET = ORACLES.parents[1] / "serve" / "demo" / "pair" / "target"
ANSWERED = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
SEEN = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]


def command(output: Path, *more: str) -> list[str]:
    return ["draft", "--target", f"{TARGET}", "--output", f"{output}", *more]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A conversation, one with an image, and one that is none."""
    path = tmp_path / "data.jsonl"
    lines = [{"messages": ANSWERED}, {"messages": SEEN + ANSWERED[1:]}, {"prompt": "x"}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


REFUSED = {
    "3 rows cannot be split evenly over 2": ["--rows", "3", "--data-parallel-size", "2"],
    "4 attention heads cannot be split evenly over 8": ["--tensor-parallel-size", "8"],
    "--aux-layers must be 0..6": ["--aux-layers", "1,7"],
    "--wandb needs the extra": ["--wandb", "project"],
    "more than the target's context of 1024": ["--eval-every", "1", "--eval-tokens", "1000"],
    "--row-length must be 160 or more": ["--row-length", "100"],
    "line 2: .*takes no images": ["--data", "{data}"],
    "data.jsonl, line 2: .*of text alone": ["--eval-every", "1", "--eval-data", "{data}"],
    "data.jsonl, line 3: .*`messages`": ["--data", "{plain}"],
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_trained_is_refused_before_a_weight_is_read(
    said: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Outline, "fill", lambda self: pytest.fail("weights are read"))
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    (tmp_path / "plain").mkdir()
    plain = tmp_path / "plain" / "data.jsonl"
    lines = data.read_text().splitlines()
    plain.write_text("\n".join([lines[0], lines[0], lines[2]]))
    places = {"{data}": f"{data}", "{plain}": f"{plain}"}
    flags = [places.get(flag, flag) for flag in REFUSED[said]]
    assert main(command(tmp_path / "out", *flags)) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_start_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where it had begun to write; what was there before stays."""

    def fails(options, *given):
        (options.output / "training").mkdir(parents=True)
        raise ValueError("no memory")

    monkeypatch.setattr(serve.train.draft, "_train", fails)
    assert main(command(tmp_path / "out")) == 2
    assert not (tmp_path / "out").exists()
    kept = tmp_path / "kept" / "file"
    kept.parent.mkdir()
    kept.touch()
    assert main(command(tmp_path / "kept")) == 2
    assert list(kept.parent.iterdir()) == [kept]
