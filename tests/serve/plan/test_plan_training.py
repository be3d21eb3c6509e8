"""What training needs beside its target, against sums made by hand and what JAX allocates."""

import math
from pathlib import Path
from typing import Any

import jax
import pytest
from oracle_files import ORACLES

from eagle3_jax.training.draft import split_draft
from eagle3_jax.training.optimizer import adamw
from serve.plan.cli import main
from serve.plan.planner import read_pair
from serve.plan.training.model import TORCHSPEC_HOURS, TrainingPlan
from serve.plan.training.options import build_parser, read_options

PUBLISHED = ORACLES / "published"
PAIR = ["--model", f"{PUBLISHED / 'kimi-k2.5.config.json'}", "--draft"]
DRAFT = PUBLISHED / "kimi-k2.5-eagle3.config.json"


def plan(*flags: str, draft: Path = DRAFT) -> TrainingPlan:
    options = read_options(build_parser().parse_args([*PAIR, f"{draft}", *flags]))
    return TrainingPlan(options, read_pair(options.pair))


def test_a_draft_takes_what_parameters_moments_and_gradient_take() -> None:
    """On one device, counted by the optimizer's own state; and an eighth of all but fc on 8."""
    whole = plan("-tp", "1", "--gpus", "1")
    assert whole.pair.draft is not None
    _, params, _ = split_draft(whole.pair.draft)
    moments = jax.eval_shape(adamw(1e-3, 10).init, params)
    numbers = sum(x.size for x in jax.tree.leaves(params))
    kept = sum(x.size for x in jax.tree.leaves(moments) if x.ndim)
    bytes_of = 4 * (numbers + kept) + 4 * numbers + 2 * numbers
    found = whole.memory["draft, moments, gradient"]
    assert found == pytest.approx(bytes_of, rel=1e-3)
    eighth = plan().memory["draft, moments, gradient"]
    kernel: Any = whole.pair.draft.fc.kernel.get_value()
    fc = 18 * kernel.size  # whole on each device
    assert eighth == pytest.approx(found / 8 + fc * 7 / 8, rel=1e-3)


def test_time_and_memory_grow_with_tokens_and_hours_shrink_with_gpus() -> None:
    one, two = plan(), plan("--rows", "2")
    assert two.memory["features"] == 2 * one.memory["features"]
    assert two.seconds("tuned")["target"] == pytest.approx(2 * one.seconds("tuned")["target"])
    assert one.hours(8, "tuned") == pytest.approx(4 * one.hours(32, "tuned"))
    tokens = one.hours(8, "tuned") * 3600 * one.tokens_per_second("tuned")
    assert tokens == pytest.approx(6e9)
    assert one.fits() and one.hours(8, "datasheet") < one.hours(8, "tuned") < TORCHSPEC_HOURS


def test_no_row_of_twenty_thousand_tokens_has_all_its_logits_or_scores() -> None:
    memory, length = plan().memory, 20480
    assert memory["logits of a block"] < length * 163_840 * 4 / 20
    assert memory["scores of a block"] < length * length * 4


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gpus", "12"], "--gpus 12 is no multiple of --tensor-parallel-size 8"),
        (["--rows", "0"], "--rows must be at least 1"),
        (["-tp", "7", "--gpus", "7"], "7"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *PAIR, f"{DRAFT}", *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_quantised_draft_is_refused_and_the_tables_print(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", *PAIR, f"{PUBLISHED / 'kimi-k2.5-eagle3-fp8.config.json'}"]) == 2
    assert "quantised weights can't be trained" in capsys.readouterr().err
    assert main(["train", *PAIR, f"{DRAFT}"]) == 0
    shown = capsys.readouterr().out
    assert "fits" in shown and "not measured" in shown and math.isfinite(plan().hours(8, "tuned"))
