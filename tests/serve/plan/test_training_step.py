"""A training step's programs at full size: which are compiled, and what their check refuses."""

import io
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from published_pairs import PUBLISHED
from rich.console import Console

from eagle3_tools.aot import Program
from eagle3_tools.aot.amd.code_object import GpuKernel
from eagle3_tools.aot.collectives import Collective
from eagle3_tools.aot.workers import Failure
from eagle3_tools.plan.compile.training_problems import collective_problems, training_problems
from eagle3_tools.plan.compile.training_programs import training_programs
from eagle3_tools.plan.compile.training_report import Job, StepReport
from eagle3_tools.plan.compile.training_step import DRAFTS, TARGETS, step_jobs, step_options
from eagle3_tools.plan.compile.training_table import held_bytes, print_steps
from eagle3_tools.plan.planner import read_pair
from eagle3_tools.plan.training.model import TrainingPlan

OPTIONS = step_options(PUBLISHED, TARGETS[0], DRAFTS[0])


def test_what_is_compiled_for_one_pair_holds_for_all_four() -> None:
    """A target's pass has the same shapes beside both drafts, an update beside both targets."""
    compiled = {job.part: Counter[str]() for job in step_jobs(PUBLISHED)}
    for target in TARGETS:
        for draft in DRAFTS:
            options = step_options(PUBLISHED, target, draft)
            pair = read_pair(options.pair)
            programs = training_programs(options, pair, "gfx950", jax.devices())
            for part, program in programs.items():
                shapes = str(jax.tree.leaves(program.shapes))
                compiled[part][f"{target if part == 'features' else draft}: {shapes}"] += 1
    assert [list(found.values()) for found in compiled.values()] == [[2, 2], [2, 2]]


PLAN = TrainingPlan(OPTIONS, read_pair(OPTIONS.pair))
SUM = Collective("all-reduce", "bf16", (1, 2048, 7168), 0)
HLO = """HloModule jit_run

ENTRY %main (Arg_0: bf16[7168,640]) -> bf16[7168,640] {
  ROOT %out = bf16[2048,640]{1,0} fusion(%Arg_0), kind=kLoop, calls=%fused_computation
}
"""
GIVEN, TAKEN = (sum(found("features").values()) for found in (PLAN.arguments, PLAN.temporaries))
PROGRAM = Program("gfx950", HLO, [], GIVEN, 800, TAKEN)
WEIGHTS = [jax.ShapeDtypeStruct((7168, 640), jnp.bfloat16)]


def problems(**changes: object) -> list[str]:
    return list(training_problems(PLAN, "features", replace(PROGRAM, **changes), WEIGHTS, 800))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"argument_bytes": int(1.02 * GIVEN)}, "B of arguments"),
        ({"argument_bytes": int(0.98 * GIVEN)}, "B of arguments"),
        ({"temporary_bytes": int(1.06 * TAKEN)}, "B of temporaries"),
        ({"alias_bytes": 799}, "799 B of 800 donated are written in place"),
        ({"hlo": HLO.replace("2048,640", "7168,640")}, "out makes bf16[7168, 640], as large"),
        ({"kernels": [GpuKernel("k", 64, 3, 0, 0, 0, 256, {})]}, "k: 3 VGPR spills"),
    ],
)
def test_each_bound_that_is_broken_is_said(changes: dict[str, object], problem: str) -> None:
    assert problems() == []
    (said,) = problems(**changes)
    assert problem in said


def test_logits_and_a_third_sum_a_layer_are_said() -> None:
    sums = [SUM] * (2 * 61 + 1)
    assert list(collective_problems(PLAN, "features", sums)) == []
    (said,) = collective_problems(PLAN, "features", [*sums, SUM])
    assert said == "124 sums of hidden states, 123 would do"
    logits = Collective("all-gather", "f32", (1, 256, 163840), 80)
    (said,) = collective_problems(PLAN, "update", [SUM, logits])
    assert said == "all-gather of f32[1, 256, 163840]"


def of(width: int) -> Collective:
    """A sum over every token of a step."""
    return Collective("all-reduce", "bf16", (20480, width), 0)


def test_an_update_adds_up_its_drafts_own_widths_and_no_others() -> None:
    compared = Collective("all-reduce", "bf16", (4 * 256 * 7168,), 80)
    latents = Collective("all-reduce", "bf16", (20480 * 576,), 0)
    heads = [of(7168), of(14336), compared]
    assert list(collective_problems(PLAN, "update", heads)) == []
    options = step_options(PUBLISHED, TARGETS[0], DRAFTS[1])
    plan = TrainingPlan(options, read_pair(options.pair))
    assert list(collective_problems(plan, "update", [*heads, of(1536), latents])) == []
    for refused in (of(1536), latents, of(20480), replace(of(14336), kind="all-gather")):
        (said,) = collective_problems(PLAN, "update", [refused])
        assert said == f"{refused.kind} of bf16{list(refused.shape)}"
    assert list(collective_problems(PLAN, "features", [of(14336)])) == [
        "all-reduce of bf16[20480, 14336]"
    ]


def report(job: Job, **changes: object) -> StepReport:
    found = StepReport(
        job=job,
        argument_bytes=70 << 30,
        planned_arguments=70 << 30,
        shared_bytes=0,
        temporary_bytes=2 << 30,
        planned_temporaries=4 << 30,
        donated_bytes=0,
        alias_bytes=0,
        launches=1111,
        collectives=Counter({SUM: 123}),
        failures=(),
        seconds=99.0,
        peak_bytes=1 << 30,
    )
    return replace(found, **changes)


def test_the_tables_have_programs_and_pairs_and_say_what_failed() -> None:
    jobs = list(step_jobs(PUBLISHED))
    results = [report(job) for job in jobs]
    update = replace(
        results[2], argument_bytes=9 << 30, shared_bytes=1 << 30, temporary_bytes=3 << 30
    )
    assert held_bytes(results[0], update) == (70 + 9 - 1 + 3) << 30
    shown = io.StringIO()
    assert print_steps(Console(file=shown, width=200), jobs, [*results[:2], update, results[3]])
    text = shown.getvalue()
    assert "123 x all-reduce bf16[1, 2048, 7168], 29,360,128 B, each as the data say times" in text
    assert text.count("81.0") == 2 and text.count("142.0") == 2 and text.count("259.2") == 4
    for spoiled, said in (
        (report(jobs[3], failures=("a spill",)), "the update, kimi-k2.5-eagle3-mla: a spill"),
        (Failure("took longer than 9 s"), "the update, kimi-k2.5-eagle3-mla: took longer"),
        (report(jobs[3], argument_bytes=200 << 30), "B, more than 278,"),
    ):
        shown = io.StringIO()
        assert not print_steps(Console(file=shown, width=200), jobs, [*results[:3], spoiled])
        assert "FAILED the" in shown.getvalue() and said in shown.getvalue()
