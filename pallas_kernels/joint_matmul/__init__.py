from pallas_kernels.joint_matmul.api import gated_matmul as gated_matmul
from pallas_kernels.joint_matmul.api import joint_matmul as joint_matmul
