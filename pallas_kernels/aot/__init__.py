"""XLA's ROCm compiler on a machine without an AMD GPU and without ROCm.

The plugin's wheel holds the whole compiler; it only wants to be linked with ROCm's libraries, and
empty ones do (`stubs`). What comes out is the code object that would run (`code_object`).
"""

from pallas_kernels.aot.code_object import GpuKernel as GpuKernel
from pallas_kernels.aot.compile import Program as Program
from pallas_kernels.aot.compile import compile_program as compile_program
