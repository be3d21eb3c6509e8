"""The doctor names a fault with its device and the remedy."""

import json
from pathlib import Path
from typing import Any

import broken_node
import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from eagle3_tools.bench.cli import parse_bench_flags
from eagle3_tools.bench.doctor import all_reduce, examination, served
from eagle3_tools.bench.doctor.findings import each
from eagle3_tools.bench.doctor.speed import CopySpeed, speed_finding
from eagle3_tools.bench.studies import doctor

REPORT = "report.json"


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """All looks happen in this process; tests/tools/checks/test_pool.py has processes that
    crash. Calls hold shapes in the place of arrays, as for users."""
    monkeypatch.setattr(doctor, "each", lambda jobs, work, **_: (work(job) for job in jobs))
    monkeypatch.setattr(examination, "compile_quickly", lambda: None)
    monkeypatch.setattr(served, "STEPS", served.STEPS[:1])
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def examined(tmp_path: Path, work: doctor.Work) -> tuple[int, dict[str, Any], list[str]]:
    """Exit status, report and lines."""
    path = tmp_path / REPORT
    flags = parse_bench_flags(["doctor", "--demo", "--json", str(path)])
    console = Console(record=True, width=400)
    status = doctor.run(flags, console, work)
    return status, json.loads(path.read_text()), console.export_text().splitlines()


@pytest.mark.usefixtures("_here")
def test_a_broken_kernel_is_named_with_its_device_and_what_to_do(tmp_path: Path) -> None:
    status, report, lines = examined(tmp_path, broken_node.work)
    assert status == 1 and report["complete"]
    bad = [line for line in lines if line.startswith(("WRONG", "FAILED"))]
    assert len(bad) == 3
    (wrong,) = (line for line in bad if "add_norm" in line)
    assert wrong.startswith("WRONG") and ": device 1: worst error" in wrong
    assert "device 1 may be broken, and" in wrong and "--xla-kernels add_norm" in wrong
    (crashed,) = (line for line in bad if "absorb_query" in line)
    assert crashed.startswith("FAILED") and "device 0: its process was ended by SIGSEGV" in crashed
    assert bad[-1].startswith("WRONG   round of the embedded pair at TP 2: 1 of 2 answers differ")
    assert "until then: --xla-kernels" in lines[-1]
    checked = {(one["operation"], one["device"]): one for one in report["kernels"]}
    assert checked.keys() == {("add_norm", 0), ("add_norm", 1), ("absorb_query", 1)}
    assert checked["add_norm", 1]["error"] == pytest.approx(0.1, rel=0.2)
    exact = [f for f in report["findings"] if f["check"] == "all-reduce"]
    assert [f["verdict"] for f in exact] == ["ok"]


def test_an_all_reduce_that_loses_a_bit_is_named_with_its_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the second of each two devices the last element is one too large."""
    monkeypatch.setattr(all_reduce, "ELEMENTS", (256,))
    add, run = jax.lax.psum, lambda jobs: (job() for job in jobs)

    def lossy(x: Any, axis: str) -> Any:
        odd = jax.lax.axis_index(axis) % 2 == 1
        return add(x, axis) + (jnp.arange(x.shape[-1]) == 255) * odd.astype(x.dtype)

    monkeypatch.setattr(jax.lax, "psum", lossy)
    found = list(all_reduce.check_all_reduces(4, run))
    assert {finding.verdict for finding in found} == {"WRONG"}
    assert found[0].subject == "over 2 devices"
    assert found[0].seen == "bfloat16[256] differs on devices 1, 3, 5, 7"
    monkeypatch.setattr(jax.lax, "psum", add)
    found = list(all_reduce.check_all_reduces(4, run))
    assert [f"{finding.verdict} {finding.subject}" for finding in found] == [
        "ok over 2 devices",
        "ok over 4 devices",
    ]


def test_a_device_whose_memory_is_slower_than_the_others_is_named() -> None:
    assert speed_finding([5e12, 4.9e12, 5.1e12]).verdict == "ok"
    slow = speed_finding([5e12, 3e12, 5.1e12])
    assert f"{slow}".startswith("slow    speed of memory: device 1: 3.00 TB/s, the others 5.00")
    assert all(rate > 0 for rate in CopySpeed(1024)())


def test_nothing_to_run_starts_no_process() -> None:
    assert not list(each([], limit_s=1))
