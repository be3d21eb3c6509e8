"""The benchmark when a machine is lent for minutes: what is lost, and what is carried there."""

import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eagle3_tools.checks.pool import Failure
from eagle3_tools.checks.record import Record, read_record
from eagle3_tools.kernel_bench import __main__ as command
from eagle3_tools.kernel_bench import carry as carrying
from eagle3_tools.kernel_bench import session
from eagle3_tools.kernel_bench.ahead import Ahead
from eagle3_tools.kernel_bench.ceilings import Ceilings
from eagle3_tools.kernel_bench.measure import Measured
from eagle3_tools.kernel_bench.timing import Spread, Timed
from eagle3_tools.kernel_bench.worker import Job, Opening
from eagle3_tools.kernel_cases import all_cases

ROOT = Path(__file__).parents[3]
CHEAP = "route"
"""In the names of two cases of a dry run that take no time."""


def start(record: Path, *flags: str) -> subprocess.Popen[str]:
    arguments = ["--dry-run", "--only", CHEAP, "--json", str(record), *flags]
    return subprocess.Popen(
        [sys.executable, "-m", "eagle3_tools.kernel_bench", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.long
def test_a_crash_costs_its_own_case_and_a_kill_at_any_moment_no_line(tmp_path: Path):
    path = tmp_path / "record.jsonl"
    whole = start(path, "--crash", "route ")
    printed, _ = whole.communicate(timeout=120)
    lines = read_record(path)
    assert [line["kind"] for line in lines] == ["conditions", "ceilings", *["case"] * 2, "bars"]
    cases = {line["operation"]: line for line in lines if line["kind"] == "case"}
    crashed = cases.pop("route")
    assert "SIGSEGV" in crashed["refused"] and "a rehearsed crash" in crashed["refused"]
    assert all(case["right"] and case["timed"]["us"]["median"] > 0 for case in cases.values())
    assert whole.returncode == 1 and "no time, share or ratio here means anything" in printed

    text = path.read_text()
    path.write_text(text[: random.randrange(text.index('{"kind": "case"') + 1, len(text))])
    kept = [line for line in read_record(path) if line["kind"] == "case"]
    resumed = start(path, "--resume")
    time.sleep(random.uniform(0.0, 6.0))
    resumed.kill()
    resumed.communicate()
    found = [line for line in read_record(path) if line["kind"] == "case"]
    assert found[: len(kept)] == kept
    names = [line["case"] for line in found if line["timed"]]
    assert len(names) == len(set(names))


def test_a_crash_is_recorded_and_a_resumed_run_measures_that_case_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of a session whose workers are replaced."""
    cases, spread, asked = all_cases()[:2], Spread(1.0, 0.5, 2.0), []

    def results(_: Any, jobs: list[Job], **__: Any) -> Iterator[Opening | Measured | Failure]:
        for job in jobs:
            asked.append(job.case)
            if not job.case:
                yield Opening({"device": "none"}, Ceilings(1e12, 1e12, 1e12, 1e12))
            elif job.crash:
                yield Failure("its process was ended by SIGSEGV", "a rehearsed crash")
            else:
                yield Measured(job.case, "a", 0.1, True, Timed(spread, spread))

    monkeypatch.setattr(session, "run_each", results)
    record = Record(tmp_path / "record.jsonl")
    run = session.Session(Console(file=io.StringIO()), record, cases, dry_run=True).run
    assert run(float("inf"), 1.0, crash=cases[1].name) == 1
    lines = read_record(tmp_path / "record.jsonl")
    assert [line["kind"] for line in lines] == ["conditions", "ceilings", *["case"] * 2, "bars"]
    assert lines[2]["timed"] and "SIGSEGV; a rehearsed crash" in lines[3]["refused"]
    asked.clear()
    assert run(float("inf"), 1.0, resume=True) == 0
    assert [name for name in asked if name not in ("", cases[0].name)] == [cases[1].name]


def test_a_record_is_read_up_to_a_line_that_was_cut_off(tmp_path: Path):
    path = tmp_path / "record.jsonl"
    record = Record(path)
    spread = Spread(1.0, 0.5, 2.0)
    result = Measured("a b c", "a", 0.1, True, Timed(spread, spread), 0.5, {"x": spread, "y": "no"})
    record.begin()
    record.add("case", **json.loads(json.dumps(result, default=vars)))
    (line,) = read_record(path)
    assert Measured.of_line(line) == result
    with path.open("a") as file:
        file.write('{"kind": "ca')
    assert read_record(path) == [line]
    path.write_text("not JSON\n" + path.read_text())
    with pytest.raises(ValueError, match=r"record.jsonl, line 1: expected JSON, got 'not JSON'"):
        read_record(path)


def test_programs_are_compiled_once_and_what_the_compiler_says_comes_with_the_case():
    compiled: list[str] = []

    def compile(name: str, turn: Any) -> str:
        with turn():
            compiled.append(name)
        if name == "bad":
            raise RuntimeError("no such instruction")
        return name.upper()

    ahead = Ahead(compile, threads=1)
    ahead.begin("a")
    ahead.begin("a")
    ahead.begin("bad")
    assert ahead.take("a") == "A" and compiled.count("a") == 1
    with pytest.raises(RuntimeError, match="no such instruction"):
        ahead.take("bad")


BARE = """\
import pkgutil, importlib, pallas_kernels
for found in pkgutil.walk_packages(pallas_kernels.__path__, "pallas_kernels."):
    if not found.name.startswith("eagle3_tools.aot.amd"):
        importlib.import_module(found.name)
print(pallas_kernels.__file__)
"""


@pytest.fixture
def carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Path, list[str]]:
    """The folder and what was to be downloaded, for which links to what is installed stand."""
    folder, wanted = tmp_path / "carried", []

    def download(names: list[str], wheels: Path) -> None:
        wanted.extend(name.partition("==")[0] for name in names)
        link(wanted, wheels)

    monkeypatch.setattr(carrying, "_download", download)
    assert command.main(["--carry", str(folder)]) == 0
    assert "run.sh" in capsys.readouterr().out
    return folder, wanted


def test_the_folder_to_carry_has_what_the_machine_lacks(carried: tuple[Path, list[str]]):
    folder, wanted = carried
    assert not {"jax", "numpy", "torch", "scipy", "flax"} & set(wanted) and "rich" in wanted
    with pytest.raises(FileExistsError, match="expected an empty or a new folder"):
        command.main(["--carry", str(folder)])


@pytest.mark.long
def test_the_folder_to_carry_needs_nothing_but_jax_numpy_and_torch_there(
    carried: tuple[Path, list[str]], tmp_path: Path
):
    """Links to what is installed stand for the machine's packages, too."""
    machine, (folder, _) = tmp_path / "machine", carried
    machine.mkdir()
    link(carrying._with_requirements(carrying.THERE), machine)
    paths = f"{folder}/source:{folder}/wheels:{machine}"
    run = [sys.executable, "-S", "-c", BARE]
    done = subprocess.run(
        run, cwd=tmp_path, env={"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}, capture_output=True
    )
    assert done.stdout.decode().startswith(str(folder / "source")), done.stderr.decode()


def link(names: Iterable[str], folder: Path) -> None:
    """Link the files of installed distributions into the folder."""
    for name in names:
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution(name).locate_file(top))))


def test_flags_that_do_not_fit_are_refused(capsys: pytest.CaptureFixture[str]):
    for flags, said in ((["--resume"], "--json FILE"), (["--crash", "a"], "needs --dry-run")):
        with pytest.raises(SystemExit):
            command.main(flags)
        assert said in capsys.readouterr().err
