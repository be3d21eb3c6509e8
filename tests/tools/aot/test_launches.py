"""Launches and collectives of optimised HLO as XLA's GPU compiler writes it."""

import re

import pytest

from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.aot.hlo import parse_module
from eagle3_tools.aot.launches import count, launches

LAYER = """
  %fusion.N = (bf16[64,7168]{1,0}, f32[64]{0}) fusion(%get-tuple-element.N), kind=kLoop, \
calls=%fused_computation.N, metadata={op_name="jit(_round)/verify/target_layer_N/norm"}
  %cublas-gemm.N = (bf16[64,576]{1,0}, s8[4194304]{0}) custom-call(%fusion.N, %w.N), \
custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(_round)/verify/target_layer_N/dot"}
  %custom-call.N = bf16[64,512]{1,0} custom-call(%cublas-gemm.N), \
custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(_round)/target_layer_N/mla"}, \
backend_config={debug = false, grid_x = 8 : i32, ir = "name = \\22no\\22 (){}", name = "mla_decode"}
  %all-reduce.N = bf16[64,512]{1,0} all-reduce(%custom-call.N), to_apply=%add
  %bitcast.N = bf16[64,512]{1,0} bitcast(%all-reduce.N)
  %copy.N = bf16[512,64]{0,1} copy(%bitcast.N)
"""
COLLECTIVES = """
  %all-reduce-start = bf16[64,7168]{1,0} all-reduce-start(%Arg_0), to_apply=%add
  %all-reduce-done = bf16[64,7168]{1,0} all-reduce-done(%all-reduce-start)
  %two = (bf16[4]{0}, f32[2,2]{1,0}) all-reduce-start(%x, %y), to_apply=%add
  %two.done = (bf16[4]{0}, f32[2,2]{1,0}) all-reduce-done(%two)
  %all-gather-start = (pred[64]{0}, pred[256]{0}) all-gather-start(%z), dimensions={0}
  %all-gather-done = pred[256]{0} all-gather-done(%all-gather-start)
  %to-all = ((bf16[2,3]{1,0}), bf16[2,3]{1,0}) all-to-all-start(%v), dimensions={0}
  %to-all.done = bf16[2,3]{1,0} all-to-all-done(%to-all)
  %async = ((f32[3]{0}), f32[12]{0}, u32[]) async-start(%w), calls=%all-gather.clone
  %async.done = f32[12]{0} async-done(%async)
"""
PROGRAM = """HloModule jit__round, is_scheduled=true

%add (a: bf16[], b: bf16[]) -> bf16[] {
  ROOT %sum = bf16[] add(%a, %b)
}

%fused_computation.1 (p: bf16[64,7168]) -> (bf16[64,7168], f32[64]) {
  %p = bf16[64,7168]{1,0} parameter(0)
  ROOT %tuple = (bf16[64,7168]{1,0}, f32[64]{0}) tuple(%multiply, %reduce)
}

%body (arg: (s32[], f32[8])) -> (s32[], f32[8]) {
  %one = f32[8]{0} fusion(%arg), kind=kLoop, calls=%fused_computation.9
  ROOT %two = (s32[], f32[8]{0}) fusion(%one), kind=kLoop, calls=%fused_computation.8
}

%condition (arg: (s32[], f32[8])) -> pred[] {
  ROOT %less = pred[] fusion(%arg), kind=kLoop, calls=%fused_computation.7
}

%all-gather.clone (p: f32[3]) -> f32[12] {
  ROOT %all-gather.2 = f32[12]{0} all-gather(%p), dimensions={0}
}

%command_buffer (p.1: f32[8]) -> f32[8] {
  ROOT %inside = f32[8]{0} fusion(%p.1), kind=kInput, calls=%fused_computation.6
}

ENTRY %main.9 (Arg_0: bf16[64,7168]) -> bf16[512,64] {
  %Arg_0 = bf16[64,7168]{1,0} parameter(0)
  %constant = s32[] constant(0)
LAYERS
  %while.1 = (s32[], f32[8]{0}) while(%tuple.1), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  %call = f32[8]{0} call(%while.1), to_apply=%command_buffer
  ROOT %out = bf16[512,64]{0,1} get-tuple-element(%call), index=0
}
"""


def program(layers: int) -> str:
    text = "".join(LAYER.replace("N", str(layer)) for layer in range(layers))
    return PROGRAM.replace("LAYERS", text)


def test_lists_what_is_launched_in_the_order_of_the_schedule():
    found = launches(program(1))
    assert [(launch.kind, launch.name) for launch in found] == [
        ("fusion", "fusion.0"),
        ("library", "__cublas$lt$matmul"),
        ("kernel", "mla_decode"),
        ("collective", "all-reduce.0"),
        ("copy", "copy.0"),
        ("loop", "while.1"),
        ("fusion", "one"),
        ("fusion", "two"),
        ("fusion", "inside"),
    ]
    assert found[1].result == "(bf16[64,576], s8[4194304])"
    assert found[0].scope.endswith("target_layer_0/norm")


def test_a_loop_counts_as_often_as_it_runs_and_collectives_do_not():
    found = launches(program(1))
    assert [launch.times for launch in found if launch.name in ("one", "two")] == [5, 5]
    assert count(found) == 4 + 1 + 2 * 5 + 1


def test_a_loop_whose_length_only_the_data_say_is_marked_and_counts_once():
    text = re.sub(r", backend_config=\{.known_trip_count.*", "", program(0))
    found = launches(text)
    assert [launch.times for launch in found if launch.name in ("one", "two")] == [0, 0]
    assert count(found) == 1 + 2 + 1


def test_every_collective_is_there_once_with_what_comes_out_of_it():
    """Of one that is begun and done the beginning counts, of a gather or exchange what
    comes out."""
    counts = "%counts = f32[64,1,15]{2,1,0} all-reduce(%part), to_apply=%add"
    text = PROGRAM.replace("LAYERS", COLLECTIVES).replace("%one = ", f"{counts}\n  %one = ")
    assert collectives(text) == [
        Collective("all-reduce", "bf16", (64, 7168), 1),
        Collective("all-reduce", "bf16", (4,), 1),
        Collective("all-reduce", "f32", (2, 2), 1),
        Collective("all-gather", "pred", (256,), 1),
        Collective("all-to-all", "bf16", (2, 3), 1),
        Collective("all-gather", "f32", (12,), 1),
        Collective("all-reduce", "f32", (64, 1, 15), 5),
    ]


def test_bytes_are_those_of_the_dtype():
    sizes = [Collective("all-reduce", dtype, (2, 3), 1).nbytes for dtype in ("bf16", "f32", "pred")]
    assert sizes == [12, 24, 6]
    assert Collective("all-gather", "f8e4m3fn", (5,), 1).nbytes == 5


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        parse_module("HloModule m\n")
