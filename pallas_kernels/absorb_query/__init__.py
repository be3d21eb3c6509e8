from pallas_kernels.absorb_query.api import absorb_query as absorb_query
