from pallas_kernels.mla_prefill.api import mla_prefill as mla_prefill
from pallas_kernels.mla_prefill.api import mla_prefill_part as mla_prefill_part
