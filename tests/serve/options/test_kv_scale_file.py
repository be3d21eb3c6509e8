"""--kv-cache-scale: a number, or a file that is read as it was written and refused if it is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_jax.engine import KVScales
from serve.generate.flags import parse_generate_flags
from serve.options.kv_scale_file import read_kv_scales, write_kv_scales
from serve.options.serve_flags import parse_serve_flags

SCALES = KVScales((0.5, 0.25), (0.1, 3.0))
FP8 = ["--demo", "--kv-cache-dtype", "fp8", "--kv-cache-scale"]


def test_a_written_file_is_what_the_flag_reads(tmp_path: Path) -> None:
    path = tmp_path / "factors.json"
    write_kv_scales(path, SCALES, {"prompts": 3})
    assert (
        parse_serve_flags([*FP8, f"{path}"])[0].engine.kv_cache_scale
        == SCALES
        == read_kv_scales(path)
    )
    assert parse_serve_flags([*FP8, "0.5"])[0].engine.kv_cache_scale == 0.5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not valid JSON"),
        ([1, 2], "must be a JSON object with the lists"),
        ({"target": [1.0]}, "must be a JSON object with the lists"),
        ({"target": [1.0], "draft": [], "other": 1}, "must be a JSON object with the lists"),
        ({"target": 1.0, "draft": []}, "must be lists of numbers"),
        ({"target": ["1"], "draft": []}, "must be lists of numbers"),
        ({"target": [True], "draft": []}, "must be lists of numbers"),
        ({"target": [1.0, 0.0], "draft": []}, "must be positive and finite, got 0.0"),
        ({"target": [float("inf")], "draft": []}, "must be positive and finite, got inf"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: Any, said: str) -> None:
    path = tmp_path / "factors.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=said) as error:
        read_kv_scales(path)
    assert f"{path}" in f"{error.value}"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--demo", "--kv-cache-scale", "1"], "--kv-cache-dtype must be fp8"),
        ([*FP8, "-1"], "--kv-cache-scale must be positive, got -1"),
        ([*FP8, "nan"], "must be positive, got nan"),
        ([*FP8, "nowhere.json"], "a number or a file that can be read; nowhere.json: No such file"),
    ],
)
def test_a_factor_that_can_not_be_is_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_serve_flags(flags)
    assert said in " ".join(capsys.readouterr().err.split())


def test_without_a_factor_the_server_takes_1_and_offline_generation_refuses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse_serve_flags(FP8[:-1])[0].engine.kv_cache_scale == 1.0
    with pytest.raises(SystemExit):
        parse_generate_flags([*FP8[:-1], "--prompt", "a"])
    assert "fp8 needs --kv-cache-scale: measured factors" in capsys.readouterr().err
