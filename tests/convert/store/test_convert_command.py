"""eagle3-convert: the golden checkpoints go through it unchanged, and mistakes cost one line."""

import json
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
from oracle_files import ORACLES
from sparse_checkpoint import write_hole, write_sparse
from sweeps import sweep

from convert.conversion.cli import main
from convert.conversion.conversion import open_conversion
from convert.store.reader import open_store

QUANTISED = (
    "kimi_bf16",
    "kimi_int4_ct",
    "kimi_mxfp4_quark",
    "kimi_w4a8_quark",
    "draft_mha_d2t_bf16",
    "draft_mha_fp8_ptpc",
    "draft_mha_int4_pc_awq",
    "draft_mla_bf16",
)


@pytest.mark.parametrize("name", sweep(QUANTISED, ["kimi_int4_ct", "draft_mha_fp8_ptpc"]))
def test_a_converted_checkpoint_holds_what_the_published_one_gives(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(ORACLES / name), str(tmp_path / "made")]) == 0
    store, conversion = open_store(tmp_path / "made"), open_conversion(ORACLES / name)
    expected = {parameter.path: parameter for parameter in conversion.parameters}
    assert set(store.parameters) == set(expected) == set(conversion.variables)
    for path, parameter in expected.items():
        value, found = parameter.read(), store.read(path)
        assert (found.shape, found.dtype) == (value.shape, value.dtype)
        assert found.tobytes() == value.tobytes()
    config = tmp_path / "made" / "config.json"
    assert config.read_bytes() == (ORACLES / name / "config.json").read_bytes()
    assert main(["--verify", str(tmp_path / "made")]) == 0
    assert f"{len(expected)} parameters" in capsys.readouterr().out
    assert main(["--verify", str(ORACLES / name), str(tmp_path / "made")]) == 0


def test_gfx942_gets_its_own_floats(tmp_path: Path) -> None:
    source = ORACLES / "draft_mha_fp8_ptpc"
    assert main([str(source), str(tmp_path / "made"), "--arch", "gfx942"]) == 0
    assert main(["--verify", str(source), str(tmp_path / "made")]) == 0
    store = open_store(tmp_path / "made")
    assert store.manifest.origin.arch == "gfx942"
    for parameter in open_conversion(source).parameters:
        which = parameter.path.rpartition(".")[2]
        found = store.read(parameter.path)
        if which == "values":
            assert found.dtype == jnp.float8_e4m3fnuz
            np.testing.assert_array_equal(
                2 * found.astype(np.float64), parameter.read().astype(np.float64)
            )
        elif which == "scale":
            np.testing.assert_array_equal(found, 2 * parameter.read())


def test_what_was_assumed_is_said_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(ORACLES / "draft_mha_int4_pc"), str(tmp_path / "made")]) == 0
    assert "assuming INT4 per channel of Quark (linear order)" in capsys.readouterr().err
    options = open_store(tmp_path / "made").manifest.origin.options
    assert options["int4_order"] == "auto" and "linear" in options["assumed"][0]


@pytest.mark.parametrize(
    "name", sweep(["kimi-k2.5", "kimi-k2.5-mxfp4", "kimi-k2.5-w4a8"], ["kimi-k2.5-w4a8"])
)
def test_a_dry_run_lists_every_tensor_of_the_released_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
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


@pytest.mark.long
def test_a_dry_run_of_released_minimax_ends_with_the_published_totals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All 62 layers; behind them one tensor of each MTP module, which the listing is without."""
    source = tmp_path / "source"
    tensors = write_sparse("minimax-m2.5", source, shards=3)
    assert (len(tensors), sum(nbytes for *_, nbytes in tensors)) == (96_103, 230_121_630_720)
    extra = [f"model.layers.{layer}.eh_proj.weight" for layer in (62, 63, 64)]
    write_hole(source / "mtp.safetensors", [(name, "BF16", [8, 4], 64) for name in extra])
    index = source / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"] |= dict.fromkeys(extra, "mtp.safetensors")
    index.write_text(json.dumps(listed))
    assert main([str(source), "--dry-run"]) == 0
    lines, _, plan = capsys.readouterr().out.rpartition("Plan")
    skipped = "skipped: multi-token prediction, whose work a draft does"
    for name in extra:
        assert f"{name}  64 B  {skipped}" in lines
    rows = [[cell.strip() for cell in row.split("│")[1:4]] for row in plan.splitlines()]
    assert ["fp8_block", "95,728", "227,466,488,832"] in rows
    assert [skipped, "3", "192"] in rows
    assert ["total", "96,106", "230,121,630,912"] in rows


def test_the_plan_in_words_ends_with_the_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(ORACLES / "kimi_int4_ct"), "--dry-run", "--mesh", "tensor=2"]) == 0
    out = capsys.readouterr().out
    assert "-> layers.1.mlp.experts.gate_proj.values [6, 64, 64]" in out
    assert "-> vision_tower.encoder.blocks.0.wqkv.kernel [32, 3, 32]" in out
    assert "int4_group" in out and "242" in out.splitlines()[-2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "SRC is missing"),
        (["nowhere"], "DST is missing"),
        (["nowhere", "made"], "nowhere does not exist"),
        (["source", "."], "exists; give a new directory"),
        (["source", "made", "--json"], "--json belongs to --dry-run"),
        (["source", "made", "--item-mib", "0"], "at least 1"),
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
    capsys: pytest.CaptureFixture[str],
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


def test_a_damaged_store_fails_verification_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(ORACLES / "draft_mha_bf16"), str(tmp_path / "made")]) == 0
    file = max((tmp_path / "made" / "items").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)
    assert main(["--verify", str(tmp_path / "made")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "1 of 14 parameters" in error and "its checksum differs" in error


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(ORACLES / "draft_mha_bf16"), str(tmp_path / "made")]
    with limited_files(200_000):
        assert main(arguments) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert said.startswith("eagle3-convert: error: cannot write ")
    assert "repeat the command to resume" in said
    assert main(arguments) == 0


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
