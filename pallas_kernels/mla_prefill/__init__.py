from pallas_kernels.mla_prefill.api import mla_prefill as mla_prefill
