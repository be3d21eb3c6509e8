"""The router's choice of experts and their weights."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from flax import nnx
from tiny import TARGET

from eagle3_jax.layers.moe import Router


def router(bias: list[float], *, normalise: bool = True) -> Router:
    """Logits of the four experts are the first four inputs."""
    config = replace(TARGET, hidden_size=4, norm_topk_prob=normalise).moe
    made = Router(config, rngs=nnx.Rngs(0), dtype=jnp.float32)
    made.kernel.set_value(jnp.eye(4))
    made.e_score_correction_bias.set_value(jnp.asarray(bias))
    return made


def sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-x))


def test_the_bias_decides_the_choice_and_never_the_weights() -> None:
    ids, weights = router([0.0, 0.0, 0.0, 9.0])(jnp.array([[2.0, 1.0, 0.0, -3.0]]))
    assert ids.tolist() == [[3, 0]]
    scores = np.array([sigmoid(-3.0), sigmoid(2.0)])
    expected = TARGET.routed_scaling_factor * scores / scores.sum()
    np.testing.assert_allclose(weights[0], expected, rtol=1e-6)


def test_weights_may_stay_as_they_are() -> None:
    _, weights = router([0.0] * 4, normalise=False)(jnp.array([[2.0, 1.0, 0.0, -3.0]]))
    expected = TARGET.routed_scaling_factor * np.array([sigmoid(2.0), sigmoid(1.0)])
    np.testing.assert_allclose(weights[0], expected, rtol=1e-6)


def test_scores_that_are_nearly_zero_give_small_weights_and_no_nan() -> None:
    """The sum that weights are divided by has 1e-20 added, as the published router has."""
    _, weights = router([0.0] * 4)(jnp.array([[-60.0] * 4, [-200.0] * 4]))
    score = np.exp(-60.0)
    expected = TARGET.routed_scaling_factor * score / (2 * score + 1e-20)
    np.testing.assert_allclose(weights, [[expected] * 2, [0.0] * 2], rtol=1e-5)


def test_ties_go_to_the_lower_expert() -> None:
    ids, _ = router([0.0] * 4)(jnp.array([[1.0, 1.0, 1.0, 1.0], [0.0, 3.0, 3.0, 3.0]]))
    assert ids.tolist() == [[0, 1], [1, 2]]
