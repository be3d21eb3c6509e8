from pallas_kernels.grouped_matmul.api import grouped_mlp as grouped_mlp
from pallas_kernels.grouped_matmul.products import Operand as Operand
from pallas_kernels.grouped_matmul.shared import looks_routed as looks_routed
from pallas_kernels.grouped_matmul.tile_map import TileMap as TileMap
