"""Check of every kernel that a program calls against its reference implementation on a device."""

from eagle3_tools.self_check.calls import Call as Call
from eagle3_tools.self_check.calls import recorded_calls as recorded_calls
from eagle3_tools.self_check.check import CheckedCall as CheckedCall
from eagle3_tools.self_check.check import check_call as check_call
