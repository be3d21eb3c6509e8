"""What makes the round's check fail."""

from dataclasses import replace

import pytest

from eagle3_tools.aot.launches import Launch, count
from eagle3_tools.plan.compile.compiled_round import RoundShape
from eagle3_tools.plan.compile.layer_launches import (
    GOAL,
    MOST_LAUNCHES,
    RoundReport,
    launches_of_layers,
)

MOST = MOST_LAUNCHES["mxfp4", 16]
REPORT = RoundReport(RoundShape("gfx950", "mxfp4", 3), (), MOST, 481, 0, 0, (), (), 1.0)


def test_a_step_back_fails_and_so_does_a_copy_where_there_was_none():
    assert REPORT.failures == []
    worse = replace(REPORT, per_layer=MOST + 1, problems=("k: 2 VGPR spills",), copies=("a copy",))
    more = f"{MOST + 1} launches a MoE layer, were {MOST}"
    assert worse.failures == ["k: 2 VGPR spills", "a copy", more]
    other = replace(worse, shape=RoundShape("gfx942", "mxfp4", 3), per_layer=MOST)
    assert other.failures == ["k: 2 VGPR spills"]


def test_no_round_may_launch_more_than_the_goal():
    assert max(MOST_LAUNCHES.values()) <= GOAL


def test_a_larger_batch_has_a_bound_of_its_own():
    shape = RoundShape("gfx942", "mxfp4", 3, batch=64)
    more = replace(REPORT, shape=shape, per_layer=MOST_LAUNCHES["mxfp4", 64])
    assert more.failures == [] and more.per_layer >= MOST


def test_what_xla_fuses_without_a_scope_counts_for_the_layer_it_follows():
    """A residual sum between two layers is nobody's by name, and launched all the same."""
    scopes = ("embed", "target_layer_0/norm", "target_layer_0/psum", "", "target_layer_1/norm")
    kinds = ("fusion", "kernel", "collective", "fusion", "kernel")
    found = [
        Launch(f"{i}", kind, "f32[1]", f"jit(f)/verify/{scope}" if scope else "")
        for i, (scope, kind) in enumerate(zip(scopes, kinds, strict=True))
    ]
    layers = launches_of_layers(found)
    assert {i: [one.name for one in layer] for i, layer in layers.items()} == {
        0: ["1", "2", "3"],
        1: ["4"],
    }
    assert count(layers[0]) == 2
    with pytest.raises(ValueError, match="1 of layer 0 comes after layer 1"):
        launches_of_layers([found[4], *found[1:4]])
