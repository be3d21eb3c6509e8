"""Check of every kernel that a program calls against its reference implementation on a device."""

from pallas_kernels.self_check.calls import Call as Call
from pallas_kernels.self_check.calls import recorded_calls as recorded_calls
from pallas_kernels.self_check.check import CheckedCall as CheckedCall
from pallas_kernels.self_check.check import check_call as check_call
