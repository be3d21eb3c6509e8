"""Memory of training beside its target, against hand-made sums and what JAX allocates."""

import functools
from typing import Any

import jax
import pytest
from oracle_files import ORACLES

from eagle3_jax.training.draft import split_draft
from eagle3_jax.training.optimizer import adamw
from eagle3_tools.plan.cli import main
from eagle3_tools.plan.planner import read_pair
from eagle3_tools.plan.training.model import PARTS, TORCHSPEC_HOURS, TrainingPlan
from eagle3_tools.plan.training.options import build_parser, read_options

PUBLISHED = ORACLES / "published"
PAIR = ["--model", f"{PUBLISHED / 'kimi-k2.5.config.json'}", "--draft"]
DRAFT = PUBLISHED / "kimi-k2.5-eagle3.config.json"
GRADIENT = "gradient, and what computes"


@functools.cache
def plan(*flags: str) -> TrainingPlan:
    options = read_options(build_parser().parse_args([*PAIR, f"{DRAFT}", *flags]))
    return TrainingPlan(options, read_pair(options.pair))


def trained_bytes(plan: TrainingPlan) -> int:
    return plan.resident["draft, moments"] + plan.temporaries("update")[GRADIENT]


def test_a_draft_takes_what_parameters_moments_and_gradient_take() -> None:
    """On one device, counted by the optimizer's own state; and an eighth of all but fc on 8."""
    whole = plan("-tp", "1", "--gpus", "1")
    assert whole.pair.draft is not None
    _, params, _ = split_draft(whole.pair.draft)
    moments = jax.eval_shape(adamw(1e-3, 10).init, params)
    numbers = sum(x.size for x in jax.tree.leaves(params))
    kept = sum(x.size for x in jax.tree.leaves(moments) if x.ndim)
    bytes_of = 4 * (numbers + kept) + 4 * numbers + 2 * numbers
    found = trained_bytes(whole)
    assert found == pytest.approx(bytes_of, rel=1e-3)
    eighth = trained_bytes(plan())
    kernel: Any = whole.pair.draft.fc.kernel.get_value()
    fc = 18 * kernel.size  # whole on each device
    assert eighth == pytest.approx(found / 8 + fc * 7 / 8, rel=1e-3)


def test_an_update_is_given_its_own_part_of_the_targets_ends_and_these_are_counted_once() -> None:
    """Embedding and head in bfloat16, an eighth of each on 8 devices: part of the target there."""
    ends = "target's embedding and head"
    assert plan().arguments("update")[ends] == 2 * 2 * 163_840 * 7168 // 8
    assert ends not in plan().resident
    most = plan().most - sum(plan().resident.values())
    assert most == max(sum(plan().temporaries(part).values()) for part in PARTS)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gpus", "12"], "--gpus 12 is no multiple of --tensor-parallel-size 8"),
        (["--rows", "0"], "--rows: must be a whole number, 1 or more; got 0"),
        (["-tp", "7", "--gpus", "7"], "7"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["train", *PAIR, f"{DRAFT}", *flags])
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert said in capsys.readouterr().err


def test_a_quantised_draft_is_refused_and_the_tables_print(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", *PAIR, f"{PUBLISHED / 'kimi-k2.5-eagle3-fp8.config.json'}"]) == 2
    assert "quantised weights can't be trained" in capsys.readouterr().err
    assert main(["train", *PAIR, f"{DRAFT}"]) == 0
    shown = capsys.readouterr().out
    assert "fits" in shown and "not measured" in shown
    one = plan()
    assert one.fits() and one.hours(8, "datasheet") < one.hours(8, "tuned") < TORCHSPEC_HOURS
    tokens = one.hours(8, "tuned") * 3600 * one.tokens_per_second("tuned")
    assert tokens == pytest.approx(6e9)
