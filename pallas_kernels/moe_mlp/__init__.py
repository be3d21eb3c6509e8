from pallas_kernels.moe_mlp.api import moe_mlp as moe_mlp
