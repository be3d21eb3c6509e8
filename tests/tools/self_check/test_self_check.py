"""Operations are recorded as a program calls them, and a kernel that differs from its contract is
found on the device where it does."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from eagle3_tools.kernel_cases.quantized import example_kernel
from eagle3_tools.self_check import Call, check_call, recorded_calls
from pallas_kernels import (
    GatedKernels,
    QuantFormat,
    add_norm,
    cache_heads,
    gpu,
    item_attention,
    joint_matmul,
    moe_mlp,
    route,
)
from pallas_kernels.add_norm import ADD_NORM
from pallas_kernels.item_attention import ITEM_ATTENTION
from pallas_kernels.partial_sums import PartialSums
from pallas_kernels.rms_norm import Norm
from pallas_kernels.route import RouterOptions

TOKENS, HIDDEN, INTER, EXPERTS = 8, 128, 64, 4
OPTIONS = RouterOptions(2, True, 1.5)
MOST_BYTES = 1 << 24


@pytest.fixture(autouse=True)
def _as_on_a_gpu(no_jaxtyping: None) -> Iterator[None]:
    with gpu.assume("gfx950"):
        yield


def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)


def two_norms(x: Any, added: Any, weight: Any) -> Any:
    return add_norm(*add_norm(x, added, Norm(weight, 1e-5)), Norm(weight, 1e-5))


def norm_call() -> Call:
    (call,) = recorded_calls(two_norms, *[shape(TOKENS, HIDDEN)] * 2, shape(HIDDEN))
    return call


def test_calls_of_one_shape_are_recorded_once() -> None:
    call = norm_call()
    assert call.operation == "add_norm"
    assert call.shapes == "bfloat16[8,128] bfloat16[8,128] bfloat16[128]"
    assert call.argument_bytes == 2 * (2 * TOKENS + 1) * HIDDEN


def test_a_kernel_is_right_on_every_device() -> None:
    checked = check_call(norm_call(), [0, 2], MOST_BYTES)
    assert [(one.device, one.wrong, one.refused) for one in checked] == [
        (0, False, ""),
        (2, False, ""),
    ]


def test_a_kernel_that_is_wrong_on_one_device_is_found_there() -> None:
    def broken(x: Any, added: Any, norm: Norm) -> Any:
        total, normed = ADD_NORM.pallas(x, added, norm)
        return total, jnp.where(jax.lax.axis_index("device") == 1, 1.05, 1).astype(x.dtype) * normed

    checked = check_call(replace(norm_call(), kernel=broken), [0, 1, 2], MOST_BYTES)
    assert [one.wrong for one in checked] == [False, True, False]
    assert checked[1].error == pytest.approx(0.05, rel=0.2)


def test_products_in_parts_are_checked_by_their_sums() -> None:
    """The kernel of one leaves them in parts, and that of the other reads them so."""

    def cached(x: Any, kernel: Any, parts: Any, tables: Any, pool: Any, places: Any) -> Any:
        joint_matmul(x, kernel, in_parts=True)
        product = PartialSums(parts, jnp.dtype(jnp.bfloat16))
        return cache_heads(product, product, product, tables, tables, pool, pool, places, places)

    places = shape(TOKENS, 1, dtype=jnp.int32)
    parts, tables = (
        shape(*size, dtype=jnp.float32) for size in ((2, TOKENS, 1, 64), (TOKENS, 1, 8))
    )
    given = shape(1, TOKENS, 512), shape(512, 64), parts, tables, shape(4, 16, 2, 32), places
    calls = recorded_calls(cached, *given)
    assert [call.operation for call in calls] == ["joint_matmul", "cache_heads"]
    for call in calls:
        (checked,) = check_call(call, [0], MOST_BYTES)
        assert checked.error is not None and not checked.wrong, checked


def test_routed_and_shared_experts_are_checked_with_weights_as_they_are_stored() -> None:
    format = QuantFormat("int4_group")

    def stacks(*stack: int) -> GatedKernels:
        sizes = (HIDDEN, INTER), (HIDDEN, INTER), (INTER, HIDDEN)
        key = jax.random.key(0)
        return GatedKernels(*(example_kernel(key, *size, format, *stack) for size in sizes))

    def experts(x: Any, logits: Any, bias: Any, routed: Any, shared: Any) -> Any:
        return moe_mlp(x, logits, bias, routed, OPTIONS, shared=shared)

    calls = recorded_calls(
        experts,
        shape(TOKENS, HIDDEN),
        *(shape(TOKENS, EXPERTS, dtype=jnp.float32), shape(EXPERTS, dtype=jnp.float32)),
        *(stacks(EXPERTS), stacks()),
    )
    assert [call.operation for call in calls] == ["route", "grouped_mlp"]
    (checked,) = check_call(calls[1], [0], MOST_BYTES)
    assert checked.error is not None and not checked.wrong


def test_images_that_see_one_another_are_found() -> None:
    def attend(q: Any, k: Any, v: Any, items: Any) -> Any:
        return item_attention(q, k, v, items, 0.2)

    call = recorded_calls(attend, *[shape(96, 2, 32)] * 3, shape(96, dtype=jnp.int32))[0]

    def mixed(q: Any, k: Any, v: Any, items: Any, scale: float) -> Any:
        return ITEM_ATTENTION.pallas(q, k, v, 0 * items, scale)

    for kernel, wrong in ((call.kernel, False), (mixed, True)):
        (checked,) = check_call(replace(call, kernel=kernel), [0], MOST_BYTES)
        assert checked.wrong is wrong


def test_a_refusal_gives_its_reason_and_large_arguments_are_not_tried() -> None:
    def routed(logits: Any, bias: Any) -> Any:
        return route(logits, bias, OPTIONS)

    (call,) = recorded_calls(routed, shape(TOKENS, EXPERTS), shape(EXPERTS))
    (refused,) = check_call(call, [0], MOST_BYTES)
    assert (refused.error, refused.refused) == (None, "expected float32 logits, got bfloat16")
    (large,) = check_call(norm_call(), [0], 100)
    assert large.refused.startswith("not tried: 0 MiB of arguments")
