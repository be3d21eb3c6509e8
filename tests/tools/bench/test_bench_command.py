"""The command's flags, records and exit statuses."""

import ast
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_tools.bench import studies
from eagle3_tools.bench.cli import STUDIES, main
from eagle3_tools.bench.common.command import write_record
from eagle3_tools.bench.common.conditions import conditions
from eagle3_tools.bench.common.spread import Spread
from eagle3_tools.bench.equality.ties import Difference
from eagle3_tools.bench.studies.equal import CaseResult, summarize


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["accept", "--num-speculative-tokens", "0"],
            "must be at least 1: without drafts",
        ),
        (["accept", "--num-speculative-tokens", "99"], "0..8"),
        (
            ["accept", "--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "4"],
            "--speculative-num-draft-tokens must be 2..37",
        ),
        (["accept", "somewhere"], "MODEL needs a draft"),
        (["accept", "--url", "http://a", "--exact"], "leave the options of an engine out"),
        (
            ["accept", "--speculative-config", '{"draft_tensor_parallel_size": 2}'],
            "draft_tensor_parallel_size must be 1 or --tensor-parallel-size: 1; got 2",
        ),
        (["accept", "--url", "http://a", "-tp", "2"], "leave the options of an engine out"),
        (
            ["accept", "-tp", "4", "-dcp", "3"],
            "--decode-context-parallel-size must divide --tensor-parallel-size 4; got 3",
        ),
        (["equal", "-tp", "4", "-dcp", "8"], "--decode-context-parallel-size must divide"),
        (["accept", "--temperature", "-1"], "--temperature must be 0 or more; got -1.0"),
        (["accept", "--rejection-sample-method", "synthetic"], "accept judges what the model does"),
        (["equal", "--rejection-sample-method", "synthetic"], "equal judges what the model does"),
        (["equal", "--rejection-sample-method", "standard"], "equal needs coupled"),
        (["equal", "somewhere"], "MODEL needs a draft"),
        (["equal", "m", "--speculative-config", '{"k": 3}'], "k and method are its own"),
        (["equal", "--speculative-config", '{"model": "d"}'], "--draft needs the target"),
        (["accept", "--compare-methods", "--temperature", "1"], "temperatures of its own"),
        (["accept", "--compare-methods", "--exact"], "trees and --exact out"),
        (["equal", "--draft", "somewhere"], "--draft needs the target"),
        (["accept", "--url", "x", "--demo"], "--url is a running server"),
        (["accept", "--max-tokens", "9"], "--max-tokens belongs to --data or --url"),
        (["accept", "--drop-options"], "belong to --data"),
        (["doctor", "--xla-kernels", "mla"], "--xla-kernels must be among absorb_query, "),
        (["doctor", "--demo", "--model", "m"], "--demo brings its own pair"),
        (["doctor", "--draft", "d"], "--draft needs the target"),
        (["doctor", "-tp", "0"], "must be a whole number, 1 or more; got 0"),
        (["doctor", "--speculative-eagle-topk", "2"], "-num-draft-tokens must be 2.."),
        (["gpu", "--crash", "loop"], "it needs --dry-run"),
        (["gpu", "some/checkpoint"], "unrecognized"),
        (["cpu", "--demo", "somewhere"], "--demo brings its own pair"),
        (["cpu", "--repetitions", "0"], "--repetitions: must be a whole number, 1 or more; got 0"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_checkpoint_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = str(tmp_path / "absent")
    assert main(["accept", absent, "--draft", absent]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_study_is_one_module_with_flags_run_and_tables() -> None:
    modules = {path.stem: path for path in Path(studies.__path__[0]).glob("[!_]*.py")}
    assert set(modules) == set(STUDIES)
    for path in modules.values():
        body = ast.parse(path.read_text(encoding="utf-8")).body
        names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
        names |= {a.name for node in body if isinstance(node, ast.ImportFrom) for a in node.names}
        assert names >= {"add_flags", "run", "print_result"}, path.name


def test_the_list_of_studies_imports_none_of_them() -> None:
    code = "import sys; from eagle3_tools.bench.cli import parse_bench_flags as parse\n"
    code += "try: parse(['--help'])\nexcept SystemExit: sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "accept" in done.stdout


def test_an_infinite_margin_is_null_in_json(tmp_path: Path) -> None:
    tie = Difference("r", 0, (1, None), None, math.inf, 1.0)
    case = CaseResult("k=1", False, False, 1, 0, [tie], 0, 1, 0.5)
    write_record(tmp_path / "r.json", "equal", conditions(), summarize([case], 1, 8))
    read = json.loads((tmp_path / "r.json").read_text())
    assert read["cases"][0]["differences"][0]["score_margin"] is None
    assert read["cases"][0]["differences"][0]["tokens"] == [1, None]


def test_a_spread_keeps_median_best_and_worst() -> None:
    spread = Spread.of([3.0, 1.0, 2.0, 9.0])
    assert spread == Spread(median=2.5, best=1.0, worst=9.0, count=4)
    with pytest.raises(ValueError, match="at least one sample"):
        Spread.of([])
