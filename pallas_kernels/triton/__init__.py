"""All dependencies on Pallas's Triton backend, which JAX has deprecated since 0.11.

Kernels use only these definitions and jax.numpy. If the backend is removed, `triton_ir` (run while
it still exists) and `call_triton_ir` preserve the kernels: XLA compiles Triton IR from text. A load
or store indexes every dimension of its ref with an array, a slice or a `pl.ds`, never with a
mixture. Block sizes are powers of two.
"""

from pallas_kernels.triton.ir_text import call_triton_ir as call_triton_ir
from pallas_kernels.triton.ir_text import triton_ir as triton_ir
from pallas_kernels.triton.launch import count_elements
from pallas_kernels.triton.launch import launch as launch
from pallas_kernels.triton.launch import load as load
from pallas_kernels.triton.launch import scatter as scatter
from pallas_kernels.triton.launch import store as store
from pallas_kernels.triton.launch import whole as whole
from pallas_kernels.triton.products import dot as dot
from pallas_kernels.triton.products import dot_mxfp4 as dot_mxfp4
from pallas_kernels.triton.products import to_fp8 as to_fp8

count_elements()
