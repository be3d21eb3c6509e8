"""XLA's compilers for GPUs on a machine without one.

The plugins' wheels hold the whole compilers. AMD's wants to be linked with ROCm's libraries, and
empty ones do (`amd.stubs`); what comes out is the code object that would run (`amd.code_object`).
NVIDIA's runs an assembler, which says what its kernels take (`nvidia.toolkit`, `nvidia.ptx`).
"""

from eagle3_tools.aot.amd.code_object import GpuKernel as GpuKernel
from eagle3_tools.aot.compile import Program as Program
from eagle3_tools.aot.compile import compile_program as compile_program
from eagle3_tools.aot.nvidia.ptx import SmKernel as SmKernel
