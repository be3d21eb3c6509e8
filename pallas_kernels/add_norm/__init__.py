from pallas_kernels.add_norm.api import add_norm as add_norm
