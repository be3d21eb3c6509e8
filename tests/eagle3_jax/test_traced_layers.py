"""Number of times that a model of many layers is traced."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tiny import TARGET, tiny_target

from eagle3_jax.layers.mlp import MLP
from eagle3_jax.models.target import DecoderLayer


def test_layers_of_one_kind_are_traced_once_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """And again in the next: the kernels to trace may be others there."""
    dense: list[bool] = []
    call = DecoderLayer.__call__

    def count(layer: DecoderLayer, *inputs: Any) -> Any:
        dense.append(isinstance(layer.mlp, MLP))
        return call(layer, *inputs)

    monkeypatch.setattr(DecoderLayer, "__call__", count)
    target = tiny_target(config=replace(TARGET, num_hidden_layers=5, first_k_dense_replace=2))
    ids, positions = jnp.zeros((1, 3), jnp.int32), jnp.arange(3)[None]
    for programs in (1, 2):
        jax.eval_shape(lambda: target(ids, positions, ()))
        assert dense == [True, False] * programs
