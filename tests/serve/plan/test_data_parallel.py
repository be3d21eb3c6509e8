"""Data parallel attention in a plan: what it holds, costs and is worth beside TP and DCP."""

import functools
from dataclasses import replace

import pytest
from published_pairs import draft, target

from eagle3_jax.engine.config import EngineConfig
from eagle3_tools.plan.data.gpus import GPUS, MI355X
from eagle3_tools.plan.data_parallel.model import DataParallel, data_parallel, data_parallel_work
from eagle3_tools.plan.data_parallel.table import PAYS
from eagle3_tools.plan.model.attention_work import StepRows
from eagle3_tools.plan.model.divided_context import PARTS, DecodeLoad, DividedContext
from eagle3_tools.plan.model.draft_work import draft_shape
from eagle3_tools.plan.model.kernels import Bound, seconds_of_parts
from eagle3_tools.plan.model.memory import plan_memory
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.target_work import target_shape, target_work

MODELS = {"MI355X": "kimi-k2.5-mxfp4", "MI325X": "kimi-k2.5-w4a8"}
MLA = "kimi-k2.5-eagle3-mla"
CONFIG = EngineConfig(max_model_len=2048, max_num_seqs=64, page_size=64)
LOAD = DecodeLoad(8192, 1024, 262_144, "bfloat16", 3, 2.88)
LONG = replace(LOAD, isl=99_488)
APART = {
    ("tuned", LONG, 206): 398,
    ("datasheet", LONG, 206): 1515,
    ("tuned", LOAD, 64): 953,
    ("tuned", LOAD, 256): 2193,
}
"""Limit, load and sequences -> tokens/s/GPU of eight MI355X, computed by another program for
devices that divide embedding and head too."""
WHOLE_VOCABULARY = 2 * 163_840 * 7168 * 2 * 7
"""Bytes on eight devices that are more where each has all of both."""


@functools.cache
def divided(gpu: str, parts: int) -> DividedContext:
    parallel = Parallelism(8, 8, context_parts=parts)
    pair = target(MODELS[gpu]), draft(MLA)
    memory = plan_memory(*pair, GPUS[gpu], parallel, CONFIG, 0.9)
    shapes = Shapes(target_shape(pair[0], parallel), draft_shape(pair[1], parallel), GPUS[gpu])
    return DividedContext(parts, memory, shapes)


@functools.cache
def by_data(gpu: str) -> DataParallel:
    memory = divided(gpu, 1).memory
    return data_parallel(target(MODELS[gpu]), draft(MLA), memory, GPUS[gpu], 8)


def gain(gpu: str, load: DecodeLoad, concurrency: int) -> float:
    best = max(divided(gpu, parts).round(load, concurrency).tokens_per_s for parts in PARTS)
    return by_data(gpu).round(load, concurrency).tokens_per_s / best


def test_on_one_device_a_step_is_the_one_of_tensor_parallelism() -> None:
    kimi, rows = target(MODELS["MI355X"]), StepRows(16, 4, 8704, 2)
    memory = plan_memory(kimi, None, MI355X, Parallelism(), CONFIG, 0.9)
    alone = data_parallel(kimi, None, memory, MI355X, 1).shapes.target
    expected = target_work(target_shape(kimi, Parallelism()), rows)
    found = seconds_of_parts(data_parallel_work(alone, rows), MI355X, "tuned")
    found["all-reduce"] = 0.0  # Of one device there are none, and those take no time.
    assert found == pytest.approx(seconds_of_parts(expected, MI355X, "tuned"))


@pytest.mark.parametrize(("gpu", "millions"), [("MI355X", 21.2), ("MI325X", 17.7)])
def test_tokens_that_fit_agree_with_those_computed_apart(gpu: str, millions: float) -> None:
    found, tensor = by_data(gpu), divided(gpu, 1)
    less = WHOLE_VOCABULARY / found.memory.token_bytes("bfloat16") / 1e6
    assert found.tokens("bfloat16") / 1e6 == pytest.approx(millions - less, rel=0.01)
    assert 6.9 < found.tokens("bfloat16") / tensor.memory.tokens("bfloat16") < 8
    experts, split = (m.target.by_part["routed experts"] for m in (found.memory, tensor.memory))
    assert experts == pytest.approx(split, rel=0.01), "some lie there twice"


@pytest.mark.parametrize(("bound", "load", "batch"), APART)
def test_rates_agree_with_those_computed_apart(bound: Bound, load: DecodeLoad, batch: int) -> None:
    found = by_data("MI355X").round(load, batch, bound)
    assert 0.97 * batch < found.batch <= batch
    assert found.tokens_per_s == pytest.approx(APART[bound, load, batch], rel=0.06)


def test_it_is_worth_it_for_8k_prompts_and_many_requests_and_not_for_long_contexts() -> None:
    """As docs/planner.md says."""
    assert gain("MI355X", LOAD, 64) < PAYS < gain("MI355X", LOAD, 128)
    assert gain("MI355X", LOAD, 256) == pytest.approx(1.46, abs=0.01)
    assert gain("MI325X", LOAD, 256) < PAYS < gain("MI325X", LOAD, 1024)
    for gpu in MODELS:
        assert 1 < gain(gpu, LONG, 256) < PAYS
        assert gain(gpu, LOAD, 16) < 1


def test_the_busiest_device_sets_the_pace() -> None:
    """Nine sequences on eight devices take as long as sixteen in everything a device does alone."""
    nine, sixteen = (by_data("MI355X").round(LOAD, batch) for batch in (9, 16))
    alone = ("attention", "attention weights", "dense weights", "small kernels")
    assert [nine.target_s[part] for part in alone] == [sixteen.target_s[part] for part in alone]
    assert nine.draft_s == sixteen.draft_s
