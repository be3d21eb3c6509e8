"""Two processes learn what one does, and write the draft."""

import json
from pathlib import Path

import numpy as np
import pytest
from probe import free_port
from processes import Forked
from safetensors.numpy import load_file

from eagle3_tools.make_demo.__main__ import main as make_demo
from serve.demo import demo_target_dir
from serve.train.cli import main

STEPS = 50
WITHIN = 0.01
"""Of a weight's norm: rounding to bfloat16 twice is 0.003."""


def command(output: Path, steps: int, *more: str) -> list[str]:
    flags = ["--output", f"{output}", "--rows", "2", "--steps", f"{steps}", "--unroll", "2"]
    flags += ["--intermediate-size", "64", "--learning-rate", "5e-4", "--draft-vocab", "512"]
    flags += ["--data", f"{output.parent / 'corpus.jsonl'}", *more]
    return ["draft", "--target", f"{demo_target_dir()}", *flags]


def losses(output: Path) -> list[float]:
    lines = (output / "training" / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.long
def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    """Weights differ by the order of sums and by bfloat16."""
    make_demo(["corpus", f"{tmp_path / 'corpus.jsonl'}", "--conversations", "200"])
    address = f"127.0.0.1:{free_port()}"
    together = ["--data-parallel-size", "2", "--num-processes", "2"]
    together += ["--coordinator-address", address, "--process-id"]
    flags = command(tmp_path / "two", STEPS, *together)
    processes = [
        Forked("serve.train.cli", [*flags, n], environment={"JAX_NUM_CPU_DEVICES": "1"})
        for n in "01"
    ]
    assert main(command(tmp_path / "one", STEPS)) == 0
    assert [process.wait(900) for process in processes] == [0, 0]
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), atol=1e-5)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys() and len(losses(tmp_path / "two")) == STEPS
    np.testing.assert_array_equal(one.pop("d2t"), two.pop("d2t"))
    for name in one:
        ours, theirs = (x[name].astype(np.float32) for x in (one, two))
        apart = np.linalg.norm(ours - theirs) / np.linalg.norm(ours)
        assert apart < WITHIN, f"{name}: {apart}"
