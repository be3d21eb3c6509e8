"""The kernels that a program calls, each alone on a device beside its contract."""

from pallas_kernels.self_check.calls import Call as Call
from pallas_kernels.self_check.calls import recorded_calls as recorded_calls
from pallas_kernels.self_check.check import CheckedCall as CheckedCall
from pallas_kernels.self_check.check import check_call as check_call
