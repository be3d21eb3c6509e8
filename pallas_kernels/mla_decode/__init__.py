from pallas_kernels.mla_decode.api import mla_decode as mla_decode
