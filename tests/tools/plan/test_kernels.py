"""`eagle3-plan --kernels`: rounds by the model of the compiled code."""

from pathlib import Path

import pytest

from eagle3_tools.kernel_model.record import FOLDER, recorded
from eagle3_tools.plan.cli import main
from eagle3_tools.plan.compile.layer_launches import MOST_LAUNCHES
from eagle3_tools.plan.data.gpus import GPUS, MI355X
from eagle3_tools.plan.data.modelled import modelled
from eagle3_tools.plan.kernels.round_launches import MOE_LAYERS, RoundOf, Scheme
from eagle3_tools.plan.kernels.round_time import round_time
from eagle3_tools.plan.model.kernels import Kernel


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
    replayed, launched = (found.seconds(command_buffers=each) for each in (True, False))
    assert found.kernels.seconds + found.sums < replayed <= launched


def test_our_own_kernels_are_planned_with_the_model_s_constants_alone() -> None:
    assert MI355X.ours.tuned == modelled("gfx950") != MI355X.tuned
    kernel = Kernel("dense", "gemm", 1e8)
    of = modelled("gfx950")["gemm"]
    expected = of.seconds + 1e8 / (of.of_bandwidth * MI355X.bandwidth)
    assert kernel.seconds(MI355X.ours, "tuned") == pytest.approx(expected)


def test_the_command_prints_kernels_rounds_and_assumptions_and_compares_records(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--kernels", "add_norm"]) == 0
    shown = capsys.readouterr().out
    for said in ("Model, not measured", "add_norm kimi", "INT4 experts", "not in the model"):
        assert said in shown
    assert "expert_gate_up" not in shown
    assert main(["--kernels", "add_norm", "--before", str(FOLDER)]) == 0
    shown = capsys.readouterr().out.replace("before -> after", "")
    assert " -> " not in shown and "(new)" not in shown
    assert main(["--kernels", "--before", str(tmp_path)]) == 2
    assert "no record" in capsys.readouterr().err
