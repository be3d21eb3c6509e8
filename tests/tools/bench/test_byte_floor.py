"""The byte floor against a count by hand, and against the model it is about."""

import jax
import pytest
from flax import nnx

from eagle3_jax.models.kimi import KimiTarget
from eagle3_tools.bench.cpu.byte_floor import byte_floor
from eagle3_tools.bench.cpu.kimi_108m import random_target


@pytest.fixture(scope="module")
def target() -> KimiTarget:
    """The model's shapes without weights."""
    return nnx.eval_shape(random_target)


# hidden 512: q_a 512x256, its norm 256, q_b 256x768, kv_a 512x160, its norm 128,
# kv_b 128x8x(64+64), o 512x512
ATTENTION = 131072 + 256 + 196608 + 81920 + 128 + 131072 + 262144
EXPERT = 3 * 512 * 256
ROUTER = 512 * 32 + 32


def by_hand(experts: int) -> int:
    """Parameters a step reads besides embedding rows, with `experts` routed experts a layer."""
    dense = 3 * 512 * 1536
    moe = ROUTER + EXPERT + experts * EXPERT
    norms = 17 * 512
    return 8 * ATTENTION + dense + 7 * moe + norms + 512 * 8192


def test_a_step_of_one_row_reads_what_a_count_by_hand_says(target: KimiTarget) -> None:
    floor = byte_floor(target, batch=1, context=100, distinct_experts=4)
    assert floor.weight_bytes == 4 * (by_hand(4) + 512)
    assert floor.kv_bytes == 4 * 100 * 8 * 160
    assert floor.distinct_experts == 4
    assert round(floor.weight_bytes / 1e6) == 107


def test_a_large_batch_reads_every_expert_once(target: KimiTarget) -> None:
    floor = byte_floor(target, batch=64, context=0, distinct_experts=32)
    assert floor.weight_bytes == 4 * (by_hand(32) + 64 * 512)


def test_the_random_model_has_108_million_parameters(target: KimiTarget) -> None:
    total = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(target)))
    assert total == by_hand(32) + 8192 * 512
    assert round(total / 1e6) == 108
