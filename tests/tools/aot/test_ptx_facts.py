"""Facts of PTX: loops, what they load from which argument, and how long they wait."""

import pytest

from eagle3_tools.aot.nvidia.facts import read_facts
from eagle3_tools.aot.nvidia.ptx import SmKernel
from eagle3_tools.aot.triton_calls import TritonCall
from eagle3_tools.kernel_model.facts import KernelFacts, Load

WEIGHTS, ROWS = 1 << 26, 1 << 14
BODY = """
    ld.param.b64 %rd1, [k_param_0];
    ld.param.b64 %rd2, [k_param_1];
    add.s64 %rd3, %rd2, %rd9;
    ld.global.v4.b32 {{ %r1, %r2, %r3, %r4 }}, [ %rd1 + 0 ];
$L__BB0_2:
    cp.async.wait_group {allowed};
    bar.sync 0;
    {between}
    wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{%r5}}, %rd7, %rd8, 1;
    cp.async.cg.shared.global [ %r19 + 0 ], [ %rd3 + 0 ], 0x10, %r20;
    cp.async.commit_group;
    @%p1 bra $L__BB0_2;
    st.global.v2.b32 [ %rd5 + 0 ], {{ %r1, %r2 }};
    ret;
"""


def facts(allowed: int, between: str = "") -> KernelFacts:
    """Of a kernel of four warps whose waits leave so many groups of copies under way."""
    code = BODY.format(allowed=allowed, between=between)
    kernel = SmKernel("k", 128, 0, 1024, 128, {}, {}, {}, code)
    call = TritonCall("k", "k", (132, 1, 1), 4, 2, {0: ROWS, 1: WEIGHTS}, 4096, ("", ""), "")
    return read_facts(kernel, call, "sm_90")


def test_loads_are_those_of_the_loop_and_of_their_arguments():
    found = facts(0)
    (loop,) = found.loops
    assert loop.work.loads == (Load(1, 16, 512, True),)
    assert found.outside.loads == (Load(0, 16, 512),)
    assert found.outside.stored == 8 * 32
    assert found.trips(loop, 132.0) == WEIGHTS / (132 * 4 * 512)


@pytest.mark.parametrize(("allowed", "latencies"), [(0, 1.0), (1, 0.5), (2, 1 / 3)])
def test_copies_that_may_stay_under_way_are_waited_for_less(allowed: int, latencies: float):
    (loop,) = facts(allowed).loops
    assert loop.work.chain.latencies == pytest.approx(latencies)


def test_loads_into_registers_wait_for_one_another_at_each_barrier():
    load = "ld.global.b8 { %rs1 }, [ %rd3 + 0 ];\n"
    (one,) = facts(1, load + load).loops
    (two,) = facts(1, load + "bar.sync 0;\n" + load).loops
    assert (one.work.chain.latencies, two.work.chain.latencies) == (1.0, 2.0)
    assert Load(1, 1, 64) in one.work.loads


def test_products_take_their_share_of_the_matrix_units():
    """64 x 64 x 16 of four warps: 131,072 operations at 4,096 a clock and multiprocessor."""
    (loop,) = facts(0).loops
    assert loop.work.matrix == 131_072 / 4096


def test_a_matrix_costs_local_memory_the_same_whichever_instruction_loads_it():
    """LLVM of JAX 0.12 loads with ldmatrix what that of 0.10 loads with ld.shared."""
    (plain,) = facts(0, "ld.shared.v4.b32 { %r1, %r2, %r3, %r4 }, [ %r9 ];").loops
    matrix = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %r1, %r2, %r3, %r4 }, [ %r9 ];"
    (tiles,) = facts(0, matrix).loops
    assert plain.work.lds == tiles.work.lds == 4 * 8 * 8 * 2
