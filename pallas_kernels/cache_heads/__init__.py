from pallas_kernels.cache_heads.api import cache_heads as cache_heads
from pallas_kernels.cache_heads.reference import norm_heads as norm_heads
from pallas_kernels.cache_heads.rows import HeadNorms as HeadNorms
