from pallas_kernels.grouped_matmul.operation import GROUPED_MLP as GROUPED_MLP
from pallas_kernels.grouped_matmul.operation import grouped_mlp as grouped_mlp
from pallas_kernels.grouped_matmul.shared import GatedKernels as GatedKernels
from pallas_kernels.grouped_matmul.shared import can_join as can_join
from pallas_kernels.grouped_matmul.tile_map import TileMap as TileMap
