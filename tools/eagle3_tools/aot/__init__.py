"""Ahead-of-time compilation with XLA's GPU compilers on a machine without a GPU.

The plugins' wheels contain the whole compilers. AMD's must be linked with ROCm's libraries, for
which empty ones suffice (`amd.stubs`); its output is the code object that would run
(`amd.code_object`). NVIDIA's runs an assembler, which reports its kernels' resources
(`nvidia.toolkit`, `nvidia.ptx`).
"""

from eagle3_tools.aot.amd.code_object import GpuKernel as GpuKernel
from eagle3_tools.aot.compile import Program as Program
from eagle3_tools.aot.compile import compile_program as compile_program
from eagle3_tools.aot.nvidia.ptx import SmKernel as SmKernel
