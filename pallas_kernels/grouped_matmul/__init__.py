from pallas_kernels.grouped_matmul.api import grouped_mlp as grouped_mlp
from pallas_kernels.grouped_matmul.shared import GatedKernels as GatedKernels
from pallas_kernels.grouped_matmul.shared import can_join as can_join
from pallas_kernels.grouped_matmul.tile_map import TileMap as TileMap
