"""Rows written into pages: latents, and heads of keys and values. Normed, rotated, nothing else."""

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from sweeps import sweep
from test_quantized import random_array

from pallas_kernels import (
    HeadNorms,
    QuantFormat,
    cache_heads,
    cache_latents,
    gpu,
    head_squares,
    matmul,
)
from pallas_kernels.partial_sums import PartialSums, total
from pallas_kernels.quantized import for_gpu
from pallas_kernels.rms_norm import Norm

IMPLEMENTATIONS = ["xla", "pallas"]
BATCH, Q_LEN, PAGES, PAGE_SIZE, EPS = 3, 4, 9, 4, 1e-5
LATENT, HALF, HEADS, KV_HEADS, DIM = 24, 5, 4, 2, 14
"""HALF: pairs that are rotated, of a latent's key, or of a head, which has DIM / 2."""
ROWS = {"latents": [(LATENT + 2 * HALF,)], "heads": [(KV_HEADS, DIM)] * 2}
"""A slot's row in each pool."""
WIDTHS = {"latents": [LATENT + 2 * HALF], "heads": [HEADS * DIM, *[KV_HEADS * DIM] * 2]}
WEIGHTS = {size: np.linspace(0.5, 2, size, dtype=np.float32) for size in (24, 56, 28)}
PLACES = np.random.default_rng(0).permutation(np.arange(PAGE_SIZE, PAGES * PAGE_SIZE))
PLACES = PLACES[: BATCH * Q_LEN].reshape(BATCH, Q_LEN).astype(np.int32)
each = pytest.mark.parametrize(("kind", "implementation"), [*product(ROWS, IMPLEMENTATIONS)])


def rows(kind: str) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=(BATCH, Q_LEN, n)).astype(np.float32) for n in WIDTHS[kind]]


def angles(half: int = HALF) -> NDArray[np.float64]:
    return np.random.default_rng(2).uniform(-3, 3, (BATCH, Q_LEN, half))


def empty(kind: str, dtype: Any = np.float32, more: int = 0) -> list[NDArray[Any]]:
    shapes = ((PAGES, PAGE_SIZE, *row[:-1], row[-1] + more) for row in ROWS[kind])
    return [np.zeros(shape, dtype) for shape in shapes]


def write(
    kind: str,
    given: list[Any],
    pools: list[Any],
    implementation: str,
    *,
    half: int = HALF,
    normed: bool = True,
    scale: Any = None,
    **options: Any,
) -> tuple[list[Any], Any]:
    """The pools, and what is left of the queries."""
    tables = [jnp.asarray(f(angles(half)), jnp.float32) for f in (np.cos, np.sin)]
    places = PLACES // PAGE_SIZE, PLACES % PAGE_SIZE
    arrays = [*tables, *map(jnp.asarray, (*pools, *places))]
    norms = {n: Norm(jnp.asarray(w, given[0].dtype), EPS) for n, w in WEIGHTS.items()}
    options["implementation"] = implementation
    if kind == "latents":
        pool, queries = cache_latents(given[0], norms[24], *arrays, kv_scale=scale, **options)
        return [pool], queries
    if normed:
        squares = head_squares(*given[:2], implementation=implementation)
        options["norms"] = HeadNorms(norms[56], norms[28], squares, 1)
    queries, *written = cache_heads(*given, *arrays, k_scale=scale, v_scale=scale, **options)
    return written, queries


def run(
    kind: str, given: list[Any], implementation: str, pools: Any = None, **options: Any
) -> tuple[list[NDArray[Any]], Any]:
    """Pools [slots, ...], and queries [rows, heads, dim] if there are any."""
    call = jax.jit(lambda given, pools: write(kind, given, pools, implementation, **options))
    written, queries = call([*map(jnp.asarray, given)], pools or empty(kind))
    flat = [np.asarray(pool).reshape(-1, *pool.shape[2:]) for pool in written]
    return flat, None if queries is None else np.asarray(queries).reshape(-1, HEADS, DIM)


def norm(wide: NDArray[np.float64]) -> NDArray[np.float64]:
    weight = WEIGHTS[wide.shape[-1]]
    return weight * wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPS)


def turned(heads: NDArray[Any], half: int, normed: bool) -> NDArray[np.float64]:
    """One norm over all heads and complex multiplication [rows, heads, dim]."""
    wide = heads.astype(np.float64)
    wide = (norm(wide) if normed else wide).reshape(BATCH, Q_LEN, -1, DIM)
    pairs = wide[..., :half] + 1j * wide[..., half : 2 * half]
    pairs = pairs * np.exp(1j * angles(half))[:, :, None]
    both = np.concatenate([pairs.real, pairs.imag, wide[..., 2 * half :]], axis=-1)
    return both.reshape(BATCH * Q_LEN, -1, DIM)


def expected_rows(
    kind: str, given: list[NDArray[Any]], half: int = HALF, normed: bool = True
) -> list[NDArray[np.float64]]:
    """Return the rows of each pool, in float64."""
    if kind == "heads":
        return [turned(given[1], half, normed), given[2].reshape(-1, KV_HEADS, DIM)]
    latent, key = np.split(given[0].astype(np.float64), [LATENT], axis=-1)
    pairs = (key[..., ::2] + 1j * key[..., 1::2]) * np.exp(1j * angles())
    key = np.stack([pairs.real, pairs.imag], axis=-1).reshape(key.shape)
    return [np.concatenate([norm(latent), key], axis=-1).reshape(BATCH * Q_LEN, -1)]


@pytest.mark.parametrize(
    ("kind", "implementation", "half", "normed"),
    sweep(
        [
            *product(["latents"], IMPLEMENTATIONS, [HALF], [True]),
            *product(["heads"], IMPLEMENTATIONS, [HALF, DIM // 2], [True, False]),
        ],
        [
            *product(["latents"], IMPLEMENTATIONS, [HALF], [True]),
            *(("heads", "xla", DIM // 2, False), ("heads", "pallas", HALF, True)),
        ],
    ),
)
def test_rows_are_normed_and_rotated_and_nothing_else_is_touched(
    kind: str, implementation: str, half: int, normed: bool
) -> None:
    """Against float64; slots that are not written keep their bits."""
    rng, places = np.random.default_rng(3), PLACES.reshape(-1)
    before = [rng.normal(size=pool.shape).astype(np.float32) for pool in empty(kind)]
    options: Any = {"half": half, "normed": normed}
    pools, queries = run(kind, rows(kind), implementation, before, **options)
    for pool, was, right in zip(
        pools, before, expected_rows(kind, rows(kind), **options), strict=True
    ):
        untouched = np.setdiff1d(np.arange(len(pool)), places)
        np.testing.assert_array_equal(pool[untouched], was.reshape(pool.shape)[untouched])
        np.testing.assert_allclose(pool[places], right, atol=2e-6)
    if kind == "heads":
        np.testing.assert_allclose(queries, turned(rows(kind)[0], half, normed), atol=2e-6)


@each
def test_a_row_that_is_not_finite_has_a_key_of_nan_and_harmless_values(
    kind: str, implementation: str
) -> None:
    spoiled = rows(kind)
    for array in spoiled:
        array[1, 1] = np.nan
    (pools, queries), (fine, others) = (
        run(kind, given, implementation) for given in (spoiled, rows(kind))
    )
    place, rest = PLACES[1, 1], np.delete(PLACES.reshape(-1), Q_LEN + 1)
    for got, right in zip(pools, fine, strict=True):
        np.testing.assert_array_equal(got[rest], right[rest])
    values, key = np.split(pools[0][place], [LATENT if kind == "latents" else 0])
    values = values if kind == "latents" else pools[1][place]
    assert np.isnan(key).all() and (values == 0).all()
    if kind == "heads":
        assert np.isnan(queries[Q_LEN + 1]).all()
        kept = np.delete(np.arange(BATCH * Q_LEN), Q_LEN + 1)
        np.testing.assert_array_equal(queries[kept], others[kept])


@each
def test_float8_pools_hold_rows_by_their_scale_and_saturate(kind: str, implementation: str) -> None:
    large, factor = rows(kind), jnp.float32(0.5)
    large[-1][0, 0, -1] = -1e6
    pools, _ = run(kind, large, implementation, empty(kind, ml_dtypes.float8_e4m3fn), scale=factor)
    for pool, exact in zip(pools, expected_rows(kind, large), strict=True):
        stored = pool[PLACES.reshape(-1)].astype(np.float32)
        wanted = np.clip(exact / 0.5, -448, 448)
        # A value between two of e4m3fn may go to either where float32 and float64 differ.
        np.testing.assert_allclose(stored, wanted, rtol=2**-4 + 1e-5, atol=2**-10)
    assert np.abs(pools[-1][PLACES[0, 0]].astype(np.float32)).max() == 448


@pytest.mark.parametrize(
    ("kind", "implementation"),
    sweep(product(ROWS, ["reference", "pallas"]), [*product(ROWS, ["pallas"])]),
)
def test_products_in_parts_are_cached_as_their_sums(kind: str, implementation: str) -> None:
    """The products are bfloat16; parts added in another order round to another sum."""
    rng = np.random.default_rng(0)

    def parts(width: int) -> PartialSums:
        values = rng.normal(size=(5, BATCH, Q_LEN, width))
        values *= 10.0 ** rng.integers(-3, 4, (5, BATCH, 1, 1))
        return PartialSums(jnp.asarray(values, jnp.float32), jnp.dtype("bfloat16"))

    given, pools = [parts(width) for width in WIDTHS[kind]], empty(kind, jnp.bfloat16)
    low, weight = parts(20), Norm(jnp.linspace(0.5, 2, 20, dtype=jnp.bfloat16), EPS)

    def call(given: list[Any], low: Any) -> Any:
        options: Any = {"q_low": low, "q_norm": weight} if kind == "latents" else {"normed": False}
        return write(kind, given, pools, implementation, **options)

    got, expected = jax.jit(call)(given, low), jax.jit(call)([*map(total, given)], total(low))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize("implementation", sweep(IMPLEMENTATIONS, ["pallas"]))
def test_a_device_norms_its_heads_by_the_squares_of_all(implementation: str) -> None:
    """Half of the heads with the sums of both halves are half of what one device makes."""
    q, k, v = (x.reshape(BATCH, Q_LEN, 2, -1) for x in rows("heads"))
    tables = [np.asarray(f(angles()), np.float32) for f in (np.cos, np.sin)]
    squares = sum(np.stack([(x[:, :, half] ** 2).sum(-1) for x in (q, k)], -1) for half in (0, 1))
    pools, queries = run("heads", rows("heads"), implementation)
    for half in (0, 1):
        weights = (WEIGHTS[size].reshape(2, -1)[half] for size in (56, 28))
        q_norm, k_norm = (Norm(jnp.asarray(weight), EPS) for weight in weights)
        pool = jnp.zeros((PAGES, PAGE_SIZE, KV_HEADS // 2, DIM))
        arrays = *(x[:, :, half] for x in (q, k, v)), *tables, pool, pool
        norms = HeadNorms(q_norm, k_norm, jnp.asarray(squares), 2)
        own = jax.jit(partial(cache_heads, norms=norms, implementation=implementation))
        found = own(*arrays, PLACES // PAGE_SIZE, PLACES % PAGE_SIZE)
        for got, all_heads in zip(found, (queries, *pools), strict=True):
            expected = np.split(all_heads, 2, axis=1)[half]
            np.testing.assert_allclose(np.asarray(got).reshape(expected.shape), expected, atol=1e-6)


LOW = np.random.default_rng(4).normal(size=(BATCH, Q_LEN, 64)).astype(np.float32)
LOW_NORM = np.linspace(-1, 1, 64, dtype=np.float32)


def write_with_queries(implementation: str, **options: Any) -> tuple[list[Any], Any]:
    queries: Any = {"q_low": jnp.asarray(LOW), "q_norm": Norm(jnp.asarray(LOW_NORM), 1e-3)}
    given = [*map(jnp.asarray, rows("latents"))]
    return write("latents", given, empty("latents"), implementation, **queries, **options)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_low_rank_of_queries_is_normed_beside_latents(implementation: str) -> None:
    (pool,), normed = jax.jit(lambda: write_with_queries(implementation))()
    wide = LOW.astype(np.float64)
    expected = LOW_NORM * wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(normed, expected, atol=1e-6)
    assert np.asarray(pool).reshape(-1, pool.shape[-1])[PLACES, LATENT:].any(-1).all()


@pytest.mark.parametrize("arch", sweep(["gfx950", "gfx942"], ["gfx942"]))
def test_queries_for_a_float8_product_come_quantised(arch: str) -> None:
    """The product of what the kernel leaves is that of the normed rows, on CPU and in the kernel;
    other products refuse them."""
    ptpc = QuantFormat("fp8_channel", "fp8_token")
    weights, _ = random_array(ptpc, 24, 64)

    def multiplied(implementation: str) -> tuple[Any, jax.Array]:
        _, normed = write_with_queries(implementation, q_format=ptpc)
        fitting = for_gpu(weights) if implementation == "pallas" else weights
        return normed, matmul(normed, fitting, implementation=implementation)

    with gpu.assume(arch):
        rows_made, got = jax.jit(lambda: multiplied("pallas"))()
        assert rows_made.values.dtype == gpu.current().fp8 and rows_made.shape == LOW.shape
        fitting = for_gpu(weights)
    plain, expected = jax.jit(lambda: multiplied("xla"))()
    assert plain.dtype == jnp.float32
    # A value between two of float8 may go to either where the norms differ in their last bits.
    np.testing.assert_allclose(got, expected, atol=0.02 * float(np.abs(expected).max()))
    np.testing.assert_allclose(matmul(rows_made, fitting), got, atol=1e-5)
    for other in (jnp.ones((64, 8)), random_array(QuantFormat("fp8_channel"), 24, 64)[0]):
        with pytest.raises(ValueError, match="expected a kernel that multiplies fp8_token"):
            matmul(rows_made, other)


@pytest.mark.usefixtures("no_jaxtyping")
def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rows are 24 \+ 10 values; compressed has 34, the pool"):
        run("latents", rows("latents"), "xla", empty("latents", more=1))
    q, k, v = rows("heads")
    with pytest.raises(ValueError, match=r"expected rows of 2 heads of 15, as the pool of keys"):
        run("heads", [q, k, v], "xla", empty("heads", more=1), normed=False)
    with pytest.raises(ValueError, match="queries of whole heads of 14"):
        run("heads", [q[..., 1:], k, v], "xla", normed=False)
    with pytest.raises(ValueError, match="expected q and k of the same rows"):
        head_squares(jnp.asarray(q[:1]), jnp.asarray(k))
    for kind in ROWS:
        with pytest.raises(ValueError, match="needs its scale"):
            run(kind, rows(kind), "xla", empty(kind, ml_dtypes.float8_e4m3fn))
