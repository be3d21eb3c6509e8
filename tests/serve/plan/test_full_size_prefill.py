"""What makes a prefill at full size fail, what is compiled, and what is printed."""

import io
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from published_pairs import PUBLISHED
from rich.console import Console

from eagle3_tools.aot import Program
from eagle3_tools.aot.amd.code_object import GpuKernel
from eagle3_tools.aot.collectives import Collective
from eagle3_tools.aot.workers import Failure
from eagle3_tools.plan.compile.prefill import (
    PrefillReport,
    prefill_options,
    prefill_problems,
    print_prefills,
)

OPTIONS = list(prefill_options(PUBLISHED))
GATHERED = 19 << 20
HLO = """HloModule jit__prefill

ENTRY %main (Arg_0: bf16[16384,576]) -> bf16[16384,576] {
  %gathered = bf16[16384,576]{1,0} all-gather(%Arg_0), dimensions={0}
  ROOT %sum = bf16[65536,7168]{1,0} all-reduce(%gathered), to_apply=%add
}
"""
PROGRAM = Program("gfx950", HLO, [], 1000, 800, 1 << 20)


def problems(**changes: Any) -> list[str]:
    return list(prefill_problems(replace(PROGRAM, **changes), GATHERED))


def test_a_prefill_that_gathers_a_bounded_part_of_a_context_has_no_problems() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hlo": HLO.replace("16384", "262144")}, "all-gather of bf16[262144, 576], 301,989,888 B"),
        ({"temporary_bytes": 2 << 30}, "2048 MiB of temporaries"),
        ({"kernels": [GpuKernel("k", 64, 3, 0, 0, 0, 256, {})]}, "k: 3 VGPR spills"),
    ],
)
def test_each_bound_that_is_broken_is_said(changes: dict[str, Any], problem: str) -> None:
    (said,) = problems(**changes)
    assert problem in said


def test_contexts_of_the_models_length_are_compiled_divided_and_whole() -> None:
    found = [(one.gpu, one.parallel.devices, one.parallel.context_parts) for one in OPTIONS]
    assert found == [("MI355X", 8, 8), ("MI355X", 8, 1), ("MI325X", 8, 8)]
    assert {(one.max_model_len, one.page_size) for one in OPTIONS} == {(262_144, 64)}


def test_temporaries_are_printed_beside_the_plan_and_failures_behind() -> None:
    gathers = Counter({Collective("all-gather", "bf16", (16384, 576), 0): 62})
    good = PrefillReport(OPTIONS[0], 333 << 20, 82 << 20, 288 << 20, gathers, (), 99.0)
    shown = io.StringIO()
    results = [good, replace(good, failures=("too much",)), Failure("took longer than 9 s")]
    assert not print_prefills(Console(file=shown, width=250), OPTIONS, results)
    text = shown.getvalue()
    for cell in ("333", "82", "288", "18", "99"):
        assert text.count(f" {cell} ") == 2
    assert "MI355X TP8, k = 3, batch 16: too much" in text
    assert "MI325X TP8 DCP8, k = 3, batch 16: took longer than 9 s" in text
    assert print_prefills(Console(file=io.StringIO()), OPTIONS[:1], [good])
