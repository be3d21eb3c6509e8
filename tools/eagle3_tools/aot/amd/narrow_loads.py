"""Loads of one or two bytes a lane, each of which takes as long as a load of sixteen."""

from eagle3_tools.aot.amd.code_object import GpuKernel
from eagle3_tools.aot.amd.flow import read_flow
from eagle3_tools.aot.amd.machine_code import read_kernels
from eagle3_tools.aot.amd.operations import goes_to_lds, is_load, memory_width
from eagle3_tools.aot.amd.origins import origins
from eagle3_tools.aot.target import NARROW
from eagle3_tools.aot.triton_calls import TritonCall


def narrow_loads(kernel: GpuKernel, call: TritonCall) -> dict[int, int]:
    """Return argument index -> number of narrow loads of it in the code."""
    if not kernel.loads_narrowly:
        return {}
    code = read_kernels(kernel.code)[kernel.name]
    flow, found = read_flow(code.code, code.entry), dict[int, int]()
    loads = {i.pc: i for block in flow.blocks.values() for i in block if is_load(i)}
    for pc, places in origins(flow).items():
        if memory_width(loads[pc]) <= NARROW and not goes_to_lds(loads[pc]):
            place = max(places, key=lambda place: call.operands.get(place, 0), default=-1)
            found[place] = found.get(place, 0) + 1
    return found
