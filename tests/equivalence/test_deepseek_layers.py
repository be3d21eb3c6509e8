"""Every part of the target against transformers' DeepseekV3 on the same random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from deepseek import VARIANTS, Call, random_deepseek, record, save
from tolerances import FLOAT32_ATOL

from convert import load_target
from eagle3_jax.full_pass import TargetOutput, forward
from eagle3_jax.layers.moe import MoE
from eagle3_jax.layers.rope import rope_tables
from eagle3_jax.models.target import Target

IDS = torch.randint(0, 97, (2, 70), generator=torch.Generator().manual_seed(2))
"""Longer than the 64 positions that the YaRN variant extends."""
LAYERS = range(3)
MOE_LAYERS = range(1, 3)


@dataclass(frozen=True)
class Case:
    """Our model, their calls and logits on IDS, and our outputs."""

    target: Target
    calls: dict[str, Call]
    logits: torch.Tensor
    output: TargetOutput


@pytest.fixture(scope="module", params=VARIANTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = random_deepseek(**VARIANTS[request.param])
    directory = save(model, tmp_path_factory.mktemp("deepseek"))
    logits, calls = record(model, IDS)
    target = load_target(directory, dtype="float32")
    output = forward(target, ours(IDS).astype(jnp.int32), aux_layer_ids=LAYERS)
    return Case(target, calls, logits, output)


@jax.jit
def run(module: Callable[..., Any], *inputs: Any) -> Any:
    """One program for all layers of a kind."""
    return module(*inputs)


def ours(tensor: torch.Tensor) -> jax.Array:
    return jnp.asarray(tensor.detach().numpy())


def assert_equal(actual: jax.Array | np.ndarray, expected: torch.Tensor) -> None:
    wanted = expected.detach().numpy()
    np.testing.assert_allclose(
        np.asarray(actual).reshape(wanted.shape), wanted, rtol=0, atol=FLOAT32_ATOL
    )


def hidden_input(call: Call) -> jax.Array:
    return ours(next(value for value in call.inputs if isinstance(value, torch.Tensor)))


def positions() -> jax.Array:
    return jnp.broadcast_to(jnp.arange(IDS.shape[1]), IDS.shape)


def moe(case: Case, layer: int) -> MoE:
    mlp = case.target.layers[layer].mlp
    assert isinstance(mlp, MoE)
    return mlp


@pytest.mark.parametrize("layer", LAYERS)
def test_attention(case: Case, layer: int) -> None:
    config = case.target.config
    call = case.calls[f"model.layers.{layer}.self_attn"]
    rope = rope_tables(config.rope, config.rope_dim, positions())
    attended, _ = run(case.target.layers[layer].self_attn, hidden_input(call), rope)
    assert_equal(attended, call.output[0])


@pytest.mark.parametrize("layer", MOE_LAYERS)
def test_router_chooses_and_weighs(case: Case, layer: int) -> None:
    call = case.calls[f"model.layers.{layer}.mlp.gate"]
    tokens = hidden_input(call).reshape(-1, case.target.config.hidden_size)
    ids, weights = map(np.asarray, run(moe(case, layer).gate, tokens))
    _, their_weights, their_ids = (value.numpy() for value in call.output)
    order, their_order = ids.argsort(-1), their_ids.argsort(-1)
    np.testing.assert_array_equal(
        np.take_along_axis(ids, order, -1), np.take_along_axis(their_ids, their_order, -1)
    )
    np.testing.assert_allclose(
        np.take_along_axis(weights, order, -1),
        np.take_along_axis(their_weights, their_order, -1),
        rtol=0,
        atol=FLOAT32_ATOL,
    )


@pytest.mark.parametrize("layer", MOE_LAYERS)
def test_the_bias_decides_the_choice_and_never_the_weights(case: Case, layer: int) -> None:
    """Lifting expert 6 makes everyone choose it, with the weight its own score gives it."""
    router = moe(case, layer).gate
    config = router.config
    call = case.calls[f"model.layers.{layer}.mlp.gate"]
    tokens = hidden_input(call).reshape(-1, config.hidden_size)
    bias = router.e_score_correction_bias.get_value()
    chosen_before, _ = run(router, tokens)
    router.e_score_correction_bias.set_value(bias.at[6].add(5.0))
    ids, weights = map(np.asarray, run(router, tokens))
    router.e_score_correction_bias.set_value(bias)
    assert not (np.asarray(chosen_before) == 6).any(-1).all()
    assert (ids == 6).any(-1).all()
    scores = np.take_along_axis(torch.sigmoid(call.output[0]).numpy(), ids, axis=-1)
    total = scores.sum(-1, keepdims=True) if config.norm_topk_prob else 1.0
    expected = scores / total * config.routed_scaling_factor
    np.testing.assert_allclose(weights, expected, rtol=0, atol=FLOAT32_ATOL)


def test_whole_logits_and_argmax(case: Case) -> None:
    assert_equal(case.output.logits, case.logits)
    ours_best, their_best = np.asarray(case.output.logits).argmax(-1), case.logits.argmax(-1)
    np.testing.assert_array_equal(ours_best, their_best.numpy())


def test_aux_states_are_the_layers_inputs(case: Case) -> None:
    streams = np.split(np.asarray(case.output.aux_hidden), len(LAYERS), axis=-1)
    for layer, stream in zip(LAYERS, streams, strict=True):
        assert_equal(stream, case.calls[f"model.layers.{layer}"].inputs[0])
