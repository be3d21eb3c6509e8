"""Collectives of optimised HLO as XLA's GPU compiler writes it."""

from eagle3_tools.aot.collectives import Collective, collectives

PROGRAM = """HloModule jit__round, is_scheduled=true

%add (a: bf16[], b: bf16[]) -> bf16[] {
  ROOT %sum = bf16[] add(%a, %b)
}

%body (arg: (s32[], f32[8])) -> (s32[], f32[8]) {
  %counts = f32[64,1,15]{2,1,0} all-reduce(%part), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %out = (s32[], f32[8]{0}) tuple(%i, %counts)
}

%condition (arg: (s32[], f32[8])) -> pred[] {
  ROOT %less = pred[] fusion(%arg), kind=kLoop, calls=%fused_computation.7
}

%all-gather.clone (p: f32[3]) -> f32[12] {
  ROOT %all-gather.2 = f32[12]{0} all-gather(%p), dimensions={0}
}

ENTRY %main.9 (Arg_0: bf16[64,7168]) -> bf16[64,7168] {
  %Arg_0 = bf16[64,7168]{1,0} parameter(0)
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
  %while.1 = (s32[], f32[8]{0}) while(%tuple.1), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"8"}}
  ROOT %result = bf16[64,7168]{1,0} copy(%all-reduce-done)
}
"""


def test_every_collective_is_there_once_with_what_comes_out_of_it():
    """Of one that is begun and done the beginning counts, of a gather or exchange what
    comes out."""
    assert collectives(PROGRAM) == [
        Collective("all-reduce", "bf16", (64, 7168), 1),
        Collective("all-reduce", "bf16", (4,), 1),
        Collective("all-reduce", "f32", (2, 2), 1),
        Collective("all-gather", "pred", (256,), 1),
        Collective("all-to-all", "bf16", (2, 3), 1),
        Collective("all-gather", "f32", (12,), 1),
        Collective("all-reduce", "f32", (64, 1, 15), 8),
    ]


def test_bytes_are_those_of_the_dtype():
    sizes = [Collective("all-reduce", dtype, (2, 3), 1).nbytes for dtype in ("bf16", "f32", "pred")]
    assert sizes == [12, 24, 6]
    assert Collective("all-gather", "f8e4m3fn", (5,), 1).nbytes == 5
