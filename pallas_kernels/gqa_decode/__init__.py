from pallas_kernels.gqa_decode.api import gqa_decode as gqa_decode
