"""Directories that can't be served end the commands with status 2 and one clear message."""

import json
import shutil
from pathlib import Path

import pytest
from oracle_files import ORACLES

from convert.conversion.cli import main as convert_main
from serve.asgi.graceful import bind
from serve.cli import main as serve_main
from serve.generate.cli import main as generate_main

DRAFTS = sorted(path.name for path in ORACLES.glob("draft_*"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A good checkpoint, for a test to spoil."""
    for part in ("kimi_bf16", "tokenizer"):
        shutil.copytree(ORACLES / part, tmp_path / "target", dirs_exist_ok=True)
    return tmp_path / "target"


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return eagle3-serve's error."""
    assert serve_main([*argv, "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert "eagle3-serve: error: " in error and "Traceback" not in error
    assert error.rstrip().splitlines()[-1].startswith("eagle3-serve: error: ")
    return error


def test_missing_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing does not exist" in refused([str(tmp_path / "nothing")], capsys)
    assert generate_main([str(tmp_path / "nothing"), "--prompt", "a"]) == 2
    assert "eagle3-generate: error: " in capsys.readouterr().err
    assert generate_main([str(tmp_path), "--prompt", "a", "--temperature", "-1"]) == 2
    assert "eagle3-generate: error: temperature" in capsys.readouterr().err


def test_tampered_store(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    assert convert_main([str(target), str(made)]) == 0
    database = next((made / "items").rglob("manifest.ocdbt"))
    database.write_bytes(bytes(len(database.read_bytes())))
    assert "cannot be read from" in refused([str(made)], capsys)


def test_models_that_are_not_known_and_drafts_in_the_place_of_targets(
    target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A draft is named before its tokenizer, which drafts don't have, is missed."""
    for name in DRAFTS:
        assert "config.json: this is an EAGLE-3 draft" in refused([str(ORACLES / name)], capsys)
    draft = json.dumps({"model": str(target)})
    error = refused([str(target), "--speculative-config", draft], capsys)
    assert "config.json: this is a target" in error and "not an EAGLE-3 draft" in error
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "model_type": "llava"}))
    assert "model_type must be 'kimi_k25'" in refused([str(target)], capsys)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("tokenizer_config.json", "added_tokens_decoder", [1]),
        ("tokenizer_config.json", "added_tokens_decoder", {"1": "a"}),
        ("tokenizer_config.json", "added_tokens_decoder", {"a": {"content": "a"}}),
        ("tokenizer_config.json", "added_tokens_decoder", {"1": {}}),
        ("generation_config.json", "eos_token_id", ["a", [1]]),
        ("generation_config.json", "top_k", 1e999),
    ],
)
def test_field_of_another_type(
    target: Path, capsys: pytest.CaptureFixture[str], name: str, field: str, value: object
) -> None:
    path = target / name
    fields = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**fields, field: value}))
    error = refused([str(target)], capsys)
    assert f"{name}: " in error and field in error


def test_file_that_is_nested_too_deeply(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("generation_config.json", "tokenizer_config.json", "config.json"):
        (target / name).write_text('{"a": ' * 20_000)
        error = refused([str(target)], capsys)
        assert name in error and "nested too deeply" in error
        (target / name).unlink()
        if (ORACLES / "tokenizer" / name).exists():
            shutil.copy(ORACLES / "tokenizer" / name, target)


def test_sizes_and_ports_that_cannot_be(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "262144" in refused([str(target), "--max-model-len", "300000"], capsys)
    with pytest.raises(SystemExit, match="2"):
        serve_main([str(target), "--num-gpu-blocks-override", "3"])
    assert "--num-gpu-blocks-override must be at least 65" in capsys.readouterr().err
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        assert serve_main(["--demo", "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use" in capsys.readouterr().err
