"""Matrix products of blocks, and conversion to the matrix units' float8."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax._src.pallas.triton import lowering
from jax.core import ShapedArray
from jax.experimental.pallas import triton as plt
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith
from jaxlib.triton import dialect

from pallas_kernels import gpu
from pallas_kernels.quantized import QuantFormat, QuantizedArray, dequantize

E4M3, E2M1, BF16 = 0, 4, 5
"""Values of triton::ScaleDotElemType."""
MOST_IMPRECISE_SUMS = 32
"""Most float8 products that Hopper's matrix unit sums by itself, with about 14 bits (DeepSeek-V3
technical report, section 3.3.2): one instruction's. These sums are then added in float32."""


def dot(a: Array, b: Array, *, trans_b: bool = False) -> Array:
    """Compute a @ b, or a @ b.T, summed in float32 (int8: int32). float32 is not rounded to TF32.

    On a GPU with warp groups, which multiply 64 rows, the matrix unit sums 32 float8 products at a
    time. The 64 rows are those of b, the weights, so that a sum has the same bits for any number of
    rows of a. With fewer than 64 rows of b, float8 is multiplied as float16 there, which is exact.
    """
    if trans_b and _by_warp_groups(a, b):
        return _dot_fp8_p.bind(b, a).T
    return plt.dot(a, b, trans_b=trans_b, allow_tf32=False)


def dot_mxfp4(x: Array, x_scale: Array | None, values: Array, scale: Array, total: Array) -> Array:
    """Compute total + x @ w.T for MXFP4 w on a matrix unit that supports it (`Gpu.scaled_dot`).

    values: uint8 [out, in / 2], scale: uint8 e8m0 [out, in / 32]. x: uint8 of the same kind or
    e4m3fn [rows, in], with scales [rows, in / 32] each, or bfloat16 [rows, in] without.
    """
    scales = () if x_scale is None else (x_scale,)
    return _dot_mxfp4_p.bind(x, values, scale, total, *scales)


def to_fp8(x: Array) -> Array:
    """Round float32 in ±448 to e4m3fn, or on gfx942 to the same bits as e4m3fnuz: half of x. Pallas
    cannot cast to e4m3fnuz, in which the bits of -0 are a NaN."""
    small = x.astype(jnp.float8_e4m3fn)
    if gpu.current().fp8 == jnp.float8_e4m3fn:
        return small
    bits = jax.lax.bitcast_convert_type(small, jnp.uint8)
    bits = jnp.where(bits == 0x80, jnp.uint8(0), bits)
    return jax.lax.bitcast_convert_type(bits, gpu.current().fp8)


def _by_warp_groups(a: Array, b: Array) -> bool:
    """Return whether warp groups multiply a @ b.T: float8, with enough rows in b."""
    rows = gpu.current().warp_group
    if gpu.interpreted() or not rows or b.shape[0] < rows:
        return False
    return a.dtype == b.dtype == jnp.float8_e4m3fn


_dot_fp8_p = Primitive("dot_fp8")


@_dot_fp8_p.def_abstract_eval
def _(a: Any, b: Any) -> Any:
    """Return the shape of the sums."""
    return ShapedArray((a.shape[0], b.shape[0]), jnp.float32)


@lowering.register_lowering(_dot_fp8_p)
def _(ctx, a, b):
    (out,) = ctx.avals_out
    f32 = ir.F32Type.get()
    zero = dialect.splat(
        ir.RankedTensorType.get(out.shape, f32), arith.constant(f32, ir.FloatAttr.get(f32, 0.0))
    )
    return dialect.dot(a, dialect.trans(b, (1, 0)), zero, max_num_imprecise_acc=MOST_IMPRECISE_SUMS)


_dot_mxfp4_p = Primitive("dot_mxfp4")


@_dot_mxfp4_p.def_abstract_eval
def _(x: Any, values: Any, scale: Any, total: Any, *x_scale: Any) -> Any:
    """Return the shape of the sum that is added to."""
    return ShapedArray(total.shape, total.dtype)


def _interpreted(x: Array, values: Array, scale: Array, total: Array, *x_scale: Array) -> Array:
    def wide(values: Array, scale: Array) -> Array:
        return dequantize(QuantizedArray(values, scale, QuantFormat("mxfp4")))

    if x.dtype == jnp.uint8:
        x = wide(x, x_scale[0])
    elif x_scale:
        factors = jnp.exp2(x_scale[0].astype(jnp.float32) - 127)
        x = x.astype(jnp.float32) * jnp.repeat(factors, 32, axis=1)
    return total + jnp.matmul(x.astype(jnp.float32), wide(values, scale).T)


mlir.register_lowering(_dot_mxfp4_p, mlir.lower_fun(_interpreted, multiple_results=False))


@lowering.register_lowering(_dot_mxfp4_p)
def _(ctx, x, values, scale, total, *x_scale):
    dtype = ctx.avals_in[0].dtype
    kind = E2M1 if dtype == jnp.uint8 else BF16 if dtype == jnp.bfloat16 else E4M3
    i32 = ir.IntegerType.get_signless(32)
    return dialect.DotScaledOp(
        total.type,
        x,
        dialect.trans(values, (1, 0)),
        total,
        ir.IntegerAttr.get(i32, kind),
        ir.IntegerAttr.get(i32, E2M1),
        fastMath=False,
        a_scale=x_scale[0] if x_scale else None,
        b_scale=scale,
        lhs_k_pack=True,
        rhs_k_pack=True,
    ).result
