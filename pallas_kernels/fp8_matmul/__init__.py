from pallas_kernels.fp8_matmul.api import matmul as matmul
