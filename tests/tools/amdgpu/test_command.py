"""Jobs, errors and reports of `python -m eagle3_tools.amdgpu`."""

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")
from eagle3_tools.amdgpu.__main__ import main
from eagle3_tools.amdgpu.check import Checked
from eagle3_tools.amdgpu.emulator.launch import LaunchCounts
from eagle3_tools.amdgpu.jobs import jobs_for
from eagle3_tools.amdgpu.report import by_class, summary, write_record
from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import AMD

COUNTS = LaunchCounts(2, 8, Counter({"v_add_f32": 16, "s_mov_b32": 8, "ds_read_b32": 3}))
RAN = Checked("a case", "gfx950", (), (("kernel", COUNTS),), frozenset({"v_add_f32", "s_nop"}))


def test_the_short_form_has_one_small_case_of_each_operation() -> None:
    short, long = jobs_for(AMD, "", True), jobs_for(AMD, "", False)
    operations = {case.operation for case in all_cases() if "gfx950" in case.matrix}
    assert sorted(job.name.split()[0] for job in short) == sorted(operations)
    assert {job.check.__name__ for job in short} == {"check_named"}
    assert sum(job.check.__name__ == "check_round" for job in long) == 4
    assert sum(job.check.__name__ == "check_tower" for job in long) == len(AMD)
    assert sum(job.check.__name__ == "check_full_size_code" for job in long) == 18


def test_a_name_that_no_case_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "no such operation"]) == 2
    assert capsys.readouterr().err == "no case is called like that\n"


def test_what_failed_and_what_never_ran_is_said() -> None:
    failed = Checked("another", "gfx942", ("far off",))
    said = summary([RAN, failed], 1.0)
    assert said[0] == "another on gfx942: far off"
    assert "never executed: s_nop" in said
    assert said[-1].startswith("2 programs, 1 of them executed, 1 failed; 27 wave instructions")


def test_a_launch_is_recorded_by_class(tmp_path: Path) -> None:
    write_record(tmp_path / "record.json", [RAN, Checked("code alone", "gfx950", ())])
    (entry,) = json.loads((tmp_path / "record.json").read_text())
    (launch,) = entry["launches"]
    assert launch["wave_instructions"] == by_class(COUNTS.instructions)
    assert launch["wave_instructions"]["LDS"] == 3 and launch["waves"] == 8
