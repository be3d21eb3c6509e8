"""All that depends on Pallas's Triton backend, which JAX has deprecated since 0.11.

Kernels are written with what is defined here and with jax.numpy. If the backend goes, `triton_ir`
(while it is still there) and `call_triton_ir` keep them: XLA compiles Triton's IR as text.
A load or store indexes every dimension of its ref with an array, a slice or a `pl.ds`, never with
a mixture, and blocks have sizes that are powers of two.
"""

from pallas_kernels.triton.ir_text import call_triton_ir as call_triton_ir
from pallas_kernels.triton.ir_text import triton_ir as triton_ir
from pallas_kernels.triton.launch import launch as launch
from pallas_kernels.triton.launch import load as load
from pallas_kernels.triton.launch import scatter as scatter
from pallas_kernels.triton.launch import store as store
from pallas_kernels.triton.launch import whole as whole
from pallas_kernels.triton.offsets import count_elements
from pallas_kernels.triton.products import dot as dot
from pallas_kernels.triton.products import dot_mxfp4 as dot_mxfp4
from pallas_kernels.triton.products import to_fp8 as to_fp8

count_elements()
