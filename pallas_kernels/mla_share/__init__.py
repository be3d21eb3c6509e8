from pallas_kernels.mla_share.api import attend_share as attend_share
from pallas_kernels.mla_share.api import share_values as share_values
from pallas_kernels.mla_share.reference import join_shares as join_shares
