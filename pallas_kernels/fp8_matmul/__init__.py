from pallas_kernels.fp8_matmul.matmul import MATMUL as MATMUL
from pallas_kernels.fp8_matmul.matmul import matmul as matmul
