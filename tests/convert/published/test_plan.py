"""The plan: each tensor one rule, each parameter filled once, all misfits in one error."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors_writing import write_safetensors

from convert.files.box import whole
from convert.files.safetensors_files import Checkpoint, open_checkpoint
from convert.models.rules import TRANSPOSED, Rule
from convert.published.directory import Published
from convert.published.plan import LoadPlan, make_plan
from convert.published.read_parameter import read_floats
from convert.published.weights import find_weights
from convert.saved_tensors import saved_tensors

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
    source: Checkpoint,
    rules=RULES,
    parameters=PARAMETERS,
    canonical: Callable[[str], str] = str,
) -> LoadPlan:
    weights, misfits = find_weights(source.tensors.values())
    published = Published(source.directory, {}, source, weights, misfits, None)
    return make_plan(published, rules, parameters, canonical)


def test_a_plan_read_and_saved_gives_the_tensors_back(tmp_path: Path) -> None:
    source = checkpoint(tmp_path, tensors())
    plan = plan_of(source)
    assert plan.dropped == {"buffer": "not a weight"}
    single = np.dtype(np.float32)
    parameters = {
        path: read_floats(plan.sources[path], whole(shape), single)
        for path, shape in PARAMETERS.items()
    }
    np.testing.assert_array_equal(
        parameters["layers.0.experts"][1], tensors()["layers.0.experts.1.weight"].T
    )
    saved = saved_tensors(RULES, PARAMETERS, parameters.__getitem__, single)
    assert {tensor.path for tensor in saved} == set(tensors()) - {"buffer"}
    for tensor in saved:
        np.testing.assert_array_equal(tensor.read(), tensors()[tensor.path])


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


def test_two_tensors_for_a_parameter_are_a_misfit(tmp_path: Path) -> None:
    content = {**tensors(), "model.norm.weight": np.zeros(4, np.float32)}
    content["model.layers.0.experts.1.weight"] = np.zeros((5, 3), np.float32)
    with pytest.raises(ValueError) as raised:
        plan_of(checkpoint(tmp_path, content), canonical=lambda name: name.removeprefix("model."))
    # Tensors are listed in file order: widest type first, then by name.
    twice = "filled more than once, by"
    assert f"norm.weight: {twice} model.norm.weight, norm.weight" in str(raised.value)
    assert f"layers.0.experts[1]: {twice} layers.0.experts.1.weight, model." in str(raised.value)


def test_leading_zeros_are_not_numbers(tmp_path: Path) -> None:
    content = tensors()
    content["layers.00.experts.0.weight"] = content.pop("layers.0.experts.0.weight")
    with pytest.raises(ValueError, match=r"layers\.00\.experts\.0\.weight: matched by 0 rules"):
        plan_of(checkpoint(tmp_path, content))
