"""Checks of programs compiled at full size refuse faulty rounds, prefills, the vision tower and
training steps, and print rounds."""

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from published_pairs import PUBLISHED, draft, published, target, training_plan
from rich.console import Console

from eagle3_jax.config.vision import VisionConfig
from eagle3_tools.aot import Program
from eagle3_tools.aot.amd.code_object import GpuKernel
from eagle3_tools.aot.collectives import Collective
from eagle3_tools.aot.launches import Launch, count
from eagle3_tools.checks.pool import Failure
from eagle3_tools.plan.compile import prefill, tower
from eagle3_tools.plan.compile.compiled_round import CompiledRound, RoundShape
from eagle3_tools.plan.compile.full_size import (
    collective_problems,
    full_size_problems,
    launch_problems,
)
from eagle3_tools.plan.compile.full_size_pairs import full_size_options, print_rounds
from eagle3_tools.plan.compile.layer_launches import (
    MOST_LAUNCHES,
    launches_of_layers,
    round_failures,
)
from eagle3_tools.plan.compile.report import ProgramReport, refusals
from eagle3_tools.plan.compile.training_step import DRAFTS, training_problems
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.planner import AbstractPair
from pallas_kernels import gpu
from pallas_kernels.dispatch import choose

OPTIONS = next(full_size_options(PUBLISHED))
FP8, MLA = "kimi-k2.5-eagle3-fp8", "kimi-k2.5-eagle3-mla"
DIVIDED = replace(OPTIONS, parallel=Parallelism(8, 8, context_parts=8))
VISION = VisionConfig.from_hf(published("kimi-k2.5-mxfp4", "config"))
GATHERED = 19 << 20
"""Bytes that a prefill may gather at a time."""


def pair_of(name: str = FP8) -> AbstractPair:
    return AbstractPair(target("kimi-k2.5-mxfp4"), draft(name))


def hlo(*lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    head = "HloModule jit_run\n\nENTRY %main (Arg_0: bf16[64,7168]) -> bf16[64,7168] {"
    return f"{head}\n{body}\n}}\n"


def fusion(shape: str) -> str:
    called = "fusion(%Arg_0), kind=kLoop, calls=%fused_computation"
    return f"%hidden = bf16[{shape}]{{1,0}} {called}"


def summed(shape: str) -> str:
    return f"ROOT %out = bf16[{shape}]{{1,0}} all-reduce(%Arg_0), to_apply=%add"


def gathered(rows: int) -> str:
    return f"%gathered = bf16[{rows},576]{{1,0}} all-gather(%Arg_0), dimensions={{0}}"


ROUND = Program("gfx950", hlo(fusion("256,7168"), summed("64,7168")), [], 1000, 800, 1 << 20)
PREFILL = replace(ROUND, hlo=hlo(gathered(16384), summed("65536,7168")))
TOWER = replace(ROUND, hlo=hlo(f"ROOT {fusion('4096,1152')}"), temporary_bytes=500)


def weight(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def of_round(planned_state: int = 800, **changes: Any) -> list[str]:
    compiled = CompiledRound(replace(ROUND, **changes), [weight(7168, 256)], 800)
    return list(full_size_problems(OPTIONS, pair_of(), compiled, 1000, planned_state))


def of_prefill(**changes: Any) -> list[str]:
    return list(prefill.prefill_problems(replace(PREFILL, **changes), GATHERED))


def of_tower(per_block: float = 8, **changes: Any) -> list[str]:
    job, program = tower.Job(Path(), "gfx950", 4096), replace(TOWER, **changes)
    return list(tower.tower_problems(job, VISION, program, [weight(1152, 4304)], 500, per_block))


def of_step(arguments: float = 1, temporaries: float = 1, **changes: Any) -> list[str]:
    """Of the target's pass before an update, given these parts of the planned bytes."""
    plan = training_plan(DRAFTS[0])
    given = {
        "hlo": hlo(fusion("2048,640")),
        "argument_bytes": int(arguments * sum(plan.arguments("features").values())),
        "temporary_bytes": int(temporaries * sum(plan.temporaries("features").values())),
    }
    program = replace(ROUND, **given | changes)
    return list(training_problems(plan, "features", program, [weight(7168, 640)], 800))


def test_hidden_states_are_no_weights_and_arguments_may_differ_by_a_percent() -> None:
    assert of_round() == of_round(argument_bytes=1010) == of_round(argument_bytes=990) == []
    assert of_tower() == of_tower(temporary_bytes=505) == []


SPILL = {"kernels": [GpuKernel("k", 64, 3, 0, 12, 0, 256, {})]}


@pytest.mark.parametrize(
    ("check", "changes", "problem"),
    [
        (of_round, {"argument_bytes": 1011}, "1,011 B of arguments, 1,000 were planned"),
        (of_round, {"temporary_bytes": 2 << 30}, "2048 MiB of temporaries"),
        (of_round, {"alias_bytes": 799}, "799 B of 800 donated are written in place"),
        (of_round, {"hlo": hlo(fusion("7168,256"))}, "hidden makes bf16[7168, 256], as large"),
        (of_round, SPILL, "k: 3 VGPR spills, 12 B scratch"),
        (of_round, {"hlo": hlo(summed("163840,64"))}, "all-reduce of bf16[163840, 64]"),
        (of_round, {"planned_state": 100}, "800 B of pools and slots, 100 were planned"),
        (of_prefill, {"hlo": hlo(gathered(262144))}, "bf16[262144, 576], 301,989,888 B"),
        (of_prefill, {"temporary_bytes": 2 << 30}, "2048 MiB of temporaries"),
        (of_prefill, SPILL, "k: 3 VGPR spills, 12 B scratch"),
        (of_tower, {"per_block": 9}, "9 launches a block, 8 would do"),
        (of_tower, {"temporary_bytes": 506}, "506 B of temporaries, 500 were planned"),
        (of_tower, {"hlo": hlo(f"ROOT {fusion('4304,1152')}")}, "as large as a weight"),
        (of_tower, SPILL, "k: 3 VGPR spills, 12 B scratch"),
        (of_step, {"arguments": 1.02}, "B of arguments"),
        (of_step, {"arguments": 0.98}, "B of arguments"),
        (of_step, {"temporaries": 1.06}, "B of temporaries"),
        (of_step, {"alias_bytes": 799}, "799 B of 800 donated are written in place"),
        (of_step, {"hlo": hlo(fusion("7168,640"))}, "hidden makes bf16[7168, 640], as large"),
        (of_step, SPILL, "k: 3 VGPR spills, 12 B scratch"),
    ],
)
def test_each_bound_that_is_broken_is_said(
    check: Callable[..., list[str]], changes: dict[str, Any], problem: str
) -> None:
    assert check() == []
    (said,) = check(**changes)
    assert problem in said


def test_an_operation_that_its_kernel_refuses_is_said() -> None:
    with gpu.assume("gfx950"), refusals() as said:
        choose("an operation of this test", None, reference=sum, pallas="head_dim is 3")
    assert said == ["an operation of this test runs as reference (pallas: head_dim is 3)"]


SUM = Collective("all-reduce", "bf16", (64, 4, 7168), 1)
SUMS = [SUM] * (2 * 61 + 1 + 3 * 3)
"""Two a layer of the target and one for its embedding; three in each of a split draft's passes."""


def gather(dtype: str, *shape: int) -> Collective:
    return Collective("all-gather", dtype, shape, 1)


def exchanges(batch: int = 64) -> list[Collective]:
    """Of eight devices with 8 heads each: of 61 layers and the draft's first pass with four rows of
    a sequence, and of its two steps with one."""
    found = []
    for rows in (4,) * 62 + (1,) * 2:
        shape = (8, batch, rows, 8)
        found += [gather("bf16", *shape, 512), gather("bf16", *shape, 64)]
        found.append(Collective("all-to-all", "bf16", (*shape, 520), 1))
    return found


LOGITS, PAIRS = gather("f32", 64, 4, 163840), gather("s32", 2, 64, 4, 4)
WHOLE_DRAFT = replace(OPTIONS, parallel=replace(OPTIONS.parallel, draft_devices=1))


@pytest.mark.parametrize(
    ("options", "draft", "found", "said"),
    [
        (OPTIONS, FP8, SUMS, []),
        (OPTIONS, FP8, [*SUMS, SUM], ["133 sums of hidden states, 132 would do"]),
        (WHOLE_DRAFT, FP8, SUMS, ["132 sums of hidden states, 123 would do"]),
        (OPTIONS, FP8, [LOGITS, PAIRS], ["all-gather of f32[64, 4, 163840]"]),
        (DIVIDED, MLA, [*SUMS, *exchanges()], []),
    ],
    ids=["least", "one sum more", "a whole draft", "logits", "divided"],
)
def test_collectives_beyond_those_of_the_layers_are_said(
    options: Any, draft: str, found: list[Collective], said: list[str]
) -> None:
    assert list(collective_problems(found, options, pair_of(draft))) == said


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (exchanges()[1:], "all-gather"),
        (exchanges()[:-1], "all-to-all"),
        ([*exchanges(), exchanges()[2]], "all-to-all"),
        (exchanges(65), "all-gather"),
    ],
    ids=["a gather too few", "an exchange too few", "an exchange too many", "other rows"],
)
def test_other_exchanges_of_divided_contexts_are_said(found: list[Collective], kind: str) -> None:
    said = list(collective_problems([*SUMS, *found], DIVIDED, pair_of(MLA)))
    assert said[0].startswith(f"{kind} of ") and said[0].endswith(" were expected")


@pytest.mark.parametrize("shape", [(8, 3000, 64, 576), (64, 10240, 576), (8, 3000, 8, 576)])
def test_a_collective_of_the_caches_size_is_said(shape: tuple[int, ...]) -> None:
    """Even where its shape looks like that of all heads."""
    found = [*SUMS, *exchanges(), gather("bf16", *shape)]
    assert len(list(collective_problems(found, DIVIDED, pair_of(MLA)))) == 1


REPORT = ProgramReport(
    job=OPTIONS,
    planned={"arguments": 200 << 30},
    argument_bytes=201 << 30,
    donated_bytes=1000,
    alias_bytes=500,
    temporary_bytes=300 << 20,
    figures={"KV tokens": 1234567},
    per_layer=16.1,
    launches=1111,
    collectives=Counter({SUM: 123, Collective("all-reduce", "f32", (64,), 8): 1}),
    telling=124,
    failures=(),
    seconds=99.0,
    cpu_seconds=88.0,
    peak_bytes=3 << 30,
)


@pytest.mark.parametrize(("a_layer", "holds"), [(3, True), (4, False)])
def test_launches_that_dividing_adds_to_a_layer_are_bounded(a_layer: int, holds: bool) -> None:
    """Two arrays that are gathered in one launch count once."""
    undivided = replace(DIVIDED, parallel=replace(DIVIDED.parallel, context_parts=1))
    told = Counter({one: 64 for one in exchanges()[:3]}) + Counter({SUM: 144})
    whole = replace(REPORT, job=undivided, collectives=Counter({SUM: 144}), telling=144)
    divided = replace(REPORT, job=DIVIDED, collectives=told, telling=144 + 64 * a_layer)
    shown, options = io.StringIO(), [undivided, DIVIDED]
    assert print_rounds(Console(file=shown, width=250), options, [whole, divided]) == holds
    assert f"DCP8, k = 3, batch 64: {a_layer:+.2f} launches a layer" in shown.getvalue()


LATE = Failure("took longer than 9 s")


def test_the_table_of_rounds_has_a_line_for_each_and_says_what_failed() -> None:
    shown = io.StringIO()
    results = [REPORT, replace(REPORT, failures=("a spill",)), LATE]
    assert not print_rounds(Console(file=shown, width=250), [OPTIONS] * 3, results)
    text, name = shown.getvalue(), "kimi-k2.5-mxfp4 + kimi-k2.5-eagle3-fp8, MI355X TP4, k = 3"
    for cell in ("201.0", "100.50%", "1,234,567", "50%", "300", "16.1", "1111", "124", "3.0"):
        assert text.count(f" {cell} ") == 2
    assert "123 x all-reduce bf16[64, 4, 7168], 3,670,016 B" in text
    for reason in ("a spill", LATE.reason):
        assert f"FAILED {name}, batch 64: {reason}" in text
    assert print_rounds(Console(file=io.StringIO()), [OPTIONS], [REPORT])


MOST = MOST_LAUNCHES["mxfp4", 16]


def test_more_launches_spills_and_copies_than_before_fail() -> None:
    spills, copies, shape = ["k: 2 VGPR spills"], ["a copy"], RoundShape("gfx950", "mxfp4", 3)
    more = f"{MOST + 1} launches a MoE layer, were {MOST}"
    assert list(round_failures(shape, MOST, [], [])) == []
    assert list(round_failures(shape, MOST + 1, spills, copies)) == [*spills, *copies, more]
    other = RoundShape("gfx942", "mxfp4", 3, batch=64)
    found = list(round_failures(other, MOST_LAUNCHES["mxfp4", 64], spills, copies))
    assert found == spills, "copies are counted on one GPU"
    assert launch_problems(16) == launch_problems(17, context_parts=8) == []
    assert launch_problems(16.5) == ["16.5 launches a MoE layer, 16 at most"]
    assert launch_problems(17.5, 8) == ["17.5 launches a MoE layer, 17 at most"]


def test_what_xla_fuses_without_a_scope_counts_for_the_layer_it_follows() -> None:
    """The residual sum between two layers has no scope and is launched all the same."""
    scopes = ("embed", "target_layer_0/norm", "target_layer_0/psum", "", "target_layer_1/norm")
    kinds = ("fusion", "kernel", "collective", "fusion", "kernel")
    found = [
        Launch(f"{i}", kind, "f32[1]", f"jit(f)/verify/{scope}" if scope else "")
        for i, (scope, kind) in enumerate(zip(scopes, kinds, strict=True))
    ]
    layers = launches_of_layers(found)
    names = {i: [one.name for one in layer] for i, layer in layers.items()}
    assert names == {0: ["1", "2", "3"], 1: ["4"]}
    assert count(layers[0]) == 2
    with pytest.raises(ValueError, match="1 of layer 0 comes after layer 1"):
        launches_of_layers([found[4], *found[1:4]])
