"""What makes a round at full size fail, what is compiled at which size, and what is printed."""

import io
from collections import Counter
from dataclasses import astuple, replace

import jax
import jax.numpy as jnp
import pytest
from published_pairs import PUBLISHED, draft, target
from rich.console import Console

from eagle3_tools.aot import Program
from eagle3_tools.aot.amd.code_object import GpuKernel
from eagle3_tools.aot.collectives import Collective
from eagle3_tools.aot.workers import Failure
from eagle3_tools.plan.compile.compiled_round import CompiledRound
from eagle3_tools.plan.compile.full_size import FullSizeReport, refusals
from eagle3_tools.plan.compile.full_size_pairs import full_size_options
from eagle3_tools.plan.compile.full_size_problems import (
    collective_problems,
    full_size_problems,
    launch_problems,
)
from eagle3_tools.plan.compile.full_size_table import print_full_size
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.planner import AbstractPair
from pallas_kernels import gpu
from pallas_kernels.dispatch import choose

OPTIONS = next(full_size_options(PUBLISHED))
PAIR = AbstractPair(target("kimi-k2.5-mxfp4"), draft("kimi-k2.5-eagle3-fp8"))
DIVIDED = replace(OPTIONS, parallel=Parallelism(8, 8, context_parts=8))
MLA_PAIR = AbstractPair(PAIR.target, draft("kimi-k2.5-eagle3-mla"))
HLO = """HloModule jit__round

ENTRY %main (Arg_0: bf16[64,7168]) -> bf16[64,7168] {
  %hidden = bf16[256,7168]{1,0} fusion(%Arg_0), kind=kLoop, calls=%fused_computation
  ROOT %out = bf16[64,7168]{1,0} all-reduce(%Arg_0), to_apply=%add
}
"""
PROGRAM = Program("gfx950", HLO, [], 1000, 800, 1 << 20)
ROUND = CompiledRound(PROGRAM, [jax.ShapeDtypeStruct((7168, 256), jnp.uint8)], 800)
SUM = Collective("all-reduce", "bf16", (64, 4, 7168), 1)
SUMS = [SUM] * (2 * 61 + 1 + 3 * 3)

REPORT = FullSizeReport(
    options=OPTIONS,
    planned_bytes=200 << 30,
    argument_bytes=201 << 30,
    state_bytes=1000,
    alias_bytes=500,
    temporary_bytes=300 << 20,
    kv_tokens=1234567,
    per_layer=16.1,
    program=1111,
    collectives=Counter({SUM: 123, Collective("all-reduce", "f32", (64,), 8): 1}),
    telling=124,
    failures=(),
    seconds=99.0,
    cpu_seconds=88.0,
    peak_bytes=3 << 30,
)


def problems(**changes: object) -> list[str]:
    changed = replace(ROUND, program=replace(PROGRAM, **changes))
    return list(full_size_problems(OPTIONS, PAIR, changed, 1000, 800))


def test_a_round_as_planned_has_no_problems_and_hidden_states_are_no_weights():
    assert problems() == problems(argument_bytes=1010) == problems(argument_bytes=990) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"argument_bytes": 1011}, "1,011 B of arguments, 1,000 were planned"),
        ({"temporary_bytes": 2 << 30}, "2048 MiB of temporaries"),
        ({"alias_bytes": 799}, "799 B of 800 donated are written in place"),
        ({"hlo": HLO.replace("256,7168", "7168,256")}, "hidden makes bf16[7168, 256], as large"),
        ({"kernels": [GpuKernel("k", 64, 3, 0, 0, 0, 256, {})]}, "k: 3 VGPR spills"),
        ({"kernels": [GpuKernel("k", 64, 0, 0, 8, 0, 256, {})]}, "k: 8 B scratch"),
        ({"hlo": HLO.replace("64,7168", "163840,64")}, "all-reduce of bf16[163840, 64]"),
    ],
)
def test_each_bound_that_is_broken_is_said(changes: dict[str, object], problem: str):
    (said,) = problems(**changes)
    assert problem in said


def test_pools_of_another_size_than_planned_are_said():
    (said,) = full_size_problems(OPTIONS, PAIR, ROUND, 1000, 100)
    assert said == "800 B of pools and slots, 100 were planned"


def test_more_launches_than_the_goal_are_a_problem():
    assert launch_problems(16) == launch_problems(17, context_parts=8) == []
    assert launch_problems(16.5) == ["16.5 launches a MoE layer, 16 at most"]
    assert launch_problems(17.5, 8) == ["17.5 launches a MoE layer, 17 at most"]


def test_an_operation_that_its_kernel_refuses_is_said():
    with gpu.assume("gfx950"), refusals() as said:
        choose("an operation of this test", None, reference=sum, pallas="head_dim is 3")
    assert said == ["an operation of this test runs as reference (pallas: head_dim is 3)"]


def test_two_sums_a_layer_and_one_an_embedding_are_enough():
    """61 layers of the target and three passes of the draft, which has none where it is whole."""
    assert list(collective_problems(SUMS, OPTIONS, PAIR)) == []
    more = list(collective_problems([*SUMS, SUM], OPTIONS, PAIR))
    assert more == ["133 sums of hidden states, 132 would do"]
    alone = replace(OPTIONS, parallel=replace(OPTIONS.parallel, draft_devices=1))
    assert list(collective_problems(SUMS, alone, PAIR)) == [
        "132 sums of hidden states, 123 would do"
    ]


def exchanges(batch: int = 64) -> list[Collective]:
    """Of eight devices with 8 heads each: of 61 layers and the draft's first pass with four rows of
    a sequence, and of its two steps with one."""
    rows = [(batch, 4)] * 62 + [(batch, 1)] * 2
    gathers = [("all-gather", width) for width in (512, 64)]
    return [
        Collective(kind, "bf16", (8, *row, 8, width), 1)
        for row in rows
        for kind, width in (*gathers, ("all-to-all", 520))
    ]


def test_divided_contexts_exchange_queries_and_shares_once_a_layer():
    assert list(collective_problems([*SUMS, *exchanges()], DIVIDED, MLA_PAIR)) == []
    assert list(collective_problems(SUMS, OPTIONS, PAIR)) == [], "undivided ones exchange nothing"


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (exchanges()[1:], "all-gather"),
        (exchanges()[:-1], "all-to-all"),
        ([*exchanges(), exchanges()[2]], "all-to-all"),
        (exchanges(65), "all-gather"),
    ],
)
def test_an_exchange_too_many_too_few_or_of_other_rows_is_said(found: list[Collective], kind: str):
    said = list(collective_problems([*SUMS, *found], DIVIDED, MLA_PAIR))
    assert said[0].startswith(f"{kind} of ") and said[0].endswith(" were expected")


@pytest.mark.parametrize(
    "shape",
    [(8, 3000, 64, 576), (64, 10240, 576), (8, 3000, 8, 576)],
    ids=["pages", "rows", "heads"],
)
def test_nothing_of_the_caches_size_is_told(shape: tuple[int, ...]):
    """Not even where its shape looks like that of all heads."""
    cache = Collective("all-gather", "bf16", shape, 1)
    assert len(list(collective_problems([*SUMS, *exchanges(), cache], DIVIDED, MLA_PAIR))) == 1


def test_logits_are_not_told_and_pairs_are():
    logits = Collective("all-gather", "f32", (64, 4, 163840), 1)
    pairs = Collective("all-gather", "s32", (2, 64, 4, 4), 1)
    said = list(collective_problems([logits, pairs], OPTIONS, PAIR))
    assert said == ["all-gather of f32[64, 4, 163840]"]


def test_the_published_pairs_are_compiled_for_both_k_and_divided_ones_for_both_batches():
    every = list(full_size_options(PUBLISHED))
    sizes = Counter((one.gpu, one.parallel.devices, one.num_speculative_tokens) for one in every)
    assert sizes == {
        **{("MI355X", 4, k): 3 for k in (3, 6)},
        **{("MI355X", 8, 3): 5, ("MI355X", 8, 6): 1},
        **{("MI325X", 8, 3): 4, ("MI325X", 8, 6): 2},
    }
    divided = [one for one in every if one.parallel.context_parts > 1]
    for one in divided:
        assert replace(one, parallel=replace(one.parallel, context_parts=1)) in every
    assert {astuple(one.parallel) for one in divided} == {(8, 8, False, 8)}
    # Of few rows a device cuts its part of a context again, which is one launch more.
    assert [(one.gpu, one.max_num_seqs) for one in divided] == [
        *(("MI355X", 64), ("MI355X", 16), ("MI325X", 64))
    ]
    assert Counter(one.max_num_seqs for one in every) == {64: 16, 16: 2}


@pytest.mark.parametrize(("a_layer", "holds"), [(3, True), (4, False)])
def test_launches_that_dividing_adds_to_a_layer_are_printed_and_bounded(a_layer: int, holds: bool):
    """Of 64 layers, each with one exchange of shares; the draft's passes are layers too. Two arrays
    that are gathered in one launch count once."""
    undivided = replace(DIVIDED, parallel=replace(DIVIDED.parallel, context_parts=1))
    told = Counter({SUM: 144, Collective("all-to-all", "bf16", (8, 64, 4, 8, 520), 1): 64})
    for width in (512, 64):
        told[Collective("all-gather", "bf16", (8, 64, 4, 8, width), 1)] = 64
    whole = replace(REPORT, options=undivided, collectives=Counter({SUM: 144}), telling=144)
    divided = replace(REPORT, options=DIVIDED, collectives=told, telling=144 + 64 * a_layer)
    shown = io.StringIO()
    options = [undivided, DIVIDED]
    assert print_full_size(Console(file=shown, width=250), options, [whole, divided]) == holds
    assert f"DCP8, k = 3, batch 64: {a_layer:+.2f} launches a layer" in shown.getvalue()


def test_the_table_has_a_line_for_each_and_says_what_failed():
    report = replace(REPORT, failures=("a spill",))
    shown = io.StringIO()
    good = replace(report, failures=())
    results = [good, report, Failure("took longer than 9 s")]
    assert not print_full_size(Console(file=shown, width=250), [OPTIONS] * 3, results)
    text, name = shown.getvalue(), "kimi-k2.5-mxfp4 + kimi-k2.5-eagle3-fp8, MI355X TP4, k = 3"
    for cell in ("201.0", "100.50%", "1,234,567", "50%", "300", "16.1", "1111", "124", "3.0"):
        assert text.count(f" {cell} ") == 2
    assert "123 x all-reduce bf16[64, 4, 7168], 3,670,016 B" in text
    assert "1 x all-reduce f32[64], 256 B, each 8 times" in text
    assert f"FAILED {name}, batch 64: a spill" in text
    assert f"FAILED {name}, batch 64: took longer than 9 s" in text
    assert print_full_size(Console(file=io.StringIO()), [OPTIONS], [good])
