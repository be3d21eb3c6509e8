"""A compiled program has everything that a run needs, and gives JAX's results."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

pytest.importorskip("tinygrad")

from eagle3_tools.amdgpu.program.compiled import Source, compile_source
from eagle3_tools.amdgpu.program.executable import Conditional, LibraryProduct, While
from eagle3_tools.amdgpu.program.run import run_program
from eagle3_tools.kernel_cases.case import AMD

F32 = np.dtype(np.float32)
TABLE = np.arange(3000, dtype=np.float32).reshape(30, 100)
"""A constant too large to be embedded in a kernel's code."""


def control_flow(
    x: Array, w: Array, unused: Array, count: Array, order: Array
) -> tuple[Array, ...]:
    """A library product, a loop of dynamic length, a branch, sorts, a table and a scan."""

    def more(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        step, y = carry
        return step + 1, 0.1 * jnp.tanh(y) * y.sum(-1, keepdims=True)

    start = jnp.int32(0), x @ w
    _, y = jax.lax.while_loop(lambda carry: carry[0] < count, more, start)
    z = jax.lax.cond(count > 3, lambda y: jnp.sort(y, axis=1), lambda y: 2 * y[::-1], y)
    places = jnp.arange(len(order), dtype=jnp.int32)
    keys, places = jax.lax.sort((order, places), num_keys=1)
    row = jnp.asarray(TABLE)[count]
    return y, z, order.at[3].set(count), keys, places, row, jnp.cumsum(y, axis=0)


def source(arch: str) -> Source:
    shape = jax.ShapeDtypeStruct
    arrays = shape((64, 128), jnp.float32), shape((128, 96), jnp.float32), shape((3,), jnp.int32)
    numbers = shape((), jnp.int32), shape((50,), jnp.int32)
    return Source(arch, control_flow, (*arrays, *numbers), donated=(4,))


@pytest.mark.parametrize("arch", AMD)
def test_a_program_brings_its_code_however_often_the_process_compiled_it(
    rocm_compiler: None, arch: str
):
    first, second = (compile_source(source(arch)) for _ in range(2))
    assert first.objects == second.objects
    assert len(first.objects) > 5 and all(code.startswith(b"\x7fELF") for code in first.objects)
    for launch in first.launches:
        assert launch.kernel.encode() in launch.code
        assert min(launch.grid) >= 1 and 1 <= np.prod(launch.threads) <= 1024
        assert len(launch.arguments) == len(launch.written)
    assert {While, Conditional, LibraryProduct} <= {type(step) for step in first.executable.steps}


def test_arguments_that_jit_prunes_and_large_constants_are_known(rocm_compiler: None):
    program = compile_source(source("gfx950"))
    assert (program.arguments, program.kept) == (5, (0, 1, 3, 4))
    assert any(np.array_equal(c, TABLE.reshape(-1)) for c in program.executable.constants.values())
    donated = program.executable.parameters[3]
    assert donated.buffer == program.executable.results[2].buffer


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("km,nk->nm", (64, 32), (48, 64)),
        ("mbk,kbn->mbn", (32, 3, 64), (64, 3, 48)),
        ("bmk,bnk->bnm", (3, 32, 64), (3, 48, 64)),
    ],
)
def test_products_of_the_library_have_any_layout_and_batches(
    rocm_compiler: None, equation: str, left: tuple[int, ...], right: tuple[int, ...]
):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=shape).astype(F32) for shape in (left, right))
    shapes = tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (x, y))
    compiled = compile_source(Source("gfx950", partial(jnp.einsum, equation), shapes))
    assert [type(step) for step in compiled.executable.steps] == [LibraryProduct]
    (found,) = run_program(compiled, [x, y], poison=0).results
    np.testing.assert_allclose(found, np.einsum(equation, x, y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arch", AMD)
@pytest.mark.parametrize("count", [2, 5])
def test_a_compiled_program_gives_what_jax_gives(rocm_compiler: None, arch: str, count: int):
    rng = np.random.default_rng(count)
    x, w = rng.normal(size=(64, 128)) / 16, rng.normal(size=(128, 96))
    numbers = np.zeros(3, np.int32), np.array(count, np.int32), rng.integers(0, 40, 50)
    arguments = [x.astype(F32), w.astype(F32), *numbers[:2], numbers[2].astype(np.int32)]
    compiled = compile_source(source(arch))
    done = run_program(compiled, arguments, poison=0x7FC12345)
    for found, expected in zip(done.results, jax.jit(control_flow)(*arguments), strict=True):
        np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-4, atol=1e-4)
    assert [flops for _, flops in done.library] == [2 * 64 * 128 * 96]
    assert sum(name == "wrapped_compare" for name, _ in done.launches) == count + 1
