from pallas_kernels.gqa_share.api import gqa_share as gqa_share
