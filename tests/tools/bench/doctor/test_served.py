"""The calls that doctor checks are those of the model as it will be served."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from eagle3_tools.bench.doctor import served
from eagle3_tools.bench.doctor.served import CONFIG, Served
from eagle3_tools.self_check import Call
from serve.demo import (
    demo_draft_dir,
    demo_target_dir,
    demo_vision_draft_dir,
    demo_vision_target_dir,
)

ROUND_OF_64 = 64 * 4
FLOAT8 = replace(CONFIG, kv_cache_dtype="fp8", kv_cache_scale=1.0)
NODES = 6
TREE = replace(CONFIG, eagle_topk=2, num_draft_tokens=NODES)


def shapes(call: Call) -> list[Any]:
    leaves = jax.tree.leaves((call.arguments, call.options))
    return [leaf for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct)]


@pytest.fixture(scope="module", autouse=True)
def _no_jaxtyping() -> Iterator[None]:
    """Calls hold shapes in the place of arrays, as for users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxtyping.config.jaxtyping_disable", True)
        yield


@pytest.fixture(scope="module")
def seeing() -> list[Call]:
    """Of a pair that takes images, with a cache of float8, in the shapes of every step but the
    smallest."""
    directories = demo_vision_target_dir(), demo_vision_draft_dir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served, "STEPS", served.STEPS[1:])
        return Served(*directories, 1, FLOAT8, every=True)()[1]


def called(calls: list[Call], holds: Callable[[Any], bool]) -> set[str]:
    """Operations that take an array of which this holds."""
    return {call.operation for call in calls if any(map(holds, shapes(call)))}


def test_every_operation_of_a_round_is_called_with_the_rows_of_64_sequences(seeing: list[Call]):
    operations = {call.operation for call in seeing} - {"item_attention", "mla_prefill"}
    many = called(seeing, lambda x: x.shape[:1] == (ROUND_OF_64,) or x.shape[:2] == (64, 4))
    assert {"grouped_mlp", "route", "logits_argmax", "mla_decode", "gqa_decode"} <= operations
    assert operations <= many


def test_attention_is_called_with_contexts_that_it_divides(seeing: list[Call]):
    pages = 10240 // CONFIG.page_size
    assert {"mla_decode", "gqa_decode"} <= called(seeing, lambda x: pages in x.shape)


def test_a_cache_of_float8_is_read_and_written_as_such(seeing: list[Call]):
    cached = called(seeing, lambda x: x.dtype == jnp.float8_e4m3fn)
    assert cached == {"cache_heads", "cache_latents", "gqa_decode", "mla_decode", "mla_prefill"}


def test_the_tower_of_a_pair_that_takes_images_is_there(seeing: list[Call]):
    assert "item_attention" in {call.operation for call in seeing}


@pytest.mark.long
def test_trees_call_attention_with_their_ancestors_and_rehearsals_an_operation_in_one_step(
    monkeypatch: pytest.MonkeyPatch,
):
    """The first that calls it, so that nothing has the rows of 64 sequences."""
    monkeypatch.setattr(served, "STEPS", served.STEPS[:2])
    _, calls = Served(demo_target_dir(), demo_draft_dir(), 1, TREE)()
    assert {"mla_decode", "gqa_decode"} <= called(calls, lambda x: x.dtype == jnp.bool_)
    assert not called(calls, lambda x: x.shape[:1] == (64 * NODES,) or x.shape[:2] == (64, NODES))
