"""Decode context parallelism in a plan: what every D holds, costs and is worth."""

import functools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from published_pairs import draft, published, target

from convert.from_config import draft_from_config, target_from_config
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.initial_state import state_shapes
from eagle3_jax.mesh import DEVICES, shard
from eagle3_tools.plan.data.gpus import GPUS, MI355X
from eagle3_tools.plan.model.attention_work import AttentionCore, StepRows
from eagle3_tools.plan.model.divided_context import (
    PARTS,
    DecodeLoad,
    DividedContext,
    best_parts,
    pays_from_concurrency,
    pays_from_context,
)
from eagle3_tools.plan.model.draft_work import draft_shape
from eagle3_tools.plan.model.kernels import Exchange, Kernel, Work
from eagle3_tools.plan.model.memory import Memory, kv_pools, plan_memory
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.target_work import target_shape

MXFP4, MINIMAX = "kimi-k2.5-mxfp4", "minimax-m2.5"
MLA, MHA = "kimi-k2.5-eagle3-mla", "kimi-k2.5-eagle3"
CONFIG = EngineConfig(max_model_len=2048, max_num_seqs=64, page_size=64)
LOAD = DecodeLoad(8192, 1024, 262_144, "bfloat16", 3, 2.88)
LONG = replace(LOAD, isl=99_488)
COMPUTED_APART = {
    ("tuned", 27, 100_000, 1): 180,
    ("datasheet", 27, 100_000, 1): 294,
    ("tuned", 218, 100_000, 8): 364,
    ("datasheet", 218, 100_000, 8): 1202,
    ("tuned", 64, 8704, 1): 876,
    ("tuned", 64, 8704, 8): 809,
    ("tuned", 256, 8704, 1): 1564,
    ("tuned", 256, 8704, 8): 1413,
}
"""Limit, batch, context and D -> tokens/s/GPU of eight MI355X with the MLA draft, k = 3."""


@functools.cache
def divided(parts: int, gpu: str = "MI355X", drafted: str = MLA) -> DividedContext:
    """Eight devices."""
    parallel = Parallelism(8, 8, context_parts=parts)
    pair = target(MXFP4), draft(drafted)
    memory = plan_memory(*pair, GPUS[gpu], parallel, CONFIG, 0.9)
    shapes = Shapes(target_shape(pair[0], parallel), draft_shape(pair[1], parallel), GPUS[gpu])
    return DividedContext(parts, memory, shapes)


def every(gpu: str = "MI355X", drafted: str = MLA) -> tuple[DividedContext, ...]:
    return tuple(divided(parts, gpu, drafted) for parts in PARTS)


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8"])
@pytest.mark.parametrize("gpu", ["MI355X", "MI325X"])
def test_latents_that_are_divided_hold_exactly_d_times_the_tokens(gpu: str, dtype: str) -> None:
    """As many pages fit, the scratch page among them, and each has D times the tokens."""
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


def pool_bytes(pair: tuple[Any, Any], memory: Memory, config: EngineConfig, mesh: Any) -> int:
    """Of each device, as the engine makes its pools."""
    state = state_shapes(*pair, replace(config, num_pages=memory.pages("bfloat16")), 3, mesh)
    pools = jax.tree.leaves((state.target_pools, state.draft_pools))
    return sum(math.prod(p.sharding.shard_shape(p.shape)) * p.dtype.itemsize for p in pools)


@pytest.mark.parametrize("draft_devices", [1, 8])
@pytest.mark.parametrize("drafted", [MLA, MHA])
@pytest.mark.parametrize("parts", [1, 4, 8])
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
    shard(pair[0], mesh)
    if draft_devices > 1:
        shard(pair[1], mesh)
    planned = memory.pages("bfloat16") * memory.page_bytes("bfloat16")
    assert pool_bytes(pair, memory, config, mesh) == planned


def attention(parts: int, context: float = 8704) -> list[Work]:
    """64 sequences of four rows on a device with 8 of 64 heads."""
    rows = StepRows(64, 4, context, 2)
    return list(AttentionCore(8, 576, 576 + 512, parts).work("attention", rows, 61))


def test_a_layer_exchanges_queries_and_shares_of_known_sizes() -> None:
    """256 rows of 8 heads: 576 numbers of a query, 512 and the 8 of the mass of a share."""
    kernel, gather, exchange, join = attention(8)
    rows = 256 * 8
    assert gather == Exchange(2 * rows * 576, 8, 61, "gather of queries")
    assert exchange == Exchange(2 * rows * 520, 8, 61, "exchange of shares")
    assert join == Kernel("join of shares", "small", 8 * 2 * rows * 520, times=61)
    assert isinstance(kernel, Kernel)
    read = 64 * 8704 // 8 * 1152
    assert kernel.nbytes == read + 7 * 2 * rows * (576 + 520)


def test_dividing_reads_less_of_the_cache_and_multiplies_as_much() -> None:
    alone = attention(1)
    assert len(alone) == 1, "who has the whole context exchanges nothing"
    for parts in PARTS:
        short, long = (attention(parts, context)[0] for context in (8704, 2 * 8704))
        assert isinstance(short, Kernel) and isinstance(long, Kernel)
        assert long.nbytes - short.nbytes == 64 * 8704 / parts * 1152
        assert short.flop == alone[0].flop  # pyright: ignore[reportAttributeAccessIssue]


def test_an_exchange_by_hand() -> None:
    """A megabyte to each of three peers at once, each over its own link."""
    one = Exchange(1e6, 4, 10, "gather of queries")
    assert one.seconds(MI355X, "datasheet") == pytest.approx(10 * 1e6 / 76.8e9)
    tuned = 10 * (6.5e-6 + 1e6 / 76.8e9 / 0.75)
    assert one.seconds(MI355X, "tuned") == pytest.approx(tuned)


@pytest.mark.parametrize(("bound", "batch", "context", "parts"), COMPUTED_APART)
def test_rates_are_those_that_were_computed_apart(
    bound: Any, batch: int, context: int, parts: int
) -> None:
    """Within 6%: a share has 516 numbers there; undivided rounds are 4% apart already."""
    load = divided(parts).shapes.load(StepRows(batch, 1, context, 2), bound)
    expected = COMPUTED_APART[bound, batch, context, parts]
    assert load.tokens_per_s(load.rounds[3]) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("parts", PARTS)
def test_a_divided_round_costs_what_the_plans_round_of_that_k_costs(parts: int) -> None:
    one = divided(parts)
    found = one.round(LOAD, 64)
    load = one.shapes.load(StepRows(64, 1, LOAD.context, 2), "tuned")
    assert found.seconds == pytest.approx(load.rounds[3].seconds)
    assert found.tokens_per_s == pytest.approx(load.tokens_per_s(load.rounds[3]))


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
    count = pays_from_concurrency(found, LONG)
    assert count is not None
    assert [best_parts(found, LONG, one) > 1 for one in range(1, count + 1)] == [
        *[False] * (count - 1),
        True,
    ]


def test_what_never_pays_is_said_so() -> None:
    """One short sequence; and a single kind of GPU whose links take forever."""
    assert pays_from_context(every(), replace(LOAD, longest=4096), 1) is None
    slow = replace(MI355X, peer_link=1.0, all_links=7.0)
    found = [replace(one, shapes=replace(one.shapes, gpu=slow)) for one in every()]
    assert pays_from_concurrency(found, replace(LOAD, isl=64)) is None


def test_faster_links_make_it_pay_no_later() -> None:
    fast = replace(MI355X, peer_link=1e15, all_links=7e15)
    faster = [replace(one, shapes=replace(one.shapes, gpu=fast)) for one in every()]
    for count in (4, 28, 218):
        early, late = (pays_from_context(each, LOAD, count) for each in (faster, every()))
        assert early is not None and late is not None and early < late


def test_pools_of_one_device_are_whole() -> None:
    """There is nobody to divide them with: as gcd says of the least GPUs that would do."""
    assert Parallelism(8, 8, context_parts=8).over(4).context_parts == 4
    alone = Parallelism(8, 8, context_parts=8).over(1)
    assert [pool.context_parts for pool in kv_pools(target(MXFP4), draft(MLA), alone)] == [1, 1]
