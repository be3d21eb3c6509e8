"""`eagle3-plan --kernels`: rounds by the model of the compiled code."""

from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_tools.kernel_model.gpus import BY_ARCH
from eagle3_tools.kernel_model.record import FOLDER, recorded, write_record
from eagle3_tools.plan.cli import main
from eagle3_tools.plan.compile.layer_launches import MOST_LAUNCHES
from eagle3_tools.plan.data.fixed_costs import HOST_LAUNCH_S, Running
from eagle3_tools.plan.data.gpus import GPUS, MI355X
from eagle3_tools.plan.data.modelled import modelled
from eagle3_tools.plan.kernels.changes import case_changes
from eagle3_tools.plan.kernels.peers import peers
from eagle3_tools.plan.kernels.round_launches import MOE_LAYERS, RoundOf, Scheme
from eagle3_tools.plan.kernels.round_time import round_time
from eagle3_tools.plan.model.kernels import Kernel

REPLAYED, LAUNCHED = Running(True, True), Running(False, False)


@pytest.mark.parametrize("batch", [16, 64])
@pytest.mark.parametrize("scheme", ["mxfp4", "int4"])
def test_a_layer_has_the_launches_that_were_compiled(scheme: Scheme, batch: int) -> None:
    cases = recorded("gfx950")
    counted = 0
    for launch in RoundOf(scheme, batch, 4).launches():
        if launch.times >= MOE_LAYERS:
            calls = launch.times // MOE_LAYERS
            counted += calls * (len(cases[launch.case].kernels) if launch.case else 1)
    assert counted == MOST_LAUNCHES[scheme, batch]


@pytest.mark.parametrize("gpu", ["MI355X", "MI325X"])
def test_a_round_is_no_faster_than_its_bytes_and_its_parts_are_the_whole(gpu: str) -> None:
    cases = recorded(GPUS[gpu].arch)
    found = round_time(RoundOf("mxfp4", 16, 4), gpu, cases)
    assert 0 < found.kernels.share < 1
    assert found.kernels.seconds == pytest.approx(sum(s * n for s, n in found.launches))
    assert found.kernels.kernels == sum(n for _, n in found.launches)
    few = round_time(RoundOf("mxfp4", 16, 8), gpu, cases)
    assert few.kernels.floor < found.kernels.floor < 2 * few.kernels.floor
    assert found.kernels.seconds < found.seconds(REPLAYED) <= found.seconds(LAUNCHED)


def test_a_launch_takes_what_the_host_needs_where_nothing_replays_it() -> None:
    assert LAUNCHED.launch_seconds(1e-6, 1e-6) == HOST_LAUNCH_S
    assert REPLAYED.launch_seconds(1e-6, 1e-6) == pytest.approx(2e-6)
    assert LAUNCHED.launch_seconds(1e-4, 1e-6) == REPLAYED.launch_seconds(1e-4, 1e-6)


def test_sums_cost_less_in_own_kernels_as_long_as_those_are_taken() -> None:
    own, library = (r.sum_seconds(1e5, 4, MI355X) for r in (REPLAYED, LAUNCHED))
    assert own < library
    large = (r.sum_seconds(1e8, 4, MI355X) for r in (REPLAYED, LAUNCHED))
    assert len(set(large)) == 1
    assert REPLAYED.sum_seconds(1e5, 1, MI355X) == 0


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_fits_to_the_model_are_times_that_can_be(gpu) -> None:
    for kind, found in modelled(gpu.arch).items():
        assert 0 < found.seconds < 2e-4, kind
        assert 0.05 < found.of_bandwidth <= 0.9, kind
    assert (gpu.tuned is gpu.published) == (gpu.name == "MI355X")


def test_our_own_kernels_are_planned_with_the_model_s_constants_alone() -> None:
    assert MI355X.ours.tuned == modelled("gfx950") != MI355X.tuned
    kernel = Kernel("dense", "gemm", 1e8)
    of = modelled("gfx950")["gemm"]
    expected = of.seconds + 1e8 / (of.of_bandwidth * MI355X.bandwidth)
    assert kernel.seconds(MI355X.ours, "tuned") == pytest.approx(expected)


def test_no_published_kernel_is_much_faster_than_the_best_of_the_model() -> None:
    ratios = [peer.model_us / peer.us for peer in peers()]
    assert len(ratios) == 28
    assert 0.5 < min(ratios) and max(ratios) < 1.1


def test_the_command_prints_kernels_rounds_and_assumptions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--kernels", "add_norm"]) == 0
    shown = capsys.readouterr().out
    for said in ("Model, not measured", "add_norm kimi", "MI325X", "AITER", "not in the model"):
        assert said in shown
    assert "expert_gate_up" not in shown


def test_the_command_compares_records(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--kernels", "add_norm", "--before", str(FOLDER)]) == 0
    shown = capsys.readouterr().out.replace("before -> after", "")
    assert " -> " not in shown and "(new)" not in shown
    assert main(["--kernels", "--before", str(tmp_path)]) == 2
    assert "no record" in capsys.readouterr().err


def test_no_case_of_either_record_is_left_out(tmp_path: Path) -> None:
    name, *others = recorded("gfx950")
    now = recorded("gfx950")
    other = replace(now[name], name="gone before")
    write_record("gfx950", [other, *(now[name] for name in others)], tmp_path)
    rows = [row[0] for row in case_changes(BY_ARCH["gfx950"], tmp_path)]
    assert len(rows) == len(now) + 1
    assert f"{name} (new)" in rows and "gone before (gone)" in rows
    assert sum(row.endswith((")",)) for row in rows) == 2
