"""The page of a sweep: complete in itself, and honest about what was made up."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_sweep_result import OUTCOMES, answered, result_of

from eagle3_tools.bench.cli import main
from eagle3_tools.bench.sweep.measure import write_result
from eagle3_tools.bench.sweep.report import read_results, write_report

MADE_UP = [answered(0.1, [0.2, 0.2], "abcab", 5, synthetic=2.88)] * 3


def results_in(directory: Path, *more: dict[str, Any]) -> None:
    plain = result_of(*OUTCOMES[:2], OUTCOMES[0], counts=None)
    plain["eagle3"]["configuration"] = "plain & <simple>"
    results = [plain, result_of(*OUTCOMES[:2], OUTCOMES[0]), *more]
    for i, result in enumerate(results):
        # The writer names files by configuration, which here is not fit for one.
        name = f"r{i}_seed0.json"
        (directory / name).write_text(json.dumps({**result, "max_concurrency": 4 + 4 * (i % 2)}))


def test_the_page_needs_nothing_else_and_figures_are_files_too(tmp_path: Path) -> None:
    results_in(tmp_path)
    page = write_report(read_results([tmp_path]), tmp_path / "out").read_text()
    assert not re.search(r'(?:src|href)="(?!#)', page.replace("xlink:", ""))
    assert "@import" not in page and "<script" not in page
    assert page.count("<svg") == 2 and page.count("plain &amp; &lt;simple&gt;") >= 3
    assert "<simple>" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert "output_tput_per_gpu" in page and "0.80 0.50 0.20" in page
    assert 'class="warning"' not in page
    for name in ("throughput_isl96_osl32", "acceptance"):
        ElementTree.parse(tmp_path / "out" / f"{name}.svg")
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_synthetic_and_failed_runs_are_marked_and_their_acceptance_is_not_drawn(
    tmp_path: Path,
) -> None:
    made_up, failed = result_of(*MADE_UP), result_of(*OUTCOMES, counts=None)
    made_up["eagle3"]["configuration"] = "golden3"
    write_result(tmp_path, made_up)
    write_result(tmp_path, failed)
    page = write_report(read_results([tmp_path]), tmp_path).read_text()
    assert "Synthetic acceptance: throughput only" in page and "1 requests failed" in page
    assert "golden3*" in page and "2.50 (made up)" in page
    assert page.count("<svg") == 1 and "synthetic, 2.88" in page


def test_directories_without_results_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", f"{tmp_path}"]) == 2
    (tmp_path / "x_seed0.json").write_text("{}")
    assert main(["report", f"{tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert "no results" in error and "is no result of eagle3-bench sweep" in error
