"""The plan: each tensor one rule, each parameter filled once, all misfits in one error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors_writing import write_safetensors

from convert.files.safetensors_files import Checkpoint, open_checkpoint
from convert.models.rules import TRANSPOSED, Rule
from convert.published.directory import Published
from convert.published.plan import LoadPlan, make_plan
from convert.published.weights import find_weights

RULES = [
    Rule("norm.weight", ("norm.weight",)),
    Rule(
        "layers.{layer}.experts.{expert}.weight",
        ("layers.{layer}.experts[{expert}]",),
        TRANSPOSED,
    ),
    Rule("buffer", why="not a weight"),
]
PARAMETERS = {"norm.weight": (4,), "layers.0.experts": (2, 3, 5)}


def tensors() -> dict[str, np.ndarray]:
    return {
        "norm.weight": np.arange(4, dtype=np.float32),
        "layers.0.experts.0.weight": np.arange(15, dtype=np.float32).reshape(5, 3),
        "layers.0.experts.1.weight": np.arange(15, 30, dtype=np.float32).reshape(5, 3),
        "buffer": np.zeros(1, np.int64),
    }


def checkpoint(directory: Path, content: dict[str, np.ndarray]) -> Checkpoint:
    write_safetensors(directory / "model.safetensors", content)
    return open_checkpoint(directory)


def plan_of(
    source: Checkpoint, rules: list[Rule] = RULES, parameters: dict[str, Any] = PARAMETERS
) -> LoadPlan:
    weights, misfits = find_weights(source.tensors.values())
    published = Published(source.directory, {}, source, weights, misfits, None)
    return make_plan(published, rules, parameters, str)


def test_one_error_lists_every_misfit(tmp_path: Path) -> None:
    content = tensors()
    content["norm.weight"] = np.zeros(5, np.float32)
    content["buffer.bias"] = np.zeros(1, np.int64)
    del content["layers.0.experts.1.weight"]
    content["layers.0.experts.2.weight"] = np.zeros((5, 3), np.float32)
    content["layers.7.experts.0.weight"] = np.zeros((5, 3), np.float32)
    content["stray"] = np.zeros(1, np.float32)
    parameters = {**PARAMETERS, "head.kernel": (4, 4), "bias": (1,)}
    with pytest.raises(ValueError) as raised:
        plan_of(checkpoint(tmp_path, content), [*RULES, Rule("buffer.bias", ("bias",))], parameters)
    for misfit in (
        "buffer.bias: dtype must be one of ('F32', 'BF16', 'F16'), got I64",
        "norm.weight: expected shape (4,), got (5,)",
        "layers.0.experts.2.weight: layers.0.experts has only 2 rows",
        "layers.0.experts: no tensor for rows [1]",
        "layers.7.experts.0.weight: the model has no parameter layers.7.experts",
        "stray: matched by 0 rules []",
        "head.kernel: no tensor in the checkpoint",
    ):
        assert misfit in str(raised.value)


def test_two_rules_for_a_tensor_are_a_misfit(tmp_path: Path) -> None:
    rules = [*RULES, Rule("layers.{rest}", why="too greedy")]
    with pytest.raises(ValueError, match=r"experts.0.weight: matched by 2 rules \['layers"):
        plan_of(checkpoint(tmp_path, tensors()), rules)


def test_leading_zeros_are_not_numbers(tmp_path: Path) -> None:
    content = tensors()
    content["layers.00.experts.0.weight"] = content.pop("layers.0.experts.0.weight")
    with pytest.raises(ValueError, match=r"layers\.00\.experts\.0\.weight: matched by 0 rules"):
        plan_of(checkpoint(tmp_path, content))
