"""Decode context parallelism and data parallel attention in a plan: what they hold, cost and are
worth beside tensor parallelism."""

import functools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from published_pairs import draft, published, target

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.mesh import DEVICES, shard
from eagle3_tools.plan.context_tables import PAYS
from eagle3_tools.plan.data.gpus import GPUS, MI355X
from eagle3_tools.plan.from_config import draft_from_config, target_from_config
from eagle3_tools.plan.model.attention_work import AttentionCore, StepRows
from eagle3_tools.plan.model.data_parallel import DataParallel, data_parallel, data_parallel_work
from eagle3_tools.plan.model.divided_context import (
    PARTS,
    DecodeLoad,
    DividedContext,
    best_parts,
    pays_from_concurrency,
    pays_from_context,
)
from eagle3_tools.plan.model.draft_work import draft_shape
from eagle3_tools.plan.model.kernels import Exchange, Kernel, Work, seconds_of_parts
from eagle3_tools.plan.model.memory import plan_memory
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.target_work import target_shape, target_work

MXFP4, W4A8, MINIMAX = "kimi-k2.5-mxfp4", "kimi-k2.5-w4a8", "minimax-m2.5"
MLA, MHA = "kimi-k2.5-eagle3-mla", "kimi-k2.5-eagle3"
CONFIG = EngineConfig(max_model_len=2048, max_num_seqs=64, page_size=64)
LOAD = DecodeLoad(8192, 1024, 262_144, "bfloat16", 3, 2.88)
LONG = replace(LOAD, isl=99_488)


@functools.cache
def divided(
    parts: int, gpu: str = "MI355X", drafted: str = MLA, name: str = MXFP4
) -> DividedContext:
    """Eight devices, of which so many divide each context."""
    parallel = Parallelism(8, 8, context_parts=parts)
    pair = target(name), draft(drafted)
    memory = plan_memory(*pair, GPUS[gpu], parallel, CONFIG, 0.9)
    shapes = Shapes(target_shape(pair[0], parallel), draft_shape(pair[1], parallel), GPUS[gpu])
    return DividedContext(parts, memory, shapes)


def every(gpu: str = "MI355X", name: str = MXFP4) -> list[DividedContext]:
    return [divided(parts, gpu, name=name) for parts in PARTS]


@functools.cache
def by_data(gpu: str = "MI355X", name: str = MXFP4) -> DataParallel:
    memory = divided(1, gpu, name=name).memory
    return data_parallel(target(name), draft(MLA), memory, GPUS[gpu], 8)


def test_latents_that_are_divided_hold_exactly_d_times_the_tokens() -> None:
    """The same number of pages fits, scratch included, and each has D times the tokens."""
    for gpu, dtype in (("MI355X", "bfloat16"), ("MI325X", "fp8")):
        alone = divided(1, gpu).memory
        for parts in PARTS:
            memory = divided(parts, gpu).memory
            assert memory.tokens(dtype) == parts * alone.tokens(dtype) > 0
            assert memory.pages(dtype) == alone.pages(dtype)
            assert memory.page_bytes(dtype) == alone.page_bytes(dtype)
            assert parts * memory.token_bytes(dtype) == alone.token_bytes(dtype)


@pytest.mark.parametrize("parts", PARTS)
def test_keys_and_values_take_the_same_bytes_a_token_whatever_d_is(parts: int) -> None:
    """Of a multi-head draft beside divided latents; of a target of KV heads everything."""
    latents, heads = 61 * 576, 2 * 8 * 128
    found = divided(parts, drafted=MHA).memory
    assert found.token_bytes("bfloat16") == 2 * (latents / parts + heads)
    parallel = Parallelism(8, 8, True, context_parts=parts)
    grouped = plan_memory(target(MINIMAX), None, MI355X, parallel, CONFIG, 0.9)
    assert grouped.token_bytes("fp8") == 62 * 2 * 128


@pytest.mark.parametrize(
    ("parts", "drafted", "draft_devices"),
    [(1, MHA, 8), (4, MLA, 8), (4, MHA, 1), (8, MHA, 8), (8, MLA, 1)],
)
def test_pools_are_planned_as_the_engine_makes_them(
    parts: int, drafted: str, draft_devices: int
) -> None:
    """Byte for byte, on a mesh without devices; a draft that is whole has all positions."""
    mesh: Any = AbstractMesh((8, 1), DEVICES)
    text = published(MXFP4, "config")["text_config"] | {"num_hidden_layers": 2}
    fields = {**published(MXFP4, "config"), "text_config": text}
    own = draft_from_config(published(drafted, "config"), jnp.bfloat16, num_target_layers=61)
    pair = target_from_config(fields, jnp.bfloat16), own
    config = replace(CONFIG, decode_context_parallel_size=parts)
    parallel = Parallelism(8, draft_devices, context_parts=parts)
    memory = plan_memory(*pair, MI355X, parallel, config, 0.9)
    for model in pair if draft_devices > 1 else pair[:1]:
        shard(model, mesh)
    pages = memory.pages("bfloat16")
    state = StateLayout(*pair, replace(config, num_pages=pages), 3, mesh).shapes()
    pools = jax.tree.leaves((state.target_pools, state.draft_pools))
    made = sum(math.prod(p.sharding.shard_shape(p.shape)) * p.dtype.itemsize for p in pools)
    assert made == pages * memory.page_bytes("bfloat16")


def attention(parts: int, context: float = 8704) -> list[Work]:
    """64 sequences of four rows on a device with 8 of 64 heads."""
    rows = StepRows(64, 4, context, 2)
    return list(AttentionCore(8, 576, 576 + 512, parts).work("attention", rows, 61))


def test_a_layer_exchanges_queries_and_partial_attention_of_known_sizes() -> None:
    """256 rows of 8 heads: 576 numbers of a query, 512 and the 8 of a partial attention's mass."""
    kernel, gather, exchange, join = attention(8)
    rows = 256 * 8
    assert gather == Exchange(2 * rows * 576, 8, 61, "gather of queries")
    assert exchange == Exchange(2 * rows * 520, 8, 61, "exchange of shares")
    assert join == Kernel("join of shares", "small", 8 * 2 * rows * 520, times=61)
    assert isinstance(kernel, Kernel)
    assert kernel.nbytes == 64 * 8704 // 8 * 1152 + 7 * 2 * rows * (576 + 520)
    (alone,) = attention(1)
    assert isinstance(alone, Kernel)
    for parts in PARTS:
        short, long = (attention(parts, context)[0] for context in (8704, 2 * 8704))
        assert isinstance(short, Kernel) and isinstance(long, Kernel)
        assert long.nbytes - short.nbytes == 64 * 8704 / parts * 1152
        assert short.flop == alone.flop


def test_an_exchange_by_hand() -> None:
    """A megabyte to each of three peers at once, each over its own link."""
    one = Exchange(1e6, 4, 10, "gather of queries")
    assert one.seconds(MI355X, "datasheet") == pytest.approx(10 * 1e6 / 76.8e9)
    tuned = 10 * (6.5e-6 + 1e6 / 76.8e9 / 0.75)
    assert one.seconds(MI355X, "tuned") == pytest.approx(tuned)


@pytest.mark.usefixtures("every_sum_starts_alike")
@pytest.mark.parametrize(
    ("bound", "batch", "context", "parts", "rate"),
    [
        ("tuned", 27, 100_000, 1, 180),
        ("datasheet", 27, 100_000, 1, 294),
        ("tuned", 218, 100_000, 8, 364),
        ("datasheet", 218, 100_000, 8, 1202),
        ("tuned", 64, 8704, 1, 876),
        ("tuned", 64, 8704, 8, 809),
        ("tuned", 256, 8704, 1, 1564),
        ("tuned", 256, 8704, 8, 1413),
    ],
)
def test_rates_of_divided_contexts_are_those_of_another_program(
    bound: Any, batch: int, context: int, parts: int, rate: float
) -> None:
    """Tokens/s/GPU within 6%: it has 516 numbers in a partial attention, and undivided rounds are
    4% apart already."""
    load = divided(parts).shapes.load(StepRows(batch, 1, context, 2), bound)
    assert load.tokens_per_s(load.rounds[3]) == pytest.approx(rate, rel=0.06)


def test_requests_that_do_not_fit_wait_and_bring_nothing() -> None:
    one = divided(1)
    most = one.sequences(LONG)
    full, over = one.round(LONG, most), one.round(LONG, 10 * most)
    assert over.batch == most and over.tokens_per_s == full.tokens_per_s
    none = replace(one, memory=replace(one.memory, usable=0))
    assert none.round(LONG, 64).tokens_per_s == best_parts([none], LONG, 64) == 0


@pytest.mark.parametrize("gpu", ["MI355X", "MI325X"])
def test_dividing_pays_from_where_it_is_said_to_and_not_before(gpu: str) -> None:
    found = every(gpu)
    context = pays_from_context(found, LOAD, 218)
    assert context is not None
    isl = int(context - LOAD.osl / 2)
    assert best_parts(found, replace(LOAD, isl=isl), 218) > 1
    assert best_parts(found, replace(LOAD, isl=isl - 1), 218) == 1
    least = pays_from_concurrency(found, LONG)
    assert least is not None
    paying = [best_parts(found, LONG, count) > 1 for count in range(1, least + 1)]
    assert paying == [*[False] * (least - 1), True]


def test_a_division_that_never_pays_is_said_so() -> None:
    """Of one short sequence, and over links that take forever."""
    assert pays_from_context(every(), replace(LOAD, longest=4096), 1) is None
    slow = replace(MI355X, peer_link=1.0, all_links=7.0)
    found = [replace(one, shapes=replace(one.shapes, gpu=slow)) for one in every()]
    assert pays_from_concurrency(found, replace(LOAD, isl=64)) is None


def test_data_parallel_attention_on_one_device_is_tensor_parallelism() -> None:
    kimi, rows = target(MXFP4), StepRows(16, 4, 8704, 2)
    memory = plan_memory(kimi, None, MI355X, Parallelism(), CONFIG, 0.9)
    alone = data_parallel(kimi, None, memory, MI355X, 1).shapes.target
    expected = target_work(target_shape(kimi, Parallelism()), rows)
    found = seconds_of_parts(data_parallel_work(alone, rows), MI355X, "tuned")
    found["all-reduce"] = 0.0  # One device has none, and those take no time.
    assert found == pytest.approx(seconds_of_parts(expected, MI355X, "tuned"))


@pytest.mark.parametrize(
    ("gpu", "name", "millions"), [("MI355X", MXFP4, 21.2), ("MI325X", W4A8, 17.7)]
)
def test_tokens_of_data_parallel_attention_are_those_of_another_program(
    gpu: str, name: str, millions: float
) -> None:
    """It divides embedding and head; here each device has all of both."""
    found, tensor = by_data(gpu, name), divided(1, gpu, name=name)
    less = 2 * 163_840 * 7168 * 2 * 7 / found.memory.token_bytes("bfloat16") / 1e6
    assert found.tokens("bfloat16") / 1e6 == pytest.approx(millions - less, rel=0.01)
    assert 6.9 < found.tokens("bfloat16") / tensor.memory.tokens("bfloat16") < 8
    experts, split = (m.target.by_part["routed experts"] for m in (found.memory, tensor.memory))
    assert experts == pytest.approx(split, rel=0.01), "some lie there twice"


@pytest.mark.parametrize(
    ("bound", "load", "batch", "rate"),
    [
        ("tuned", LONG, 206, 398),
        ("datasheet", LONG, 206, 1515),
        ("tuned", LOAD, 64, 953),
        ("tuned", LOAD, 256, 2193),
    ],
)
def test_rates_of_data_parallel_attention_are_those_of_another_program(
    bound: Any, load: DecodeLoad, batch: int, rate: float
) -> None:
    found = by_data().round(load, batch, bound)
    assert 0.97 * batch < found.batch <= batch
    assert found.tokens_per_s == pytest.approx(rate, rel=0.06)


def test_data_parallel_attention_pays_as_the_documentation_says() -> None:
    """For 8k prompts and many requests, and not for long contexts (docs/planner.md)."""

    def gain(gpu: str, name: str, load: DecodeLoad, concurrency: int) -> float:
        best = max(one.round(load, concurrency).tokens_per_s for one in every(gpu, name))
        return by_data(gpu, name).round(load, concurrency).tokens_per_s / best

    new, old = ("MI355X", MXFP4), ("MI325X", W4A8)
    assert gain(*new, LOAD, 64) < PAYS < gain(*new, LOAD, 128)
    assert gain(*new, LOAD, 256) == pytest.approx(1.51, abs=0.01)
    assert gain(*old, LOAD, 128) < PAYS < gain(*old, LOAD, 256)
    for one in (new, old):
        assert 1 < gain(*one, LONG, 256) < PAYS
        assert gain(*one, LOAD, 16) < 1


def test_the_busiest_device_sets_the_pace() -> None:
    """Nine sequences on eight devices take as long as sixteen in everything a device does alone."""
    nine, sixteen = (by_data().round(LOAD, batch) for batch in (9, 16))
    alone = ("attention", "attention weights", "dense weights", "small kernels")
    assert [nine.target_s[part] for part in alone] == [sixteen.target_s[part] for part in alone]
    assert nine.draft_s == sixteen.draft_s
