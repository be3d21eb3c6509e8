"""The compile check against kernels that are slow on purpose, and the facts it judges by."""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from halved import with_half_the_stages
from small_kernels import INPUTS, OUTPUTS, matmul, small_case

from eagle3_tools.aot import check as checking
from eagle3_tools.aot import speed
from eagle3_tools.aot.check import check
from eagle3_tools.aot.speed import OF_ANOTHER_COMPILER, TOLERANCE, share_problems
from eagle3_tools.kernel_cases.case import Case
from eagle3_tools.kernel_model.gpus import BY_ARCH
from eagle3_tools.kernel_model.record import CaseFacts, recorded, recorded_with, write_record

GOOD = small_case(matmul(64, stages=3))


@pytest.fixture(scope="module")
def facts(rocm_compiler: None) -> CaseFacts:
    """Of the good kernel on MI355X."""
    found = check(GOOD, "gfx950", facts=True).facts
    assert found is not None
    return found


def test_the_facts_are_those_of_the_kernel_that_was_written(facts: CaseFacts):
    """Tiles of 64 x 64, 64 inputs a step: 8 KiB of each array a step, by four waves."""
    (kernel,) = facts.kernels
    assert kernel.grid == (4, 16, 1) and kernel.warps == 4 and kernel.stages == 3
    assert set(kernel.arrays.values()) == {2 * 256 * INPUTS, 2 * INPUTS * OUTPUTS}
    (loop,) = kernel.loops
    assert loop.trips is not None
    loaded = sum(load.nbytes for load in loop.work.loads)
    steps = loaded * kernel.warps / (2 * 64 * 64 * 2)
    assert steps == int(steps) and INPUTS // 64 - 3 * steps <= loop.trips * steps <= INPUTS // 64
    assert {load.width for load in loop.work.loads} == {16}
    flop = 2 * 64 * 64 * 64 * steps
    assert loop.work.matrix == flop / (4096 / 4) / kernel.warps


def test_less_stages_wait_longer_and_fail_against_the_record(facts: CaseFacts):
    slower = check(replace(GOOD, run=matmul(64, stages=1)), "gfx950", facts=True).facts
    assert slower is not None
    mine, others = facts.kernels[0].main.chain, slower.kernels[0].main.chain
    assert others.latencies > 1.5 * mine.latencies
    (problem,) = share_problems(slower, facts, "gfx950")
    assert "recorded" in problem and "--record" in problem and "small_matmul" in problem
    assert share_problems(facts, slower, "gfx950") == []
    assert share_problems(facts, facts, "gfx950") == []


def test_a_case_of_the_record_is_compared_with_it(
    facts: CaseFacts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def run(case: Case) -> tuple[str, ...]:
        return check(case, "gfx950").problems

    write_record("gfx950", [facts], tmp_path)
    monkeypatch.setattr(checking, "recorded", lambda arch: recorded(arch, tmp_path))
    assert run(GOOD) == ()
    (problem,) = run(replace(GOOD, run=matmul(64, stages=1)))
    assert "predicted share" in problem
    assert TOLERANCE < 0.1


def test_code_of_another_compiler_may_be_a_tenth_slower(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, facts: CaseFacts
):
    write_record("gfx950", [facts], tmp_path)
    assert recorded_with("gfx950", tmp_path) == version("jax")
    for recorded_by, tolerance in ((version("jax"), TOLERANCE), ("0.1", OF_ANOTHER_COMPILER)):
        monkeypatch.setattr(speed, "recorded_with", lambda _, by=recorded_by: by)
        assert speed.tolerance_for("gfx950") == tolerance
    (kernel,) = facts.kernels
    chain = kernel.main.chain
    loop = replace(kernel.main, chain=replace(chain, latencies=1.08 * chain.latencies))
    loops = tuple(replace(one, work=loop) for one in kernel.loops)
    slower = replace(facts, kernels=(replace(kernel, loops=loops),))
    share = slower.share(BY_ARCH["gfx950"]) / facts.share(BY_ARCH["gfx950"])
    assert 1 - OF_ANOTHER_COMPILER < share < 1 - TOLERANCE
    assert len(share_problems(slower, facts, "gfx950")) == 1
    assert share_problems(slower, facts, "gfx950", OF_ANOTHER_COMPILER) == []


@pytest.mark.usefixtures("no_jaxtyping")
@pytest.mark.parametrize(
    ("arch", "name", "problem"),
    [
        ("gfx950", "mla_decode kimi.attention@tp4 q4_8.5k_page64_values", "predicted share"),
        ("gfx942", "fp8_matmul draft_mha.down@tp4 ptpc rows16", "predicted share"),
        ("gfx950", "logits_argmax kimi.lm_head@tp4 ptpc rows16", "1 stages, recorded 2"),
    ],
)
def test_a_kernel_of_ours_with_half_its_stages_fails(
    rocm_compiler: None, arch: str, name: str, problem: str
):
    """Also where the model sees another limit."""
    assert problem in with_half_the_stages(name, arch)
