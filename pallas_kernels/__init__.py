"""Operations on arrays that decide the speed of a decode step; each folder holds one contract."""

from pallas_kernels.absorb_query import absorb_query as absorb_query
from pallas_kernels.add_norm import add_norm as add_norm
from pallas_kernels.cache_heads import HeadNorms as HeadNorms
from pallas_kernels.cache_heads import cache_heads as cache_heads
from pallas_kernels.cache_heads import norm_heads as norm_heads
from pallas_kernels.cache_latents import cache_latents as cache_latents
from pallas_kernels.fp8_matmul import matmul as matmul
from pallas_kernels.gqa_decode import gqa_decode as gqa_decode
from pallas_kernels.grouped_matmul import GatedKernels as GatedKernels
from pallas_kernels.grouped_matmul import grouped_mlp as grouped_mlp
from pallas_kernels.head_squares import head_squares as head_squares
from pallas_kernels.joint_matmul import gated_matmul as gated_matmul
from pallas_kernels.joint_matmul import joint_matmul as joint_matmul
from pallas_kernels.logits_argmax import logits_argmax as logits_argmax
from pallas_kernels.mla_decode import mla_decode as mla_decode
from pallas_kernels.mla_prefill import mla_prefill as mla_prefill
from pallas_kernels.moe_mlp import moe_mlp as moe_mlp
from pallas_kernels.paged.kv import PagedKV as PagedKV
from pallas_kernels.quantized import QuantFormat as QuantFormat
from pallas_kernels.quantized import QuantizedArray as QuantizedArray
from pallas_kernels.quantized import dequantize as dequantize
from pallas_kernels.route import RouterOptions as RouterOptions
from pallas_kernels.route import route as route
from pallas_kernels.router_logits import router_logits as router_logits
