"""Float8 kernels of a model on a GPU with another float8."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.quantized import QuantizedKernel, fit_to_gpu, quantize_structure
from pallas_kernels import QuantFormat, gpu

PTPC = QuantFormat("fp8_channel", "fp8_token")


def quantized_mlp() -> MLP:
    """One quantised kernel, drawn at random, with two plain ones."""
    mlp = MLP(32, 48, rngs=nnx.Rngs(0), dtype=jnp.float32)
    quantize_structure(mlp, {"down_proj.kernel": PTPC})
    kernel = mlp.down_proj.kernel
    assert isinstance(kernel, QuantizedKernel)
    values = jax.random.normal(jax.random.key(1), (32, 48)).astype(jnp.float8_e4m3fn)
    kernel.values.set_value(values)
    kernel.scale.set_value(jnp.linspace(0.1, 2, 32))
    return mlp


def dtypes(model: nnx.Module) -> set[str]:
    return {str(leaf.dtype) for leaf in jax.tree.leaves(nnx.state(model))}


def test_gfx942_gets_its_own_float8_of_the_same_numbers() -> None:
    mlp = quantized_mlp()
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 32)), jnp.float32)
    expected = mlp(x)
    with gpu.assume("gfx942"):
        fitted = fit_to_gpu(mlp)
    assert dtypes(fitted) == {"float32", "float8_e4m3fnuz"}
    assert dtypes(mlp) == {"float32", "float8_e4m3fn"}
    assert isinstance(fitted, MLP)
    np.testing.assert_array_equal(fitted(x), expected)


def test_where_the_float8_fits_the_model_is_the_given_one() -> None:
    mlp = quantized_mlp()
    assert fit_to_gpu(mlp) is mlp
    with gpu.assume("gfx950"):
        assert fit_to_gpu(mlp) is mlp


def test_shapes_are_fitted_as_arrays_are() -> None:
    mlp = nnx.eval_shape(lambda: MLP(32, 48, rngs=nnx.Rngs(0), dtype=jnp.float32))
    quantize_structure(mlp, {"down_proj.kernel": PTPC})
    with gpu.assume("gfx942"):
        assert dtypes(fit_to_gpu(mlp)) == {"float32", "float8_e4m3fnuz"}
