"""The matrix: what it stands for, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.inferencex.__main__ import main
from docs.inferencex.matrix import MATRIX, Job, SearchPoint, jobs, read_matrix

LENGTHS = {("1024", "1024"), ("1024", "8192"), ("8192", "1024")}


def every_job() -> dict[str, list[Job]]:
    return {key: list(jobs(key, entry)) for key, entry in read_matrix().items()}


def test_every_entry_runs_all_lengths_on_four_and_on_eight_gpus() -> None:
    for found in every_job().values():
        variables = [job.variables for job in found]
        assert {(v["ISL"], v["OSL"]) for v in variables} == LENGTHS
        assert {(v["TP"], v["EP_SIZE"]) for v in variables} == {("4", "4"), ("8", "8")}
        assert {v["CONC"] for v in variables} == {"4", "8", "16", "32", "64"}
        assert all(int(v["MAX_MODEL_LEN"]) > int(v["ISL"]) + int(v["OSL"]) for v in variables)


def test_no_two_jobs_write_the_same_result() -> None:
    names = [job.variables["RESULT_FILENAME"] for found in every_job().values() for job in found]
    assert len(names) == len(set(names)) == 150


def test_only_entries_with_a_draft_name_themselves_so() -> None:
    for key, found in every_job().items():
        speculative = {job.variables["SPEC_DECODING"] == "mtp" for job in found}
        suffixes = {job.launcher.stem.endswith("_mtp") for job in found}
        assert speculative == suffixes == {key.endswith("-mtp")}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"conc-start": 4, "conc-end": 64}, [4, 8, 16, 32, 64]),
        ({"conc-start": 4, "conc-end": 20}, [4, 8, 16, 20]),
        ({"conc-start": 3, "conc-end": 3}, [3]),
        ({"conc-list": [7, 2]}, [7, 2]),
    ],
)
def test_concurrency_doubles_up_to_its_end(fields: dict[str, Any], expected: list[int]) -> None:
    assert SearchPoint.model_validate({"tp": 4} | fields).concurrencies == expected


def edited(tmp_path: Path, point: dict[str, Any], entry: dict[str, Any]) -> Path:
    """The first entry of the matrix with changes to it and to its first search point."""
    key, first = next(iter(yaml.safe_load(MATRIX.read_text()).items()))
    first["scenarios"]["fixed-seq-len"][0]["search-space"][0] |= point
    path = tmp_path / "matrix.yaml"
    path.write_text(yaml.safe_dump({key: first | entry}))
    return path


@pytest.mark.parametrize(
    ("point", "entry", "naming"),
    [
        ({"spec-decoding": "eagle3"}, {}, "'mtp', 'draft_model' or 'none'"),
        ({"conc": 4}, {}, "conc"),
        ({"ep": 2}, {}, "ep must be 1 or tp = 4; got 2"),
        ({"tp": "4"}, {}, "valid integer"),
        ({"dp-attn": True}, {}, "dp-attn"),
        ({"conc-list": [1]}, {}, "conc-list, or conc-start"),
        ({"conc-start": 128}, {}, "must be a range; got (128, 64)"),
        ({}, {"nodes": 2}, "nodes"),
        ({}, {"multinode": True}, "multinode"),
        ({}, {"precision": "bf16"}, "no launcher kimik2.5_bf16_mi355x_jax.sh"),
        ({"spec-decoding": "mtp"}, {"model-prefix": "k"}, "no launcher k_fp4_mi355x_jax_mtp.sh"),
    ],
)
def test_what_the_matrix_can_not_mean_is_named(
    point: dict[str, Any],
    entry: dict[str, Any],
    naming: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(edited(tmp_path, point, entry))]) == 2
    assert naming in capsys.readouterr().err
