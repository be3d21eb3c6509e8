"""The model's arithmetic against laws that hold whatever its constants are."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import Case
from eagle3_tools.kernel_model import record
from eagle3_tools.kernel_model.facts import Chain, KernelFacts, Load, LoopFacts, Work
from eagle3_tools.kernel_model.gpus import BY_ARCH, MI355X, ModelGpu
from eagle3_tools.kernel_model.named import named
from eagle3_tools.kernel_model.predict import Call, Prediction, predict, resident_programs
from eagle3_tools.kernel_model.record import (
    FOLDER,
    CaseFacts,
    recorded,
    recorded_with,
    write_record,
)

H200 = "docs/benchmarks/h200.json"
MEASURED = ("grouped_mlp", "logits_argmax", "gqa_decode", "joint_matmul", "gated_matmul")
IN_A_CHAIN = 6e-6
"""Seconds of a short launch in the benchmark's chain, which the engine's rounds do not have."""
STEP, WARPS = 4096, 4
WEIGHTS = MI355X.units * WARPS * STEP * 100
"""Bytes that a program a unit reads in 100 steps."""


def kernel(latencies: float = 1.0, programs: int = MI355X.units, **work: Any) -> KernelFacts:
    """A loop that reads STEP bytes a wave and trip and waits so often for memory."""
    loop = Work((Load(0, 16, STEP),), Chain(0.0, 0.0, latencies), **work)
    outside = Work((), Chain(0.0, 0.0, 0.0))
    return KernelFacts(
        "k", "gfx950", (programs, 1, 1), WARPS, 2, 512, 0, {0: WEIGHTS}, 0,
        (LoopFacts(loop, None),), outside,
    )  # fmt: skip


def run(facts: KernelFacts, gpu: ModelGpu = MI355X) -> Prediction:
    return predict(facts, gpu, Call())


def test_enough_bytes_in_flight_keep_memory_busy_and_a_fourth_of_them_do_not() -> None:
    """Little's law: what is reached of the rate is what is in flight of what is needed."""
    needed = MI355X.needed / (WARPS * STEP)
    plenty, few = run(kernel(0.2 / needed)), run(kernel(4.0 / needed))
    assert plenty.limit == "HBM" and plenty.share == pytest.approx(MI355X.reached, rel=0.05)
    assert few.limit == "latency" and few.share == pytest.approx(0.25, rel=0.01)
    assert few.in_flight == pytest.approx(MI355X.needed / 4)


def test_limits_that_are_as_long_as_each_other_add_up_to_a_fifth() -> None:
    alone = run(kernel(1e-9))
    clocks = round(alone.parts["HBM"] * MI355X.hz / 100)
    both = run(kernel(1e-9, vector=clocks))
    assert both.parts["vector"] == pytest.approx(both.parts["HBM"], rel=0.01)
    assert 1.1 < both.seconds / alone.seconds < 2**0.25


def test_programs_without_work_take_their_dispatch() -> None:
    ended = predict(kernel(programs=2 * MI355X.units), MI355X, Call(live=0.5))
    alone = run(kernel()).seconds
    assert ended.seconds - alone == pytest.approx(MI355X.units / MI355X.dispatch)


def test_programs_that_do_not_fit_come_one_after_another() -> None:
    """Registers for one program a unit; one more than there are units takes a second round."""
    facts = kernel(50.0)
    one = run(facts)
    assert one.resident == 1 and one.rounds == 1
    twice = replace(facts, grid=(2 * MI355X.units, 1, 1))
    assert run(twice).rounds == 2
    assert run(twice).seconds == pytest.approx(one.seconds), "of half as many steps each"
    more = replace(facts, grid=(MI355X.units + 1, 1, 1), loops=fixed(facts, 100))
    assert run(more).seconds == pytest.approx(
        2 * run(replace(facts, loops=fixed(facts, 100))).seconds
    )


def fixed(facts: KernelFacts, trips: int) -> tuple[LoopFacts, ...]:
    return tuple(replace(loop, trips=trips) for loop in facts.loops)


@pytest.mark.parametrize(
    ("unit", "limit"), [("vector", "vector"), ("matrix", "matrix"), ("lds", "LDS")]
)
def test_the_unit_with_most_work_is_the_limit(unit: str, limit: str) -> None:
    found = run(kernel(1.0, **{unit: 10**7}))
    assert found.limit == limit and found.seconds > run(kernel(1.0)).seconds


def test_residency_is_that_of_registers_waves_and_local_memory() -> None:
    facts = kernel()
    for registers, lds, expected in (
        *((512, 0, 1), (256, 0, 2), (249, 0, 2), (128, 0, 4), (16, 0, 8)),
        *((16, 160 * 1024, 1), (16, 64 * 1024, 2), (512, 1024, 1)),
    ):
        assert resident_programs(replace(facts, registers=registers, lds=lds), MI355X) == expected


def test_an_array_that_all_programs_read_is_read_from_memory_once_and_loaded_by_each() -> None:
    facts = kernel(0.01)
    (loop,) = facts.loops
    rows = Load(1, 16, STEP)
    both = replace(loop, work=replace(loop.work, loads=(*loop.work.loads, rows)))
    shared = replace(facts, loops=(both,), arrays={**facts.arrays, 1: WARPS * STEP * 100})
    assert run(shared).parts["HBM"] == pytest.approx(run(facts).parts["HBM"])
    assert run(shared).parts["caches"] == pytest.approx(2 * run(facts).parts["caches"])


def test_alternatives_over_two_arrays_take_as_long_as_one_over_both() -> None:
    facts = kernel(3.0)
    (loop,) = facts.loops
    parts = tuple(
        replace(loop, trips=100, work=replace(loop.work, loads=(Load(array, 16, STEP),)))
        for array in (0, 1)
    )
    split = replace(facts, loops=parts, arrays={0: WEIGHTS * 3 // 4, 1: WEIGHTS // 4})
    assert run(split).seconds == pytest.approx(run(facts).seconds)


def twice(work: Work) -> Work:
    """Two trips as one."""
    return replace(
        work,
        loads=tuple(replace(load, nbytes=2 * load.nbytes) for load in work.loads),
        chain=Chain(*(2 * part for part in asdict(work.chain).values())),
        **{name: 2 * getattr(work, name) for name in ("matrix", "vector", "lds")},
    )


@pytest.mark.parametrize("tokens", ["minimax.attention@tp4 q4", "draft_mha.attention@tp4 q1"])
def test_of_two_loops_over_one_array_the_one_without_masks_reads_it(tokens: str) -> None:
    """Attention recorded on MI325X: masks are vector instructions. Neither how long its
    trips take nor how much they read says which loop it is."""
    attend = recorded("gfx942")[f"gqa_decode {tokens}_8.5k_page64"].kernels[0]
    plain, masked = sorted(attend.loops, key=lambda loop: loop.work.vector)
    slow = replace(masked, work=replace(masked.work, chain=Chain(1e5, 1e5, 1.0)))
    gpu = BY_ARCH["gfx942"]
    found = run(attend, gpu)
    assert run(replace(attend, loops=(slow, plain)), gpu).steps == pytest.approx(found.steps)
    double = replace(plain, work=twice(plain.work))
    for loops in ((double, masked), (masked, double)):
        other = run(replace(attend, loops=loops), gpu)
        assert other.steps == pytest.approx((found.steps - 1) / 2 + 1)
        assert other.seconds == pytest.approx(found.seconds, rel=0.01)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    cases = [CaseFacts(name, 5.0, 0.5, 1.0, (kernel(1 / 3, vector=7),)) for name in ("b", "a")]
    write_record("gfx950", cases[:1], tmp_path)
    write_record("gfx950", cases, tmp_path)
    found = recorded("gfx950", tmp_path)
    assert list(found) == ["a", "b"]
    for case in cases:
        assert found[case.name].seconds(MI355X) == pytest.approx(case.seconds(MI355X), rel=1e-5)
        assert asdict(replace(found[case.name], kernels=())) == asdict(replace(case, kernels=()))
    assert recorded("gfx942", tmp_path) == {}


def test_another_version_of_jax_adds_a_record_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for jax, name in (("1", "a"), ("2", "b"), ("1", "c")):
        monkeypatch.setattr(record, "version", lambda _, jax=jax: jax)
        case = CaseFacts(name, 5.0, 0.5, 1.0, (kernel(1 / 3, vector=7),))
        write_record("gfx950", [case], tmp_path)
    for jax, names in (("1", "ac"), ("2", "acb"), ("3", "ac")):
        monkeypatch.setattr(record, "version", lambda _, jax=jax: jax)
        recorded.cache_clear()
        assert "".join(recorded("gfx950", tmp_path)) == names
        assert recorded_with("gfx950", tmp_path) == "1"


@pytest.fixture(scope="module")
def every_case() -> list[Case]:
    return all_cases()


@pytest.mark.parametrize("arch", list(BY_ARCH))
def test_every_named_case_is_recorded_and_no_share_is_above_what_memory_reaches(
    arch: str, every_case: list[Case]
) -> None:
    gpu, found = BY_ARCH[arch], recorded(arch, FOLDER)
    assert set(found) == {case.name for case in named(every_case)}
    floors = {case.name: case.bytes_moved for case in every_case}
    for name, case in found.items():
        assert 0 <= case.share(gpu) <= gpu.reached + 0.01, name
        assert case.floor == floors[name]
        assert all(kernel.arch == arch for kernel in case.kernels)


@pytest.mark.parametrize("operation", MEASURED)
def test_an_h200_took_what_the_model_says_of_streaming_kernels(operation: str) -> None:
    """A change of the model is judged by these times, not by what it was meant to do."""
    gpu = BY_ARCH["sm_90"]
    measured = json.loads(Path(H200).read_text(encoding="utf-8"))["alone"]
    ratios = []
    for name in (name for name in measured if name.startswith(f"{operation} ")):
        found = recorded("sm_90")[name].predictions(gpu)
        seconds = sum(kernel.seconds + IN_A_CHAIN for kernel in found)
        ratios.append(seconds / (measured[name]["us"]["median"] * 1e-6))
    assert len(ratios) >= 4
    assert 0.89 < median(ratios) < 1.1 and min(ratios) > 0.6 and max(ratios) < 1.2
