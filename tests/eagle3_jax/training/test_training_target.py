"""The training pass is the model's own arithmetic, segment by segment; training lowers its loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_pair import random_batch, tiny_target

from eagle3_jax.full_pass import forward
from eagle3_jax.layers.moe import MoE
from eagle3_jax.models.target import DecoderLayer
from eagle3_tools.make_demo.training import target_pass as dispatch
from eagle3_tools.make_demo.training.target import balance
from eagle3_tools.make_demo.training.target_pass import target_pass
from pallas_kernels import grouped_mlp


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts with room for every token, as serving has them."""
    monkeypatch.setattr(dispatch, "CAPACITY", 100.0)


@pytest.mark.usefixtures("unlimited")
def test_packed_logits_and_aux_equal_the_unpacked_ones() -> None:
    target, batch = tiny_target(), random_batch(0)
    out = nnx.jit(target_pass)(target, batch)
    logits, aux = target.logits(out.hidden), jnp.concatenate(out.streams[1:3], axis=-1)
    for row in range(len(batch.token_ids)):
        for segment in range(1, batch.segments[row].max() + 1):
            (mine,) = np.nonzero(batch.segments[row] == segment)
            token_ids = np.zeros((1, 12), np.int32)  # causal: padding after does not matter
            token_ids[0, : len(mine)] = batch.token_ids[row, mine]
            alone = forward(target, jnp.asarray(token_ids), aux_layer_ids=(1, 2))
            size = len(mine)
            np.testing.assert_allclose(logits[row, mine], alone.logits[0, :size], atol=2e-4)
            np.testing.assert_allclose(aux[row, mine], alone.aux_hidden[0, :size], atol=2e-4)


def routed(layer: DecoderLayer) -> MoE:
    assert isinstance(layer.mlp, MoE)
    return layer.mlp


def test_dropped_choices_are_left_out_and_gradients_agree() -> None:
    """Capacity 3: the fourth and later choices of an expert vanish, from value and gradient."""
    target = tiny_target()
    experts = routed(target.layers[1]).experts
    x = jax.random.normal(jax.random.key(0), (6, 32))
    expert_ids = jnp.asarray([[0, 1], [0, 2], [0, 3], [0, 1], [0, 2], [1, 3]])
    weights = jax.random.uniform(jax.random.key(1), (6, 2))
    rank = {(3, 0), (4, 0)}  # expert 0 is chosen five times
    kept = jnp.asarray([[0.0 if (t, k) in rank else 1.0 for k in range(2)] for t in range(6)])
    gate, up = experts.gate_proj.get_value(), experts.up_proj.get_value()
    down = experts.down_proj.get_value()

    def plain(x, weights):
        left = weights * kept
        out = grouped_mlp(x, gate, up, down, expert_ids, left, implementation="reference")
        return jnp.sum(jnp.sin(out))

    def packed(x, weights):
        return jnp.sum(jnp.sin(dispatch.routed_experts(experts, x, expert_ids, weights)))

    assert int(dispatch.CAPACITY * 12 / 4) + 1 == 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "CAPACITY", 0.7)
        ours = jax.value_and_grad(packed, (0, 1))(x, weights)
    expected = jax.value_and_grad(plain, (0, 1))(x, weights)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_bias_moves_against_the_load_and_nothing_else_moves() -> None:
    target = tiny_target()
    before = jax.tree.map(jnp.array, nnx.state(target))
    balance(target, jnp.asarray([[9.0, 1.0, 3.0, 3.0], [4.0, 4.0, 4.0, 4.0]]))
    biases = [routed(layer).gate.e_score_correction_bias.get_value() for layer in target.layers[1:]]
    assert np.sign(biases).tolist() == [[-1, 1, 1, 1], [0, 0, 0, 0]]
    for layer in target.layers[1:]:
        routed(layer).gate.e_score_correction_bias.set_value(jnp.zeros(4))
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), before, nnx.state(target))
    assert all(jax.tree.leaves(same))
